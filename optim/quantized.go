// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/lockstep-ml/lockstep/internal/blockwise"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/parallel"
	"github.com/lockstep-ml/lockstep/tensor"
)

// smallest is the number of elements from which on states are stored in 8 bits.
const smallest = 4096

// quantized stores the state of a transform in 8 bits between its steps: codes of bytes, and a scale for each block of
// 256 elements. The transform must be elementwise, must not read the parameter, and its states must be like the
// parameter.
type quantized struct {
	of Transform
	// wide are the names of parameters whose state stays in float32.
	wide map[string]bool
	// signed stores means of squares by the signed map too, as bitsandbytes does for optimizers of one state.
	signed bool
	// wholeBlocks leaves parameters whose last block would be short in float32 too.
	wholeBlocks bool
}

// quantize stores the state of a transform as bitsandbytes does, except that of embeddings, as the Trainer registers
// them.
func quantize(of Transform, groups []*Group) *quantized {
	q := &quantized{of: of, wide: map[string]bool{}}
	for _, g := range groups {
		for _, name := range g.Embeddings {
			q.wide[name] = true
		}
	}
	return q
}

// holds reports whether the state of p is stored in 8 bits.
func (q *quantized) holds(p tensor.Named) bool {
	n := p.Numel()
	return n >= smallest && !q.wide[p.Name] && (!q.wholeBlocks || n%blockwise.Block == 0)
}

// Traits: a part of a parameter has other blocks, and the host converts.
func (*quantized) Traits() Traits { return Traits{} }

// State is codes and scales of each state of the transform.
func (q *quantized) State(p tensor.Named) []StateTensor {
	list := q.of.State(p)
	if !q.holds(p) {
		return list
	}
	var stored []StateTensor
	for _, s := range list {
		stored = append(stored, StateTensor{Name: codesOf(s), Shape: s.Shape, DType: tensor.Uint8},
			StateTensor{Name: scalesOf(s), Shape: []int{blockwise.Blocks(p.Numel())}, DType: tensor.Float32,
				NonNegative: true})
	}
	return stored
}

func codesOf(s StateTensor) string { return s.Name + "_8bit" }

func scalesOf(s StateTensor) string { return s.Name + "_absmax" }

// Apply is the transform's, on pieces of the state in float32 that stay in the cache.
func (q *quantized) Apply(c *tensor.Ctx, p tensor.Named, g *Group, s *Slot, u *tensor.Tensor) {
	if !q.holds(p) {
		q.of.Apply(c, p, g, s, u)
		return
	}
	pool := parallel.New(c.Device().Workers())
	defer pool.Close()
	states := q.of.State(p)
	for lo, n := 0, u.Numel(); lo < n; lo += piece {
		hi := min(lo+piece, n)
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			part := Slot{Step: s.Step, Tensors: map[string]*tensor.Tensor{}}
			stored := make([]storedState, len(states))
			for i, st := range states {
				first, last := lo/blockwise.Block, blockwise.Blocks(hi)
				stored[i] = storedState{codes: flatPart(c, s.Tensors[codesOf(st)], lo, hi),
					scales: tensor.Slice(c, s.Tensors[scalesOf(st)], 0, first, last), by: blockwise.Signed()}
				if st.NonNegative && !q.signed {
					stored[i].by = blockwise.Unsigned()
				}
				stored[i].wide = tensor.Empty(c, tensor.Float32, hi-lo)
				stored[i].read(c, pool)
				part.Tensors[st.Name] = tensor.Cast(c, stored[i].wide, st.DType)
			}
			q.of.Apply(c, p, g, &part, flatPart(c, u, lo, hi))
			for i, st := range states {
				stored[i].wide = tensor.Cast(c, part.Tensors[st.Name], tensor.Float32)
				stored[i].write(c, pool)
			}
			return nil
		})
	}
}

// storedState is a piece of a state: as it is stored, and in float32.
type storedState struct {
	codes, scales, wide *tensor.Tensor
	by                  *blockwise.Map
}

// chunk is how many elements a worker converts at a time.
const chunk = 32 * blockwise.Block

// read makes wide.
func (s *storedState) read(c *tensor.Ctx, pool *parallel.Pool) {
	codes, scales := hostBytes(c, s.codes), dtype.Elements[float32](hostBytes(c, s.scales))
	s.change(c, s.wide, func(mem []byte) {
		wide := dtype.Elements[float32](mem)
		pool.ForChunks(len(codes), chunk, func(lo, hi int) {
			s.by.Dequantize(wide[lo:hi], codes[lo:hi], scales[lo/blockwise.Block:blockwise.Blocks(hi)])
		})
	})
}

// write makes codes and scales.
func (s *storedState) write(c *tensor.Ctx, pool *parallel.Pool) {
	wide := dtype.Elements[float32](hostBytes(c, s.wide))
	s.change(c, s.codes, func(codes []byte) {
		s.change(c, s.scales, func(mem []byte) {
			scales := dtype.Elements[float32](mem)
			pool.ForChunks(len(codes), chunk, func(lo, hi int) {
				s.by.Quantize(codes[lo:hi], scales[lo/blockwise.Block:blockwise.Blocks(hi)], wide[lo:hi])
			})
		})
	})
}

// hostBytes is a tensor's memory, or a copy if it is not in the host's.
func hostBytes(c *tensor.Ctx, t *tensor.Tensor) []byte {
	if mem, ok := tensor.HostBytes(c, t); ok {
		return mem
	}
	return tensor.ReadBytes(c, t)
}

// change fills a tensor's memory, or a copy that is written to it.
func (*storedState) change(c *tensor.Ctx, t *tensor.Tensor, fill func(mem []byte)) {
	if mem, ok := tensor.HostBytes(c, t); ok {
		fill(mem)
		return
	}
	mem := make([]byte, t.Bytes())
	fill(mem)
	tensor.WriteBytes(c, t, mem)
}
