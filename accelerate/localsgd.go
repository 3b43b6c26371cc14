// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// alone are the gradients of a rank that steps on its own: local SGD (Stich 2019; Lin et al. 2020). Every so many steps
// the ranks average their parameters.
type alone struct {
	*whole
	steps     int64 // of the job so far
	since     int64 // the step after which the averages are counted
	averaged  int64 // the step after which the parameters were averaged last
	different bool  // the ranks' parameters are not the same
}

// startsLocal reports whether ranks step on their own from the step after the first so many on.
func startsLocal(a *Accelerator, steps int64) bool {
	return a.plan.local.every > 0 && a.Data().group != nil && steps >= a.plan.local.after
}

// stepAlone makes a's gradients those.
func stepAlone(a *Accelerator, steps int64) {
	a.grads = &alone{whole: newWhole(a), steps: steps, since: a.plan.local.after, averaged: steps}
}

func (l *alone) finish(ctx context.Context) error {
	l.steps++
	return l.whole.finish(ctx)
}

// norm is that of this rank's gradients; NaN if that of any rank is not finite, so that all leave out the same steps.
func (l *alone) norm(ctx context.Context) (float64, error) {
	norm := optim.GradNorm(l.a.ctx, l.a.params)
	sum := []float64{norm}
	if err := l.a.Data().SumFloats(ctx, sum, "gradient norms"); err != nil {
		return 0, err
	}
	if !finite(sum[0]) {
		norm = math.NaN()
	}
	return norm, nil
}

// local is nil, since the ranks must leave out the same steps.
func (l *alone) local() []tensor.Named { return nil }

func (l *alone) stepped(ctx context.Context) error {
	l.different = true
	return l.averageIfDue(ctx)
}

// averageIfDue averages the parameters after each local_sgd_steps windows, whether or not a rank had loss terms in
// them.
func (l *alone) averageIfDue(ctx context.Context) error {
	every := l.a.plan.local.every
	if (l.steps-l.since)/every == (l.averaged-l.since)/every {
		return nil
	}
	return l.average(ctx)
}

// average makes the parameters the means over the ranks. It is collective.
func (l *alone) average(ctx context.Context) error {
	l.averaged = l.steps
	if !l.different {
		return nil
	}
	l.different = false
	if err := ddp.CheckFrozen(ctx, l.a.Data().group, l.a.params); err != nil {
		return err
	}
	var list []*tensor.Tensor
	size := 0
	for i, p := range l.a.params {
		list = append(list, p.Tensor)
		size += 4 * p.Numel()
		if size >= ddp.BucketBytes || i == len(l.a.params)-1 {
			if err := averageTensors(ctx, l.a, list, "average of parameters"); err != nil {
				return err
			}
			list, size = nil, 0
		}
	}
	return nil
}

// averageTensors makes tensors the means over the ranks: the sum in the group's tree, in float32 (float64 of float64
// tensors), divided by the number of ranks and rounded to the tensor's dtype. All ranks get the same bits.
func averageTensors(ctx context.Context, a *Accelerator, list []*tensor.Tensor, label string) error {
	c := a.ctx.NoGrad()
	var narrow []float32
	var wide []float64
	if err := tensor.Try(func() {
		for _, t := range list {
			if t.DType() == tensor.Float64 {
				wide = append(wide, tensor.ToSlice[float64](c, t)...)
				continue
			}
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				narrow = append(narrow, tensor.ToSlice[float32](c, tensor.Cast(c, t, tensor.Float32))...)
				return nil
			})
		}
	}); err != nil {
		return err
	}
	peers := a.Data()
	sum := func(b comm.Buffer) error {
		if err := peers.group.AllReduce(b, comm.Sum, comm.Label(label)).Wait(ctx); err != nil {
			return fmt.Errorf("accelerate: %s: %w", label, err)
		}
		return nil
	}
	if err := sum(comm.Of(narrow)); err != nil {
		return err
	}
	if len(wide) > 0 {
		if err := sum(comm.Of(wide)); err != nil {
			return err
		}
	}
	for i := range narrow {
		narrow[i] /= float32(peers.size)
	}
	for i := range wide {
		wide[i] /= float64(peers.size)
	}
	return tensor.Try(func() {
		for _, t := range list {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				n := t.Numel()
				var mean *tensor.Tensor
				if t.DType() == tensor.Float64 {
					mean, wide = tensor.FromSlice(c, wide[:n], t.Shape()...), wide[n:]
				} else {
					mean, narrow = tensor.FromSlice(c, narrow[:n], t.Shape()...), narrow[n:]
				}
				tensor.CopyInto(c, t, tensor.Cast(c, mean, t.DType()))
				return nil
			})
		}
	})
}

// AverageParameters makes the parameters of ranks that step on their own (local_sgd_steps) the means over the ranks, as
// happens every local_sgd_steps steps. Call it where the ranks must have the same model: before an evaluation and
// at the end. It is collective. Without local SGD it does nothing.
func AverageParameters(ctx context.Context, a *Accelerator) error {
	if l, ok := a.grads.(*alone); ok {
		return l.average(ctx)
	}
	return nil
}

// AverageState is AverageParameters that averages the optimizer's state too, so that what rank 0 saves is all that
// there is: a run that goes on from it has the bits of the one that saved it. Of steps that ranks counted differently
// the most counts.
func AverageState(ctx context.Context, a *Accelerator) error {
	l, ok := a.grads.(*alone)
	if !ok {
		return nil
	}
	if err := l.average(ctx); err != nil || a.opt == nil {
		return err
	}
	own := a.opt.State()
	text, err := json.Marshal(own.Steps)
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	all, err := a.Data().GatherBytes(ctx, text)
	if err != nil {
		return err
	}
	steps := map[string]int64{}
	for _, text := range all {
		var theirs map[string]int64
		if err := json.Unmarshal(text, &theirs); err != nil {
			return fmt.Errorf("accelerate: %w", err)
		}
		for name, n := range theirs {
			steps[name] = max(steps[name], n)
		}
	}
	state := map[string]optim.Saved{}
	for name, t := range own.Tensors {
		state[name] = optim.Saved{DType: t.DType(), Shape: t.Shape(),
			Read: func(into *tensor.Tensor) (tensor.Census, error) {
				return tensor.Census{}, averageTensors(ctx, a, []*tensor.Tensor{into}, "average of "+name)
			}}
	}
	return a.opt.ReadState(own.Name, steps, state)
}

// SetSteps says how many steps a prepared job has done already, as a resumed one has: start_local_sgd_iter and
// local_sgd_steps count from the first. It is collective.
func SetSteps(ctx context.Context, a *Accelerator, steps int64) error {
	switch g := a.grads.(type) {
	case *alone:
		g.steps, g.averaged = steps, steps
	case *reduced:
		if g.steps = steps; startsLocal(a, steps) {
			return leaveExchange(ctx, a, g)
		}
	}
	return nil
}

// leaveExchange ends the exchange of gradients: from here on the ranks step on their own.
func leaveExchange(ctx context.Context, a *Accelerator, r *reduced) error {
	if err := a.Data().Barrier(ctx); err != nil { // the last step's buckets are read
		return err
	}
	r.reset()
	if err := r.close(false); err != nil {
		return err
	}
	stepAlone(a, r.steps)
	if a.IsMain() {
		a.log.Info("ranks step on their own from here on", "step", r.steps+1, "local_sgd_steps", a.plan.local.every)
	}
	return nil
}
