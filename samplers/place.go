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

// check tells why p, a saved place, is not one of the order that have is a place of.
func (p Place) check(have Place) error {
	switch {
	case p.Seed != have.Seed:
		return fmt.Errorf("samplers: the place was saved under seed %d, the sampler has seed %d", p.Seed, have.Seed)
	case p.Samples != have.Samples:
		return fmt.Errorf("samplers: the place was saved with %d samples per epoch, there are %d", p.Samples,
			have.Samples)
	case p.Order != have.Order:
		return fmt.Errorf("samplers: the place was saved of an order with fingerprint %#x, the sampler's is %#x: "+
			"lengths or group size differ", p.Order, have.Order)
	case p.Position < 0 || p.Samples == 0 && p.Position > 0:
		return fmt.Errorf("samplers: the place's position is %d with %d samples per epoch", p.Position, p.Samples)
	case p.Samples > 0 && p.Epoch != p.Position/p.Samples:
		return fmt.Errorf("samplers: the place's position %d with %d samples per epoch is not in epoch %d", p.Position,
			p.Samples, p.Epoch)
	}
	return nil
}

// placeAt returns the place after done samples of an epoch of n samples; the end of an epoch is the beginning of the
// next.
func placeAt(order any, epoch, done, n int64) Place {
	p := Place{Seed: seedOf(order), Epoch: epoch, Position: epoch*n + done, Samples: n, Order: fingerprintOf(order)}
	if done >= n {
		p.Epoch, p.Position = epoch+1, (epoch+1)*n
	}
	if n == 0 {
		p.Epoch = 0
	}
	return p
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
