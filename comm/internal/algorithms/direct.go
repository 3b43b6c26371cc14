// SPDX-License-Identifier: Apache-2.0

package algorithms

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/tree"
	"github.com/lockstep-ml/lockstep/comm/internal/window"
)

// ahead is how many chunks are on their way while one is combined.
const ahead = 2

// shareUnit is what shares of a buffer are multiples of, in elements.
const shareUnit = 16

// shares is the part of a reduction in which each rank gets what it is to combine of a chunk.
type shares struct {
	x      *exchange
	part   func(chunk, rank int) []byte // of this rank's buffer, what rank combines of a chunk
	count  int                          // of chunks
	most   int                          // bytes of the largest part
	rounds []Round
}

func (x *exchange) shares(count, most int, part func(chunk, rank int) []byte) *shares {
	x.r.room(x.n * most)
	s := &shares{x: x, part: part, count: count, most: most, rounds: make([]Round, count)}
	for k := range ahead {
		s.begin(k)
	}
	return s
}

// begin sends the parts of a chunk, if there is one.
func (s *shares) begin(k int) {
	if k < s.count {
		s.rounds[k] = s.x.begin(func(r int) []byte { return s.part(k, r) }, func(r int) []byte { return s.place(k, r) })
	}
}

// place is where a rank's part of a chunk comes, or lies.
func (s *shares) place(k, rank int) []byte {
	own := s.part(k, s.x.me)
	if rank == s.x.me {
		return own
	}
	at := rank * s.most
	return s.x.r.scratch[at : at+len(own)]
}

// combine sets dst to the combination of what all ranks have of this rank's part of a chunk.
func (s *shares) combine(k int, dst []byte) error {
	if err := s.rounds[k].Received(); err != nil {
		return err
	}
	for r := range s.x.n {
		s.x.r.inputs[r] = s.place(k, r)
	}
	s.x.combine(dst, s.x.r.inputs...)
	return nil
}

// reduceScatter sends each rank its block and combines what comes for this one.
func (x *exchange) reduceScatter() error {
	block, chunk := x.c.Count*x.size, x.r.ChunkBytes
	count := (block + chunk - 1) / chunk
	s := x.shares(count, min(chunk, block), func(k, r int) []byte {
		return x.c.In[r*block+k*chunk : r*block+min((k+1)*chunk, block)]
	})
	for k := range count {
		if err := s.combine(k, x.c.Out[k*chunk:min((k+1)*chunk, block)]); err != nil {
			return err
		}
		s.begin(k + ahead)
	}
	return nil
}

// reduce is all-reduce and reduce: every rank combines its share of each chunk and sends the result to all, or to the
// root. Between two ranks follow one another the slices of chunks 0 and 1, the result of 0, the slices of 2, the result
// of 1, and so on.
func (x *exchange) reduce() error {
	each := x.r.ChunkBytes / x.size
	chunk := each * x.n
	count := (x.c.Count + chunk - 1) / chunk
	s := x.shares(count, (min(each, x.c.Count)+shareUnit)*x.size, func(k, r int) []byte {
		from, to := x.bounds(k, chunk, r)
		return x.c.In[from*x.size : to*x.size]
	})
	results := make([]Round, count)
	for k := range count + 1 {
		if k < count {
			result, err := x.add(s, k, chunk)
			if err != nil {
				return err
			}
			results[k] = x.share(k, chunk, result)
			s.begin(k + ahead)
		}
		if k > 0 {
			// a result comes to where the slice lay of the rank that combined it
			if err := s.rounds[k-1].Sent(); err != nil {
				return err
			}
			if err := results[k-1].Received(); err != nil {
				return err
			}
		}
	}
	return nil
}

// gets reports whether a rank is to have the result.
func (x *exchange) gets(rank int) bool { return x.c.Op != comm.Reduce || rank == x.c.Root }

// bounds are the elements of a chunk that a rank combines.
func (x *exchange) bounds(k, chunk, rank int) (from, to int) {
	lo := k * chunk
	hi := min(lo+chunk, x.c.Count)
	from, to = window.Share(hi-lo, x.n, rank, shareUnit)
	return lo + from, lo + to
}

// place returns where rank's part of a chunk of the result belongs: where its share is, unless the result has another
// dtype.
func (x *exchange) place(k, chunk, rank int) []byte {
	from, to := x.bounds(k, chunk, rank)
	return x.c.Out[from*x.result.Size() : to*x.result.Size()]
}

// add combines this rank's share of a chunk, and returns the result, which lies where it belongs if this rank is to
// have it.
func (x *exchange) add(s *shares, k, chunk int) ([]byte, error) {
	result := s.part(k, x.me)
	if !x.gets(x.me) {
		result = make([]byte, len(result)) // the buffer keeps what it held
	}
	if err := s.combine(k, result); err != nil {
		return nil, err
	}
	if len(result) > 0 && &x.c.In[0] != &x.c.Out[0] {
		rounded := x.place(k, chunk, x.me)
		tree.Finish(rounded, result, x.result)
		result = rounded
	}
	return result, nil
}

// share begins to exchange the results of a chunk.
func (x *exchange) share(k, chunk int, result []byte) Round {
	give := func(r int) []byte {
		if !x.gets(r) {
			return nil
		}
		return result
	}
	take := func(r int) []byte {
		if !x.gets(x.me) {
			return nil
		}
		return x.place(k, chunk, r)
	}
	return x.begin(give, take)
}
