// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/nn"
)

// tensors is what the arguments say of divided matrices.
type tensors struct {
	plan  map[string]string // styles by the paths of modules, in place of the model's of the same path
	parts int               // of each sum that ranks share; 0: as many as most, or fewer
	most  int
}

// settle finds the plan of a model and the number of parts on so many ranks. The error has all that is wrong.
func (t tensors) settle(tree *nn.Tree, model nn.Module, ranks int) (plan tp.Plan, parts int, err error) {
	text := map[string]string{}
	if planned, ok := model.(interface{ TPPlan() map[string]string }); ok {
		text = maps.Clone(planned.TPPlan())
	}
	if maps.Copy(text, t.plan); len(text) == 0 {
		return nil, 0, fmt.Errorf("tp_plan is auto, and %T has no plan (models.TensorParallel): want a style for each "+
			"matrix, as --tp_plan '{%s}', of %s", model, strings.Join(tp.Example(tree), ", "), tp.StyleNames())
	}
	if len(tree.Trackers()) > 0 {
		err = errors.New("the model tracks statistics of its batches (batch norm), which is not built with divided " +
			"matrices: want a model without, or tp_size 1 and tp_parts 1")
	}
	plan, wrong := tp.ParsePlan(text)
	if wrong != nil {
		return nil, 0, errors.Join(err, wrong)
	}
	if parts = t.parts; parts == 0 {
		parts = plan.Parts(tree, ranks, t.most)
	}
	_, wrong = plan.Resolve(tree, tp.Size{Ranks: ranks, Parts: parts})
	return plan, parts, errors.Join(err, wrong)
}

// Divided reports whether the prepared model is divided, or on one rank its sums.
func (a *Accelerator) Divided() bool { return a.division != nil }

// TensorParts is how many parts each sum of the prepared model has that ranks along tp share (tp_parts); 0 if it is not
// divided.
func (a *Accelerator) TensorParts() int {
	if a.division == nil {
		return 0
	}
	return a.division.Parts()
}

// divides reports whether Prepare divides the model, or its sums.
func (a *Accelerator) divides() bool {
	return a.TensorRanks().WorldSize() > 1 || a.plan.tensors.parts > 1
}

// joinTensor divides the model and makes this rank part of those with the same parts.
func (a *Accelerator) joinTensor(ctx context.Context, hook ddp.Hook, units []nn.Module) error {
	if err := a.divide(ctx, hook, nil); err != nil {
		return err
	}
	inner, err := a.choose(hook, a.strategyJob(units))
	if err != nil {
		a.division = nil
		return err
	}
	a.strategy = tp.NewStrategy(a.ctx, a.division, inner)
	return nil
}

// divide divides the model, which gets the first rank's values. See tp.Config for made.
func (a *Accelerator) divide(ctx context.Context, hook ddp.Hook, made func() error) error {
	if err := a.checkTensor(hook); err != nil {
		return err
	}
	plan, parts, err := a.plan.tensors.settle(a.tree, a.model, a.TensorRanks().WorldSize())
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	d, err := a.parts(ctx, tp.Config{Group: a.TensorRanks().Group(), Plan: plan, Parts: parts, Made: made})
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	a.tree = d.Tree()
	if err := a.findTrained(); err != nil {
		return err
	}
	a.division = d
	return nil
}

// checkTensor refuses what does not go together with tensor parallelism.
func (a *Accelerator) checkTensor(hook ddp.Hook) error {
	size := fmt.Sprintf("accelerate: tp_size %d: ", a.TensorRanks().WorldSize())
	if a.TensorRanks().WorldSize() == 1 {
		size = fmt.Sprintf("accelerate: tp_parts %d: ", a.plan.tensors.parts)
	}
	const whole = ", or tp_size 1 and tp_parts 1"
	switch disk := a.plan.disk; {
	case a.factory.New != nil:
		return errors.New(size + "with a strategy of the program (WithStrategy) it is not built: want one of both")
	case a.plan.local.Every > 0:
		return fmt.Errorf("%slocal_sgd_steps %d: want 0%s: the ranks step together", size, a.plan.local.Every, whole)
	case hook.Name() != ddp.AllReduce.Name():
		return fmt.Errorf("%sddp_comm_hook %s is not built with it: want no%s", size, hook.Name(), whole)
	case disk.params || disk.state:
		return errors.New(size + "offload to disk is not built with it: want offload_params and offload_optimizer " +
			"none" + whole)
	}
	return nil
}
