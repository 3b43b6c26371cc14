// SPDX-License-Identifier: Apache-2.0

package samplers

import "fmt"

// Fingerprinter is a Sampler whose order depends on more than seed and number of samples (say, on their lengths). The
// fingerprint of the rest becomes part of a Place, so that a place in one order is not taken for the same place in
// another.
type Fingerprinter interface {
	Fingerprint() uint64
}

// Place is a position in the training stream in global terms, for a checkpoint: it says nothing of ranks, batch sizes
// or accumulation. A Stream gives and takes it.
type Place struct {
	Seed     uint64 `json:"seed"`                        // of the sampler; 0 if it has none
	Epoch    int64  `json:"epoch"`                       // the epoch of Position
	Position int64  `json:"position"`                    // samples of the training stream that are done with
	Samples  int64  `json:"num_samples"`                 // samples used per epoch; 0 if unknown
	Order    uint64 `json:"order_fingerprint,omitempty"` // of the sampler (see Fingerprinter); 0 if it has none
}

// check tells why st, a saved place, is not one of the order that have is a place of.
func (st Place) check(have Place) error {
	switch {
	case st.Seed != have.Seed:
		return fmt.Errorf("samplers: the state was saved under seed %d, the sampler has seed %d", st.Seed, have.Seed)
	case st.Samples != have.Samples:
		return fmt.Errorf("samplers: the state was saved with %d samples per epoch, there are %d", st.Samples,
			have.Samples)
	case st.Order != have.Order:
		return fmt.Errorf("samplers: the state was saved of an order with fingerprint %#x, the sampler's is %#x: "+
			"lengths or group size differ", st.Order, have.Order)
	case st.Position < 0 || st.Samples == 0 && st.Position > 0:
		return fmt.Errorf("samplers: the state's position is %d with %d samples per epoch", st.Position, st.Samples)
	case st.Samples > 0 && st.Epoch != st.Position/st.Samples:
		return fmt.Errorf("samplers: the state's position %d with %d samples per epoch is not in epoch %d", st.Position,
			st.Samples, st.Epoch)
	}
	return nil
}

// stateAt gives the place after done samples of an epoch of n samples; the end of an epoch is the beginning of the
// next.
func stateAt(order any, epoch, done, n int64) Place {
	st := Place{Seed: seedOf(order), Epoch: epoch, Position: epoch*n + done, Samples: n, Order: fingerprintOf(order)}
	if done >= n {
		st.Epoch, st.Position = epoch+1, (epoch+1)*n
	}
	if n == 0 {
		st.Epoch = 0
	}
	return st
}

func seedOf(order any) uint64 {
	if s, ok := order.(Seeder); ok {
		return s.Seed()
	}
	return 0
}

func fingerprintOf(order any) uint64 {
	if f, ok := order.(Fingerprinter); ok {
		return f.Fingerprint()
	}
	return 0
}
