// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// RoPE is the rotary position embedding of queries and keys (Su et al., "RoFormer", 2021) in the
// layout of GPT-NeoX and of transformers' LLaMA. x is [B,H,T,D]; cos and sin are [T,R] or
// [B,T,R] with 2R ≤ D, of x's dtype or, for half types, Float32: element r of token t holds the
// angle's cosine and sine, position(t)·θ^(−r/R) by the paper. Elements r and R+r of a head are
// rotated by it as a pair,
//
//	y[r] = x[r]·cos − x[R+r]·sin    y[R+r] = x[R+r]·cos + x[r]·sin
//
// and those from 2R on are unchanged. The result's memory is ordered [B,T,H,D], like a
// projection's. The tables are constants: no gradient flows to them.
func RoPE(c *Ctx, x, cos, sin *Tensor) *Tensor {
	const name = "RoPE"
	c.checkRoPE(name, x, cos, sin)
	cos, sin = c.ropeTable(x, cos), c.ropeTable(x, sin)
	turn := func(c *Ctx, x *Tensor, back int) *Tensor {
		y := swap12(c.empty(name, x.dtype, x.shape[0], x.shape[2], x.shape[1], x.shape[3]))
		a := ints(back)
		c.launchAttrs(backend.OpRoPE, &a, y, c.dense(x), cos, sin)
		return y
	}
	y := turn(c.NoGrad(), x, 0)
	c.record(name, []*Tensor{y}, []*Tensor{x}, []*Tensor{cos, sin}, func(b *Back) {
		b.Set(0, turn(b.Ctx, b.Grad(0), 1))
	})
	return y
}

func (c *Ctx) checkRoPE(name string, x, cos, sin *Tensor) {
	ins := []*Tensor{x, cos, sin}
	c.wantFloat(name, ins...)
	if x.ndim != 4 {
		c.fail(name, ins, "want x of 4 dims [B H T D]")
	}
	if cos.dtype != sin.dtype || cos.dtype != x.dtype && cos.dtype != statDType(x) {
		c.fail(name, ins, "want tables of %v", statDType(x))
	}
	shape := cos.Shape()
	ok := slices.Equal(shape, sin.Shape()) &&
		(len(shape) == 2 || len(shape) == 3 && (shape[0] == x.shape[0] || shape[0] == 1))
	if !ok || shape[len(shape)-2] != x.shape[2] || 2*shape[len(shape)-1] > x.shape[3] {
		c.fail(name, ins, "want tables of shape [%d R] or [%d %d R] with 2R at most %d", x.shape[2], x.shape[0],
			x.shape[2], x.shape[3])
	}
}

// ropeTable shows a table as [B,T,R].
func (c *Ctx) ropeTable(x, table *Tensor) *Tensor {
	table = c.dense(table)
	view := table.broadcastView([]int{x.shape[0], x.shape[2], table.shape[table.ndim-1]})
	t := table.alias()
	t.ndim, t.shape, t.stride = view.NDim, view.Shape, view.Stride
	return t
}
