// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/lockstep-ml/lockstep/comm"
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
func (c Int8) New() Hook { return int8Blocks{"int8", c.BlockSize} }

type int8Blocks struct {
	lossy
	size int
}

// Begin sends each rank its share of the blocks.
func (h int8Blocks) Begin(g *comm.Group, b Bucket) func(context.Context) error {
	if b.Grads.DType() != tensor.Float32 || b.Grads.Numel() == 0 {
		return AllReduce.Begin(g, b)
	}
	blocks := 0
	for _, p := range b.Parts {
		blocks += (p.Grads.Numel() + h.size - 1) / h.size
	}
	ranks, one := g.Size(), 4+h.size
	share := (blocks + ranks - 1) / ranks * one
	out := make([]byte, ranks*share)
	at := out
	for _, p := range b.Parts {
		for x := values(b.Ctx, p); len(x) > 0; at = at[one:] {
			n := min(h.size, len(x))
			quantize(at[:one], x[:n])
			x = x[n:]
		}
	}
	in := make([]byte, len(out))
	sent := g.AllToAll(comm.Of(in), comm.Of(out), comm.Label(b.Label), comm.Layout(b.Layout))
	return func(ctx context.Context) error {
		if err := sent.Wait(ctx); err != nil {
			return err
		}
		mine := h.sum(in, ranks, share)
		if err := g.AllGather(comm.Of(out), comm.Of(mine), comm.Label(b.Label),
			comm.Layout(b.Layout)).Wait(ctx); err != nil {
			return err
		}
		at := out
		for _, p := range b.Parts {
			y := make([]float32, p.Grads.Numel())
			for rest := y; len(rest) > 0; at = at[one:] {
				n := min(h.size, len(rest))
				dequantize(rest[:n], at[:one])
				rest = rest[n:]
			}
			write(b.Ctx, p, y)
		}
		return nil
	}
}

// sum adds the ranks' blocks, in rank order, and quantizes the sums.
func (h int8Blocks) sum(in []byte, ranks, share int) []byte {
	one := 4 + h.size
	mine := make([]byte, share)
	total, x := make([]float32, h.size), make([]float32, h.size)
	for at := 0; at < share; at += one {
		clear(total)
		for r := range ranks {
			dequantize(x, in[r*share+at:][:one])
			for i, v := range x {
				total[i] += v
			}
		}
		quantize(mine[at:][:one], total)
	}
	return mine
}

// quantize writes a block: the scale, and x divided by it, rounded to the nearest. A block with a number that is not
// finite has the scale NaN.
func quantize(block []byte, x []float32) {
	var top float32
	for _, v := range x {
		top = max(top, v, -v) // NaN stays
	}
	scale := top / 127
	if math.IsInf(float64(top), 0) {
		scale = float32(math.NaN())
	}
	binary.LittleEndian.PutUint32(block, math.Float32bits(scale))
	codes := block[4:]
	clear(codes)
	if !(scale > 0) {
		return
	}
	for i, v := range x {
		q := math.RoundToEven(float64(v) / float64(scale))
		codes[i] = byte(int8(max(-127, min(127, q))))
	}
}

// dequantize reads a block, or the first numbers of it.
func dequantize(x []float32, block []byte) {
	scale := math.Float32frombits(binary.LittleEndian.Uint32(block))
	for i := range x {
		x[i] = float32(scale * float32(int8(block[4+i])))
	}
}
