// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// idle is a transform that promises nothing, so that the host decides about each step.
type idle struct{}

func (idle) Traits() optim.Traits { return optim.Traits{Elementwise: true} }

func (idle) State(tensor.Named) []optim.StateTensor                                     { return nil }
func (idle) Apply(*tensor.Ctx, tensor.Named, *optim.Group, *optim.Slot, *tensor.Tensor) {}

// cliff is x with an infinite gradient.
func cliff(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Custom(c, tensor.CustomOp{
		Name: "cliff",
		Forward: func(c *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) {
			return []*tensor.Tensor{tensor.Clone(c, in[0])}, nil
		},
		Backward: func(c *tensor.Ctx, _, grads []*tensor.Tensor, _ []bool) []*tensor.Tensor {
			return []*tensor.Tensor{tensor.Affine(c, grads[0], math.Inf(1), 0)}
		},
	}, x)[0]
}

// updated is what a rank has after some steps.
type updated struct {
	weights map[string]string
	steps   map[string]int64
	scale   float64
	numbers []accelerate.Numbers
	waits   []int64
}

// updates runs five pending steps. In the second the first micro-batch's loss is NaN and the gradients are finite;
// in the fourth the gradients are not. With byHost the optimizer does not step alone.
func updates(t *testing.T, ranks int, set func(*args.TrainingArguments), byHost bool) []updated {
	be := deferred.New(1)
	dev := joint.Device[*tensor.Device](be)
	defer dev.Close()
	var list []*accelerate.Accelerator
	if ranks > 1 {
		list = accelerators(t, ranks, func(_ int, a *args.TrainingArguments) { set(a) }, accelerate.WithDevice(dev))
	} else {
		a := rankArgs(1)
		set(a)
		acc, err := accelerate.New(a, accelerate.WithDevice(dev))
		require.NoError(t, err)
		list = append(list, acc)
	}
	got := make([]updated, ranks)
	for _, err := range job(t, list, func(acc *accelerate.Accelerator) error {
		m := newNet(dev, 1)
		newOptimizer := func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
			groups := []*optim.Group{{Params: params, LR: 1e-2, WeightDecay: 0.1}}
			if byHost {
				return optim.New(c, "adamw", groups, optim.DecoupledDecay{},
					optim.ScaleByAdam(optim.DefaultAdamW()), idle{}), nil
			}
			return optim.DefaultAdamW().New(c, groups), nil
		}
		if err := acc.Prepare(t.Context(), m, newOptimizer); err != nil {
			return err
		}
		u := &got[acc.Rank()]
		own := 8 / ranks
		for s := range 5 {
			var batches []*data.Batch
			for i := range own {
				batches = append(batches, batch(acc.Ctx(), 8*s+own*acc.Rank()+i, true))
			}
			first := batches[0]
			acc.Ctx().Sync()
			before := be.HostWaits()
			lossOf := func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
				loss := m.loss(c, b)
				if b == first && acc.Rank() == 0 {
					switch s {
					case 1:
						loss = tensor.Affine(c.Ctx, loss, 1, math.NaN()) // the gradient is as it was
					case 3:
						loss = cliff(c.Ctx, loss)
					}
				}
				return accelerate.Output{Loss: loss, Count: b.Count}, nil
			}
			step, err := acc.StartWindow(t.Context(), batches, accelerate.WindowOptions{Loss: lossOf})
			if err != nil {
				return err
			}
			if err := step.Clip(t.Context(), 0.5); err != nil {
				return err
			}
			if err := step.Step(t.Context()); err != nil {
				return err
			}
			n, err := step.Read(t.Context())
			if err != nil {
				return err
			}
			u.waits = append(u.waits, be.HostWaits()-before)
			step.Free()
			u.numbers = append(u.numbers, n)
		}
		if err := acc.Unshard(t.Context()); err != nil {
			return err
		}
		u.weights, u.steps = weights(acc, m), acc.Optimizer().State().Steps
		if s := acc.Scaler(); s != nil {
			u.scale = s.Scale
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	return got
}

// A step that the device decides about has the bits of one that the host does, on one rank and on two, and leaves out
// the same steps.
func TestUpdateOnTheDeviceIsThatOfTheHost(t *testing.T) {
	for name, set := range map[string]func(*args.TrainingArguments){
		"float32": func(*args.TrainingArguments) {},
		"fp16":    func(a *args.TrainingArguments) { a.FP16, a.FP16InitialScale = true, 4 },
	} {
		host := updates(t, 1, set, true)[0]
		for i, n := range host.numbers {
			require.Equal(t, i != 1 && i != 3, n.Finite, "%s, step %d", name, i+1)
			require.Equal(t, name == "fp16" && i == 3, n.Overflow, "%s, step %d", name, i+1)
		}
		for _, n := range host.steps {
			require.EqualValues(t, 3, n)
		}
		for _, ranks := range []int{1, 2} {
			for _, byHost := range []bool{false, true} {
				for _, got := range updates(t, ranks, set, byHost) {
					require.Equal(t, host.weights, got.weights, "%s, %d ranks", name, ranks)
					require.Equal(t, host.steps, got.steps)
					require.Equal(t, host.scale, got.scale)
					if ranks == 1 && !byHost {
						require.Equal(t, []int64{1, 1, 1, 1}, got.waits[1:])
					}
				}
			}
		}
	}
}
