// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// join makes this rank part of the job: the ranks agree on what they do, begin with the same parameters, and follow a
// strategy.
func (a *Accelerator) join(ctx context.Context, units []nn.Module) error {
	hook, err := commHook(a.hook, a.plan.exchange)
	if err != nil {
		return err
	}
	if a.Group() != nil {
		if err := a.compare(ctx, hook); err != nil {
			return err
		}
	}
	if err := a.checkStrategy(hook); err != nil {
		return err
	}
	if a.IsMain() {
		a.warn(hook)
	}
	if a.PipelineRanks().WorldSize() > 1 {
		return a.joinPipeline(ctx, hook, units)
	}
	if a.divides() {
		err = a.joinTensor(ctx, hook, units)
	} else if err = a.equalize(ctx); err == nil {
		err = a.chooseStrategy(hook, units)
	}
	if err != nil {
		return err
	}
	for i, p := range a.params {
		a.unhook = append(a.unhook, p.AfterGrad(func(*tensor.Ctx, *tensor.Tensor) {
			if a.sends {
				a.strategy.Ready(i)
			}
		}))
	}
	return nil
}

// equalize gives every rank the first one's parameters, those that are not trained too.
func (a *Accelerator) equalize(ctx context.Context) error {
	state := a.tree.State()
	differed, err := a.verify(ctx, state)
	if err != nil {
		return err
	}
	return a.reportDiffering(ctx, differed, len(state))
}

// warn logs why results will depend on the number of ranks.
func (a *Accelerator) warn(hook ddp.Hook) {
	if a.plan.job.group.FastOrder {
		a.log.Warn("gradients are added in any order: results depend on the number of ranks", "ddp_reduction_order",
			"fast")
	}
	if hook.Lossy() {
		a.log.Warn("gradients are not summed exactly: results depend on the number of ranks", "ddp_comm_hook",
			hook.Name())
	}
	if l := a.plan.local; l.Every > 0 {
		a.log.Warn("ranks step independently and average their parameters: results depend on the number of ranks",
			"local_sgd_steps", l.Every, "start_local_sgd_iter", l.After)
	}
}

// commHook is what happens to gradients between ranks: the program's own hook, or that of the plan.
func commHook(own ddp.Hook, e exchange) (ddp.Hook, error) {
	if own != nil {
		return own, nil
	}
	h, err := ddp.HookByName(e.hook, e.hookSettings)
	if err != nil {
		return nil, fmt.Errorf("accelerate: ddp_comm_hook: %w", err)
	}
	return h, nil
}

// BeginWindow prepares the exchange for the next window. It is collective: call it on
// every rank before each window.
func (a *Accelerator) BeginWindow(ctx context.Context) error { return a.strategy.Open(ctx) }

// SyncParameters copies the values of m's parameters and buffers to the other ranks from the first rank that has the
// same part of the model. Without pipeline or tensor parallelism that is rank 0.
func (a *Accelerator) SyncParameters(ctx context.Context, m nn.Module) error {
	_, err := a.verify(ctx, nn.Walk(m).State())
	return err
}

// verify is ddp.Verify among the ranks that hold the same part of the model; others hold other parameters.
func (a *Accelerator) verify(ctx context.Context, state []tensor.Named) (differed int, err error) {
	peers := a.SamePartRanks()
	if peers.Group() == nil {
		return 0, nil
	}
	return ddp.Verify(ctx, a.ctx, peers.Group(), state)
}

// chooseStrategy sets the strategy; after an error it is the one before.
func (a *Accelerator) chooseStrategy(hook ddp.Hook, units []nn.Module) error {
	s, err := a.choose(hook, a.strategyJob(units))
	if err == nil {
		a.strategy = s
	}
	return err
}

// leave ends the strategy; see strategy.Strategy for whole.
func (a *Accelerator) leave(whole bool) error {
	for _, f := range a.unhook {
		f()
	}
	a.unhook = nil
	a.release()
	if !whole && a.GathersParameters() {
		a.torn = a.tree
	}
	err := a.strategy.Close(whole)
	if a.division != nil && whole && err == nil {
		a.tree = nn.Walk(a.model)
		err = a.findTrained()
	}
	a.pipeline, a.active, a.division = nil, nil, nil
	a.strategy = strategy.NewSingle(a.strategyJob(nil))
	return errors.Join(err, a.disk.Close(a.ctx.NoGrad()))
}

// Unshard undoes the sharding of Prepare: every rank has the whole parameters again, and can read and save them without
// the others. It is collective. Call Prepare again before training continues.
func (a *Accelerator) Unshard(ctx context.Context) error {
	if err := a.Barrier(ctx); err != nil { // a group that failed gives nothing back
		return err
	}
	return a.leave(true)
}

// Close leaves the rank's group without waiting for the others. Open makes a new one for further collective work. The
// process stays in its job until it ends.
func (a *Accelerator) Close() error {
	if a.Group() == nil {
		return a.disk.Close(a.ctx.NoGrad())
	}
	err := a.Ranks.Close()
	return errors.Join(err, a.leave(false)) // once nobody uses the gradients any more
}
