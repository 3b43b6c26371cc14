// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"runtime"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/internal/hostmemory"
	"github.com/lockstep-ml/lockstep/optim"
)

// hostLimit is how much memory the processes of this host may use, and who says so.
var hostLimit = hostmemory.Limit

// checkMemory refuses a training whose parameters, gradients and optimizer state alone are more than the host's memory:
// the system would kill a rank in the middle of a step. Activations are not counted.
func (a *Accelerator) checkMemory(opt *optim.Optimizer) error {
	limit, source := hostLimit()
	if limit == 0 || !a.dev.HostMemory() {
		return nil
	}
	ranks := a.LocalWorldSize()
	held := a.heldBy(opt)
	if need := uint64(ranks) * uint64(held.total()); need > limit {
		who := "the rank"
		if ranks > 1 {
			who = fmt.Sprintf("each of the %d ranks", ranks)
		}
		return fmt.Errorf("accelerate: %s on this host needs %s (parameters %s, gradients %s, the optimizer's "+
			"state %s), %s in all, and the memory of %s is %s: want %s", who, size(held.total()), size(held.params),
			size(held.grads), size(held.state), size(int64(need)), source, size(int64(limit)), a.relief())
	}
	return nil
}

// relief is what would make a training smaller.
func (a *Accelerator) relief() string {
	offload := "offload_optimizer disk"
	if runtime.GOOS == "windows" {
		offload = "a smaller model"
	}
	switch {
	case a.WorldSize() > 1 && a.sharding.Strategy != shard.Full:
		return "fsdp full_shard, or " + offload
	case !a.plan.disk.state:
		return offload + ", or more hosts"
	}
	return "more hosts, or a smaller model"
}

// held is what a rank keeps between steps in memory, in bytes.
type held struct{ params, grads, state int64 }

func (h held) total() int64 { return h.params + h.grads + h.state }

func (a *Accelerator) heldBy(opt *optim.Optimizer) (h held) {
	ranks, strategy := int64(a.ShardRanks().WorldSize()), a.sharding.Strategy
	if ranks == 1 {
		strategy = shard.None
	}
	params := a.tree.Parameters()
	if a.pipeline != nil {
		params = a.pipeline.Params()
	}
	for _, p := range params {
		if h.params += int64(p.Bytes()); p.IsLeaf() {
			h.grads += int64(p.Numel() * p.GradDType().Size())
		}
	}
	if strategy.ShardsParameters() {
		h.params /= ranks
	}
	if strategy.ShardsGradients() {
		h.grads /= ranks
	}
	if a.plan.disk.params {
		h.params = 0
	}
	if a.plan.disk.state {
		return h
	}
	for _, p := range opt.Params() {
		for _, t := range opt.Describe(p) {
			h.state += t.Bytes()
		}
	}
	return h
}

// size is a number of bytes for people.
func size(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
