// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"math/rand/v2"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Op is a row of the table.
type Op struct {
	Name    string         // of the function in package tensor
	DTypes  []tensor.DType // that the op supports for its typed inputs; others are refused
	Samples []Sample
	Misuse  []Misuse
	Slack   float64 // multiplies the tolerances of the dtype sweep; 0 means 1
}

// Sample is one call of an op.
type Sample struct {
	Name string
	In   []Input
	// Apply calls the op. dt is the dtype under test, that of the typed inputs.
	Apply func(c *tensor.Ctx, dt tensor.DType, in []*tensor.Tensor) []*tensor.Tensor
	// Want is the oracle; nil where goldens or other rows are.
	Want Oracle
	// FloatsOnly leaves the integer dtypes and Bool out of the dtype sweep.
	FloatsOnly bool
	// Rough samples are not compared with finite differences: they round or jump.
	Rough bool
	// Large samples are big enough to be split among workers. They are compared
	// between devices only.
	Large bool
}

// Input describes an operand.
type Input struct {
	Shape []int
	Fill  Fill
	DType tensor.DType // zero: the dtype under test
	Diff  bool         // the op is differentiable with respect to it
	None  bool         // an optional operand that is left out: nil
}

// Misuse is a call that must panic with *tensor.Error of the row's name, or, if Fault is
// set, with the backend's fault.
type Misuse struct {
	Name  string
	Fault bool
	Want  string // part of the message
	Call  func(c *tensor.Ctx)
}

// Fill makes n values.
type Fill func(r *rand.Rand, n int) []float64

func each(draw func(r *rand.Rand) float64) Fill {
	return func(r *rand.Rand, n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = draw(r)
		}
		return v
	}
}

var (
	normal   = each(func(r *rand.Rand) float64 { return r.NormFloat64() })
	positive = each(func(r *rand.Rand) float64 { return 0.5 + 2*r.Float64() })
	coin     = each(func(r *rand.Rand) float64 { return float64(r.IntN(2)) })
	small    = each(func(r *rand.Rand) float64 { return float64(r.IntN(3)) })
	// nonzero stays away from 0, where functions have kinks and poles.
	nonzero = each(func(r *rand.Rand) float64 { return (0.3 + r.Float64()) * float64(2*r.IntN(2)-1) })
)

// distinct values lie at least 0.17 apart, so that maxima are unique.
func distinct(r *rand.Rand, n int) []float64 {
	v := make([]float64, n)
	for i, p := range r.Perm(n) {
		v[i] = 0.17*float64(p-n/2) + 0.05
	}
	return v
}

// below draws indices 0 ≤ i < n, and given keeps values as they are.
func below(n int) Fill { return each(func(r *rand.Rand) float64 { return float64(r.IntN(n)) }) }

func given(v ...float64) Fill { return func(*rand.Rand, int) []float64 { return v } }

// The kinds of operands: differentiable, typed but not differentiable, bool, index.

func diff(fill Fill, shape ...int) Input  { return Input{Shape: shape, Fill: fill, Diff: true} }
func typed(fill Fill, shape ...int) Input { return Input{Shape: shape, Fill: fill} }
func flags(shape ...int) Input            { return Input{Shape: shape, Fill: coin, DType: tensor.Bool} }
func index64(fill Fill, shape ...int) Input {
	return Input{Shape: shape, Fill: fill, DType: tensor.Int64}
}
func index32(fill Fill, shape ...int) Input {
	return Input{Shape: shape, Fill: fill, DType: tensor.Int32}
}
func none() Input { return Input{None: true} }

// The dtypes that ops support.
var (
	floats  = []tensor.DType{tensor.Float64, tensor.Float32, tensor.BFloat16, tensor.Float16}
	signed  = append(floats[:4:4], tensor.Int32, tensor.Int64)
	numbers = append(signed[:6:6], tensor.Uint8)
	all     = append(numbers[:7:7], tensor.Bool)
	bools   = []tensor.DType{tensor.Bool}
)

// unary and binary adapt functions to Sample.Apply.
func unary(f func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor) func(*tensor.Ctx, tensor.DType,
	[]*tensor.Tensor) []*tensor.Tensor {
	return func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{f(c, in[0])}
	}
}

func binary(f func(c *tensor.Ctx, x, y *tensor.Tensor) *tensor.Tensor) func(*tensor.Ctx, tensor.DType,
	[]*tensor.Tensor) []*tensor.Tensor {
	return func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{f(c, in[0], in[1])}
	}
}

func ternary(f func(c *tensor.Ctx, x, y, z *tensor.Tensor) *tensor.Tensor) func(*tensor.Ctx, tensor.DType,
	[]*tensor.Tensor) []*tensor.Tensor {
	return func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{f(c, in[0], in[1], in[2])}
	}
}

// Table returns all ops.
func Table() []Op {
	var rows []Op
	for _, group := range [][]Op{
		unaryOps(), binaryOps(), logicOps(), reductions(), viewOps(), joinOps(), padOps(), rowOps(), topKOps(),
		normOps(), batchNormOps(),
		llamaOps(), indexOps(), products(), creation(), randomOps(), inPlaceOps(), imageOps(), bceOps(),
	} {
		rows = append(rows, group...)
	}
	return rows
}

// zeros is an operand for misuse.
func zeros(c *tensor.Ctx, shape ...int) *tensor.Tensor {
	return tensor.Zeros(c, tensor.Float32, shape...)
}
