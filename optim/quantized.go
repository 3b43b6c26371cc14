// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/blockwise"
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
	chain       []Transform // of the optimizer
	// numel are the elements of parameters of which there may be a part.
	numel map[string]int
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
	n, ok := q.numel[p.Name]
	if !ok {
		n = p.Numel()
	}
	return n >= smallest && !q.wide[p.Name] && (!q.wholeBlocks || n%blockwise.Block == 0)
}

// optimizer makes the optimizer of a chain that the transform is in.
func (q *quantized) optimizer(c *tensor.Ctx, name string, groups []*Group, chain ...Transform) *Optimizer {
	q.chain = chain
	return New(c, name, groups, chain...)
}

// Traits: the host converts.
func (q *quantized) Traits() Traits {
	return Traits{Blocks: blockwise.Block, Fused: q.fused(),
		parts: func(numel map[string]int) { q.numel = numel }}
}

// maps are those of the states of p.
func (q *quantized) maps(p tensor.Named) (list []*blockwise.Map) {
	for _, s := range q.of.State(p) {
		if s.NonNegative && !q.signed {
			list = append(list, blockwise.Unsigned())
		} else {
			list = append(list, blockwise.Signed())
		}
	}
	return list
}

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
				NonNegative: true, Block: blockwise.Block})
	}
	return stored
}

func codesOf(s StateTensor) string { return s.Name + "_8bit" }

func scalesOf(s StateTensor) string { return s.Name + "_absmax" }

// Apply is the transform's, on pieces of the state in float32.
func (q *quantized) Apply(c *tensor.Ctx, p tensor.Named, g *Group, s *Slot, u *tensor.Tensor) {
	if !q.holds(p) {
		q.of.Apply(c, p, g, s, u)
		return
	}
	states, maps := q.of.State(p), q.maps(p)
	for lo, n := 0, u.Numel(); lo < n; lo += piece {
		hi := min(lo+piece, n)
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			part := Slot{Step: s.Step, Tensors: map[string]*tensor.Tensor{}}
			codes, scales := make([]*tensor.Tensor, len(states)), make([]*tensor.Tensor, len(states))
			for i, st := range states {
				codes[i] = flatPart(c, s.Tensors[codesOf(st)], lo, hi)
				scales[i] = blocksPart(c, s.Tensors[scalesOf(st)], lo, hi)
				stored := storedState{codes: tensor.ReadBytes(c, codes[i]), by: maps[i],
					scales: dtype.Elements[float32](tensor.ReadBytes(c, scales[i]))}
				part.Tensors[st.Name] = tensor.Cast(c, stored.read(c), st.DType)
			}
			q.of.Apply(c, p, g, &part, flatPart(c, u, lo, hi))
			for i, st := range states {
				wide := tensor.ToSlice[float32](c, tensor.Cast(c, part.Tensors[st.Name], tensor.Float32))
				stored := storedState{codes: make([]byte, len(wide)), by: maps[i],
					scales: make([]float32, blockwise.Blocks(len(wide)))}
				stored.by.Quantize(stored.codes, stored.scales, wide)
				tensor.WriteBytes(c, codes[i], stored.codes)
				tensor.WriteBytes(c, scales[i], dtype.Bytes(stored.scales))
			}
			return nil
		})
	}
}

// blocksPart are the scales of the elements from lo, where a block begins, to hi.
func blocksPart(c *tensor.Ctx, scales *tensor.Tensor, lo, hi int) *tensor.Tensor {
	return tensor.Slice(c, scales, 0, lo/blockwise.Block, blockwise.Blocks(hi))
}

// storedState is a state, or some blocks of it, as it is stored.
type storedState struct {
	codes  []byte
	scales []float32
	by     *blockwise.Map
}

// read is the state in float32.
func (s *storedState) read(c *tensor.Ctx) *tensor.Tensor {
	wide := make([]float32, len(s.codes))
	s.by.Dequantize(wide, s.codes, s.scales)
	return tensor.FromSlice(c, wide, len(wide))
}
