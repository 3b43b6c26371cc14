// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/offload"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// offloaded is what a rank keeps on disk.
type offloaded struct {
	params, state *offload.Store // nil: in memory
	moved         []tensor.Named // parameters that are in params whole
}

// openStore makes a store if one is wanted.
func openStore(wanted bool, dir string) (*offload.Store, error) {
	if !wanted {
		return nil, nil
	}
	s, err := offload.New(dir)
	if err != nil {
		return nil, fmt.Errorf("accelerate: %w", err)
	}
	return s, nil
}

// offloadParams moves the parameters of a single rank to disk, where the plan wants that. Shards of several ranks
// are made there, see shardGradients.
func offloadParams(a *Accelerator) (err error) {
	disk := a.plan.disk
	if disk.host {
		if !a.dev.HostMemory() {
			return fmt.Errorf("accelerate: offload to cpu from the device %s is not built yet: want none or disk",
				a.dev.Name())
		}
		a.log.Info("offload to cpu changes nothing: the device computes in host memory")
	}
	if disk.params && a.Data().Size() > 1 && !a.sharding.Strategy.ShardsParameters() {
		return errors.New("accelerate: offload_params is disk: want none, or fsdp full_shard: without it each of " +
			"several " +
			"ranks keeps the whole parameters where others write them")
	}
	if a.disk.params, err = openStore(disk.params, disk.dir); a.disk.params == nil || a.WorldSize() > 1 {
		return err
	}
	c := a.ctx.NoGrad()
	for _, p := range a.tree.Parameters() {
		to, err := a.disk.params.Zeros(c, p.DType(), p.Shape()...)
		if err != nil {
			return fmt.Errorf("accelerate: parameter %s: %w", p.Name, err)
		}
		if err := tensor.Try(func() {
			old := tensor.Detach(p.Tensor)
			p.Rehome(c, to)
			c.Sync()
			old.Free()
		}); err != nil {
			return err
		}
		a.disk.moved = append(a.disk.moved, p)
	}
	return nil
}

// zerosOf is how a store makes tensors; nil without a store.
func zerosOf(s *offload.Store) optim.Zeros {
	if s == nil {
		return nil
	}
	return s.Zeros
}

// offloadState keeps the optimizer's state on disk, where the plan wants that.
func offloadState(a *Accelerator, opt *optim.Optimizer) (err error) {
	if a.disk.state, err = openStore(a.plan.disk.state, a.plan.disk.dir); a.disk.state == nil {
		return err
	}
	if err := opt.KeepState(a.disk.state.Zeros); err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	a.log.Info("the optimizer's state is on disk", "bytes", a.disk.state.Bytes())
	return nil
}

// close brings parameters back to memory and gives the files up.
func (o *offloaded) close(c *tensor.Ctx) error {
	var errs []error
	for _, p := range o.moved {
		errs = append(errs, tensor.Try(func() { p.Rehome(c, tensor.Empty(c, p.DType(), p.Shape()...)) }))
	}
	c.Sync()
	for _, s := range []*offload.Store{o.params, o.state} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	*o = offloaded{}
	return errors.Join(errs...)
}
