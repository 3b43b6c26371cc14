// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/blockwise"
	"github.com/lockstep-ml/lockstep/tensor"
)

func init() { register("int8", DefaultInt8) }

// Int8 are the settings of the hook int8: gradients travel in blocks of 8-bit numbers with one float32 scale, a quarter
// of the bytes. Each rank sums some blocks of all ranks and sends the sums on, which are rounded again. A number of the
// result differs from the sum by at most half a step of each rank's block and half a step of the sum's, where a step is
// the block's largest number without sign, divided by 127. Blocks never cross parameters; a parameter's last one is
// filled with zeros.
type Int8 struct {
	// BlockSize is how many numbers share a scale.
	BlockSize int `json:"block_size"`
}

// DefaultInt8 has blocks of 256.
func DefaultInt8() Int8 { return Int8{BlockSize: 256} }

// New makes the hook, which has no state.
func (c Int8) New() Hook { return &int8Blocks{lossy: "int8", size: c.BlockSize} }

type int8Blocks struct {
	lossy
	size int
	idle []*int8Memory
}

// int8Memory is that of a bucket on its way.
type int8Memory struct {
	out, in, mine []byte
	sum           []float32
}

// Begin sends each rank its share of the blocks.
func (h *int8Blocks) Begin(g *comm.Group, b Bucket) func(context.Context) error {
	if b.Grads.DType() != tensor.Float32 || b.Grads.Numel() == 0 {
		return AllReduce.Begin(g, b)
	}
	blocks := 0
	for _, p := range b.Parts {
		blocks += (p.Grads.Numel() + h.size - 1) / h.size
	}
	ranks, one := g.Size(), blockwise.Int8Bytes(h.size)
	m := h.memory(ranks, (blocks+ranks-1)/ranks*one)
	at := m.out
	for _, p := range b.Parts {
		x, ok := onHost(b.Ctx, p)
		if !ok {
			x = values(b.Ctx, p)
		}
		for ; len(x) > 0; at = at[one:] {
			n := min(h.size, len(x))
			blockwise.QuantizeInt8(at[:one], x[:n])
			x = x[n:]
		}
	}
	clear(at)
	sent := g.AllToAll(comm.Of(m.in), comm.Of(m.out), comm.Label(b.Label), comm.Layout(b.Layout))
	return func(ctx context.Context) error {
		if err := sent.Wait(ctx); err != nil {
			return err
		}
		m.add(ranks, one)
		if err := g.AllGather(comm.Of(m.out), comm.Of(m.mine), comm.Label(b.Label),
			comm.Layout(b.Layout)).Wait(ctx); err != nil {
			return err
		}
		at := m.out
		for _, p := range b.Parts {
			y, ok := onHost(b.Ctx, p)
			if !ok {
				y = make([]float32, p.Grads.Numel())
			}
			for rest := y; len(rest) > 0; at = at[one:] {
				n := min(h.size, len(rest))
				blockwise.DequantizeInt8(rest[:n], at[:one])
				rest = rest[n:]
			}
			if !ok {
				write(b.Ctx, p, y)
			}
		}
		h.idle = append(h.idle, m)
		return nil
	}
}

// memory is for a bucket of which each rank sums so many bytes.
func (h *int8Blocks) memory(ranks, share int) *int8Memory {
	m := &int8Memory{sum: make([]float32, h.size)}
	if last := len(h.idle) - 1; last >= 0 {
		m, h.idle = h.idle[last], h.idle[:last]
	}
	for _, b := range []struct {
		bytes *[]byte
		n     int
	}{{&m.out, ranks * share}, {&m.in, ranks * share}, {&m.mine, share}} {
		*b.bytes = slices.Grow((*b.bytes)[:0], b.n)[:b.n]
	}
	return m
}

// add adds the ranks' blocks of so many bytes, in rank order, and quantizes the sums.
func (m *int8Memory) add(ranks, one int) {
	share := len(m.mine)
	for at := 0; at < share; at += one {
		clear(m.sum)
		for r := range ranks {
			blockwise.AddInt8(m.sum, m.in[r*share+at:][:one])
		}
		blockwise.QuantizeInt8(m.mine[at:][:one], m.sum)
	}
}

// onHost shows a gradient where it lies, if the host computes there.
func onHost(c *tensor.Ctx, p Part) (x []float32, ok bool) {
	mem, ok := tensor.HostBytes(c, p.Grads)
	return dtype.Elements[float32](mem), ok
}
