// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// sameEverywhere are the ops that Autocast leaves alone: their results have the dtype of the operands, or one that the
// caller names.
var sameEverywhere = map[string]bool{}

func init() {
	for _, name := range []string{
		"Zeros", "ZerosLike", "Ones", "Full", "Scalar", "Arange", "Uniform", "Normal", "Dropout", // creation, chance
		"Tanh", "SoftCap", "Sigmoid", "ReLU", "GELU", "GELUTanh", "SiLU", "LeakyReLU", "ELU", // activations
		"Sqrt", "Sin", "Cos", "Neg", "Abs", "Affine", "Clamp", "Not", "And", "Or", // elementwise
		"Max", "Min", "ArgMax", "ArgMin", "TopK", "MaxPool2D", "AvgPool2D", "GlobalAvgPool2D", // choices and windows
		"Embedding", "OneHot", "Gather", "RoPE", "Pad", // indexing
		"BatchNorm", "BatchNormWith", // whose statistics and parameters are float32
		// views
		"Contiguous", "Clone", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Permute", "Transpose", "Expand",
		"Slice", "Select", "Split",
		// in place
		"CopyInto", "FillInto", "AxpbyInto", "AddInto", "AddRowsInto", "AddOwnRowsInto", "ScaleInto", "ScaleByInto",
		"AdamMoments", "AdamW", "StochasticRoundInto", "SumSquaresAll",
	} {
		sameEverywhere[name] = true
	}
}

// RunPrecisions checks that each op computes in its precision under Autocast, forward and backward, and that each has
// one or is known to need none.
func RunPrecisions(t *testing.T, open func(t *testing.T) *tensor.Device) {
	r := runner{dev: open(t)}
	for _, lower := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		for _, op := range Table() {
			p, ok := tensor.PrecisionOf(op.Name)
			require.True(t, ok != sameEverywhere[op.Name],
				"%s: want a row in tensor's precisions, or in sameEverywhere", op.Name)
			if ok {
				t.Run(lower.String()+"/"+op.Name, func(t *testing.T) { r.precision(t, op, p, lower) })
			}
		}
	}
}

// precision runs the samples with float32 operands, and those of other than lower precision with operands of which all,
// or the first, are of the lower dtype. Gradients have the dtypes of the operands.
func (r *runner) precision(t *testing.T, op Op, p tensor.Precision, lower tensor.DType) {
	none := func(int) bool { return false }
	r.precisionOf(t, op, p, lower, none)
	switch p {
	case tensor.Wide:
		r.precisionOf(t, op, p, lower, func(int) bool { return true })
	case tensor.Widest:
		r.precisionOf(t, op, p, lower, func(operand int) bool { return operand == 0 })
	}
}

func (r *runner) precisionOf(t *testing.T, op Op, p tensor.Precision, lower tensor.DType,
	isLower func(operand int) bool) {
	want := tensor.Float32
	switch op.Name {
	case "LinearCrossEntropy", "LinearLogProbs", "LinearCrossEntropyCapped", "LinearLogProbsCapped": // losses
	case "LayerNormLowered", "RMSNormLowered": // rounded afterwards
		want = lower
	default:
		if p == tensor.Lower {
			want = lower
		}
	}
	for _, s := range op.Samples {
		if s.Large {
			continue
		}
		in := s.values(op.Name, tensor.Float32)
		r.c = tensor.NewCtx(r.dev).Autocast(lower)
		r.c.WithRandom(seed, position).Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			ts := make([]*tensor.Tensor, len(in))
			var leaves []*tensor.Tensor
			floats := 0
			for i, x := range s.In {
				if x.None {
					continue
				}
				dt := x.DType
				if dt == tensor.Invalid {
					if dt = tensor.Float32; isLower(floats) {
						dt = lower
					}
					floats++
				}
				ts[i] = upload(c, in[i], dt, nil)
				if x.Diff && dt.IsFloat() {
					leaves = append(leaves, ts[i].SetRequiresGrad(true))
				}
			}
			var roots []*tensor.Tensor
			for i, y := range s.Apply(c, tensor.Float32, ts) {
				// of which partial sums are float64
				if i == 0 && y.DType().IsFloat() && (floats > 1 || p != tensor.Widest) && op.Name != "SumSquares" {
					require.Equal(t, want, y.DType(), s.Name)
				}
				if y.RequiresGrad() {
					roots = append(roots, y)
				}
			}
			if len(roots) == 0 {
				return nil
			}
			grads := make([]*tensor.Tensor, len(roots))
			for i, y := range roots {
				grads[i] = tensor.Ones(c, y.DType(), y.Shape()...)
			}
			for i, g := range tensor.Backward(c, roots, grads, leaves) {
				if g != nil {
					require.Equal(t, leaves[i].GradDType(), g.DType(), "%s: gradient %d", s.Name, i)
				}
			}
			return nil
		})
	}
}
