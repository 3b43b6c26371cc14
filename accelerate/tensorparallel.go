// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/nn"
)

// TensorParallel is how a model's matrices are divided among the ranks along tp.
type TensorParallel struct {
	// Plan is styles by the paths of modules, see tp.ParsePlan; nil: that of the model (models.TensorParallel).
	Plan map[string]string
	// Parts is how many parts each sum has that ranks share: the same number has the same bits on any number of ranks
	// along tp, one included. 0 stands for the number of ranks.
	Parts int
}

// WithTensorParallel divides the model's matrices among the ranks along tp. On one rank it forms sums in parts.
func WithTensorParallel(t TensorParallel) Option { return func(a *Accelerator) { a.tensor = &t } }

// Divided reports whether the prepared model is divided, or on one rank its sums.
func (a *Accelerator) Divided() bool { return a.division != nil }

// divides reports whether Prepare divides the model, or its sums.
func (a *Accelerator) divides() bool {
	return a.tensor != nil && (a.TensorRanks().WorldSize() > 1 || a.tensor.Parts > 1)
}

// joinTensor divides the model, which has the first rank's values, and makes this rank part of those with the same
// parts.
func (a *Accelerator) joinTensor(ctx context.Context, hook ddp.Hook, units []nn.Module) error {
	if err := a.checkTensor(hook); err != nil {
		return err
	}
	text := a.tensor.Plan
	if planned, ok := a.model.(interface{ TPPlan() map[string]string }); ok && text == nil {
		text = planned.TPPlan()
	}
	if text == nil {
		return fmt.Errorf("accelerate: tp_size %d: %T has no plan (models.TensorParallel): want a model with one, or "+
			"a plan", a.TensorRanks().WorldSize(), a.model)
	}
	plan, err := tp.ParsePlan(text)
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	if a.Group() != nil {
		state := a.tree.State()
		differed, err := ddp.Verify(ctx, a.ctx, a.Group(), state)
		if err == nil {
			err = a.reportDiffering(ctx, differed, len(state))
		}
		// a rank that is a goroutine may copy parameters from another one's model, which is divided next
		if err = errors.Join(err, a.Barrier(ctx)); err != nil {
			return err
		}
	}
	d, err := tp.Divide(a.ctx, a.model, tp.Config{Group: a.TensorRanks().Group(), Plan: plan, Parts: a.tensor.Parts})
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	a.tree = d.Tree()
	if err := a.findTrained(); err != nil {
		return err
	}
	inner, err := a.choose(hook, a.strategyJob(units))
	if err != nil {
		return err
	}
	a.strategy, a.division = tp.NewStrategy(a.ctx, d, inner), d
	return nil
}

// checkTensor refuses what does not go together with tensor parallelism.
func (a *Accelerator) checkTensor(hook ddp.Hook) error {
	size := fmt.Sprintf("accelerate: tp_size %d: ", a.TensorRanks().WorldSize())
	switch disk := a.plan.disk; {
	case a.PipelineRanks().WorldSize() > 1:
		return errors.New(size + "with pp_size it is not built: want pp_size 1")
	case a.DividesTokens():
		return errors.New(size + "with divided tokens (cp_size, cp_chunks) it is not built: want none of them")
	case a.sharded():
		return errors.New(size + "with a sharded model (fsdp, zero_stage) it is not built: want no sharding")
	case a.factory.New != nil:
		return errors.New(size + "with a strategy of the program (WithStrategy) it is not built: want one of both")
	case a.plan.local.Every > 0:
		return fmt.Errorf("%slocal_sgd_steps %d: want 0: the ranks step together", size, a.plan.local.Every)
	case hook.Name() != ddp.AllReduce.Name():
		return fmt.Errorf("%sddp_comm_hook %s is not built with it: want no", size, hook.Name())
	case a.stats != nil:
		return fmt.Errorf("%sthe model tracks statistics of its batches (batch norm): not built with it: want a model "+
			"without, or tp_size 1", size)
	case disk.params || disk.state:
		return errors.New(size + "offload to disk is not built with it: want offload_params and offload_optimizer none")
	}
	return nil
}
