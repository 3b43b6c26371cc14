// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/optim"
)

// offloadParams moves the parameters of a single rank to disk, where the plan needs that. Shards of several ranks
// are made there by the strategy.
func (a *Accelerator) offloadParams() error {
	disk := a.plan.disk
	if disk.host {
		if !a.dev.HostMemory() {
			return fmt.Errorf("accelerate: offload to cpu from the device %s is not built yet: want none or disk",
				a.dev.Name())
		}
		a.log.Info("offload to cpu changes nothing: the device computes in host memory")
	}
	if !disk.params {
		return nil
	}
	if a.DataRanks().WorldSize() > 1 && !a.sharding.Strategy.ShardsParameters() {
		return errors.New("accelerate: offload_params is disk: want none, or fsdp full_shard: without it each of " +
			"several ranks keeps the whole parameters where others write them")
	}
	err := a.disk.OpenParams(disk.dir)
	if err == nil && a.WorldSize() == 1 {
		err = a.disk.MoveParams(a.ctx.NoGrad(), a.tree.Parameters())
	}
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	return nil
}

// offloadState keeps the optimizer's state on disk, where the plan needs that.
func (a *Accelerator) offloadState(opt *optim.Optimizer) error {
	if !a.plan.disk.state {
		return nil
	}
	bytes, err := a.disk.KeepState(opt, a.plan.disk.dir)
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	a.log.Info("the optimizer's state is on disk", "bytes", bytes)
	return nil
}
