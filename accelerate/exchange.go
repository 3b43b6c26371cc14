// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// join makes this rank part of the job: see Prepare.
func (a *Accelerator) join(ctx context.Context, units []nn.Module) error {
	hook, err := commHook(a.hook, a.plan.exchange)
	if err != nil {
		return err
	}
	if err := a.compare(ctx, hook); err != nil {
		return err
	}
	all := a.tree.State() // those that are not trained too
	differed, err := verify(ctx, a, all)
	if err != nil {
		return err
	}
	if err := a.reportDiffering(ctx, differed, len(all)); err != nil {
		return err
	}
	if a.plan.job.group.FastOrder && a.IsMain() {
		a.log.Warn("gradients are added in any order: results depend on the number of ranks", "ddp_reduction_order",
			"fast")
	}
	if hook.Lossy() && a.IsMain() {
		a.log.Warn("gradients are not summed exactly: results depend on the number of ranks", "ddp_comm_hook",
			hook.Name())
	}
	if a.plan.local.every > 0 {
		if err := checkLocal(a, hook); err != nil {
			return err
		}
		if a.IsMain() {
			a.log.Warn("ranks step on their own and average their parameters: results depend on the number of ranks",
				"local_sgd_steps", a.plan.local.every, "start_local_sgd_iter", a.plan.local.after)
		}
	}
	group := a.Loss().group
	switch {
	case group == nil: // all ranks see the same data
		return nil
	case a.sharding.Strategy != shard.None && a.shardPeers().size > 1:
		if hook.Lossy() || hook.Name() != ddp.AllReduce.Name() {
			return fmt.Errorf("accelerate: ddp_comm_hook %s with a model that is sharded (%s): want no hook, since "+
				"shards of gradients are summed exactly, or no sharding", hook.Name(), a.sharding.Strategy)
		}
		err = shardGradients(a, a.shardPeers().group, units)
	case startsLocal(a, 0):
		stepAlone(a, 0)
		return nil
	default:
		if err := checkStateful(a, hook); err != nil {
			return err
		}
		o := a.plan.exchange.buckets
		o.Hook, o.Trace = hook, a.Trace()
		err = reduceGradients(a, group, o)
	}
	if err != nil {
		return err
	}
	for i, p := range a.params {
		a.unhook = append(a.unhook, p.OnGrad(func(*tensor.Ctx, *tensor.Tensor) {
			if a.grads.sends() {
				a.grads.ready(i)
			}
		}))
	}
	return nil
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

// checkLocal refuses what local SGD does not go with.
func checkLocal(a *Accelerator, hook ddp.Hook) error {
	switch {
	case a.sharding.Strategy != shard.None:
		return fmt.Errorf("accelerate: local_sgd_steps %d with a model that is sharded (%s): want 0, since a rank "+
			"steps with its shard only, or no sharding", a.plan.local.every, a.sharding.Strategy)
	case hook.Lossy() || hook.Name() != ddp.AllReduce.Name():
		return fmt.Errorf("accelerate: local_sgd_steps %d with ddp_comm_hook %s: want no hook, since ranks that step "+
			"on their own exchange no gradients, or 0", a.plan.local.every, hook.Name())
	}
	return nil
}

// checkStateful refuses a hook with a state where that cannot be kept.
func checkStateful(a *Accelerator, hook ddp.Hook) error {
	_, ok := hook.(ddp.Stateful)
	switch {
	case ok && a.scaler != nil:
		return fmt.Errorf("accelerate: ddp_comm_hook %s keeps gradients from step to step, and the scale of fp16 "+
			"changes: want bf16 or float32", hook.Name())
	case ok && a.Data().Size() != a.size:
		return fmt.Errorf("accelerate: ddp_comm_hook %s keeps a state, which is saved for %d ranks that share the "+
			"data only, of %d: want a hook without state", hook.Name(), a.Data().Size(), a.size)
	}
	return nil
}

// BeginWindow prepares the exchange for the next window. It is collective: call it on
// every rank before each window.
func (a *Accelerator) BeginWindow(ctx context.Context) error {
	r, ok := a.grads.(*reduced)
	if !ok {
		return nil
	}
	if startsLocal(a, r.steps) {
		return leaveExchange(ctx, a, r)
	}
	return r.rebuild(ctx)
}

// SyncParameters copies the values of m's parameters and buffers from the first rank of those that hold the same part
// of the model, rank 0 without pipeline or tensor parallelism, to the others.
func (a *Accelerator) SyncParameters(ctx context.Context, m nn.Module) error {
	_, err := verify(ctx, a, nn.Walk(m).State())
	return err
}

// verify is ddp.Verify among the ranks that hold the same part of the model; others hold other parameters.
func verify(ctx context.Context, a *Accelerator, state []tensor.Named) (differed int, err error) {
	peers := a.samePart()
	if peers.group == nil {
		return 0, nil
	}
	return ddp.Verify(ctx, a.ctx, peers.group, state)
}

// release takes the gradients out of the exchange, and the parameters out of their shards: see gradients.close.
func release(a *Accelerator, whole bool) error {
	for _, f := range a.unhook {
		f()
	}
	a.unhook = nil
	if a.grads == nil {
		return nil
	}
	if !whole && a.GathersParameters() {
		a.torn = a.tree
	}
	grads := a.grads
	err := errors.Join(grads.close(whole), a.disk.close(a.ctx.NoGrad()))
	a.grads = newWhole(a)
	return err
}

// Unshard ends what Prepare began: the parameters of a sharded model become whole again, on every rank, and
// can be read and saved by each alone. It is collective. Prepare follows it before training goes on.
func (a *Accelerator) Unshard(ctx context.Context) error {
	if err := a.Barrier(ctx); err != nil { // a group that failed gives nothing back
		return err
	}
	return release(a, true)
}

// Close leaves the rank's group without waiting for the others. Open makes a new one for further collective work. The
// process stays in its job until it ends.
func (a *Accelerator) Close() error {
	if a.group == nil {
		return a.disk.close(a.ctx.NoGrad())
	}
	if a.unwatch != nil { // a group of the program's own is its own to watch
		a.unwatch()
		a.unwatch = nil
	}
	err := errors.Join(a.roles.close(), a.group.Close(), release(a, false))
	a.group = nil
	return err
}
