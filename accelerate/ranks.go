// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/local"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Replicas returns the accelerators of n ranks that are goroutines of this process, in
// rank order. They share the device, whose workers help any rank that has work. Connect
// prepares them for collective work.
func Replicas(a *args.TrainingArguments, n int, opts ...Option) ([]*Accelerator, error) {
	ranks := make([]*Accelerator, n)
	for r := range ranks {
		if r > 0 { // a resume changes arguments, on each rank its own
			a = a.Clone()
		}
		var err error
		if ranks[r], err = New(a, opts...); err != nil {
			return nil, err
		}
		if ranks[r].processes != nil {
			return nil, fmt.Errorf("accelerate: this process is already rank %d of %d: want ranks as goroutines or as processes, not both", ranks[r].rank, ranks[r].world)
		}
		ranks[r].rank, ranks[r].world = r, n
	}
	return ranks, nil
}

// Connect joins the ranks that Replicas returned into a group. Each rank leaves it with
// Close. After a failure, call Connect again to replace the group.
func Connect(ranks []*Accelerator) {
	opts := ranks[0].groupOptions()
	opts.FlightDir = os.Getenv(flight.EnvDir) // what ranks of one process say of a failure is enough otherwise
	for r, g := range local.New(len(ranks), opts) {
		ranks[r].group, ranks[r].unwatch = g, flight.Watch(g, ranks[r].flightJob(), ranks[r].log)
	}
}

// fingerprint is what all ranks must have in common before they train together.
type fingerprint struct {
	Args    json.RawMessage `json:"args"`
	Kernels string          `json:"kernels"`
	Hook    string          `json:"hook"`
}

// shared are the settings that ranks must share although a run may be resumed with others:
// their calls depend on them.
var shared = []string{"ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_require_equal_init", "ddp_static_graph", "load_best_model_at_end", "per_device_eval_batch_size", "prediction_loss_only"}

// join makes this rank part of the job: see Prepare.
func (a *Accelerator) join(ctx context.Context) error {
	hook, err := a.commHook()
	if err != nil {
		return err
	}
	if err := a.compare(ctx, hook); err != nil {
		return err
	}
	all := a.tree.State() // those that are not trained too
	differed, err := ddp.Verify(ctx, a.ctx, a.group, all)
	if err != nil {
		return err
	}
	if err := a.reportDiffering(ctx, differed, len(all)); err != nil {
		return err
	}
	if a.args.DDPReductionOrder == args.OrderFast && a.IsMain() {
		a.log.Warn("gradients are added in any order: results depend on the number of ranks", "ddp_reduction_order", a.args.DDPReductionOrder)
	}
	if a.IsMain() && slices.ContainsFunc(a.params, func(p tensor.Named) bool { return p.DType().IsHalf() }) {
		a.log.Warn("each rank rounds its half-precision gradients: results depend on the number of ranks")
	}
	if hook.Lossy() && a.IsMain() {
		a.log.Warn("gradients are not summed exactly: results depend on the number of ranks", "ddp_comm_hook", hook.Name())
	}
	a.ddp, err = ddp.New(a.ctx, a.group, a.params, ddp.Options{
		BucketBytes: a.args.DDPBucketCapMB << 20, Hook: hook, Trace: a.traceBuckets(),
		RequireUsed: !a.args.DDPFindUnusedParameters, StaticGraph: a.args.DDPStaticGraph,
	})
	if err != nil {
		return err
	}
	a.sum.settle(a.ddp.Views())
	for i, p := range a.params {
		a.unhook = append(a.unhook, p.OnGrad(func(*tensor.Ctx, *tensor.Tensor) {
			if a.last {
				a.sum.finishParam(i)
				a.ddp.Ready(i)
			}
		}))
	}
	return nil
}

// commHook is what happens to gradients between ranks.
func (a *Accelerator) commHook() (ddp.Hook, error) {
	if a.hook != nil {
		return a.hook, nil
	}
	h, err := ddp.HookByName(string(a.args.DDPCommHook))
	if err != nil {
		return nil, fmt.Errorf("accelerate: ddp_comm_hook: %w", err)
	}
	return h, nil
}

// compare checks that all ranks run with the same settings and kernels: with others, bits
// would differ silently.
func (a *Accelerator) compare(ctx context.Context, hook ddp.Hook) error {
	text, err := a.args.JSON()
	if err != nil {
		return err
	}
	all, err := dist.AllGatherObject(ctx, a.group, fingerprint{text, a.kernels, hook.Name()})
	if err != nil {
		return fmt.Errorf("accelerate: comparing the ranks' settings: %w", err)
	}
	for rank, f := range all {
		if f.Kernels != all[0].Kernels {
			return fmt.Errorf("accelerate: rank 0 computes with %s kernels, rank %d with %s: set %s to the same variant on all ranks", all[0].Kernels, rank, f.Kernels, kernels.EnvVar)
		}
		if f.Hook != all[0].Hook {
			return fmt.Errorf("accelerate: the communication hook is %s on rank 0 and %s on rank %d: want the same on all ranks", all[0].Hook, f.Hook, rank)
		}
		if err := sameArgs(all[0].Args, f.Args, rank); err != nil {
			return err
		}
	}
	return nil
}

// sameArgs names the first setting that matters and differs.
func sameArgs(zero, other json.RawMessage, rank int) error {
	a, err := args.FromJSON(zero)
	if err != nil {
		return err
	}
	b, err := args.FromJSON(other)
	if err != nil {
		return err
	}
	for _, d := range a.Diff(b) {
		if d.Fixed || slices.Contains(shared, d.Key) {
			return fmt.Errorf("accelerate: %s is %s on rank 0 and %s on rank %d: want the same value on all ranks", d.Key, d.Old, d.New, rank)
		}
	}
	return nil
}

// reportDiffering says how many parameters had to be overwritten with rank 0's values, and
// makes that an error under ddp_require_equal_init.
func (a *Accelerator) reportDiffering(ctx context.Context, differed, of int) error {
	all, err := dist.AllGatherObject(ctx, a.group, differed)
	if err != nil {
		return err
	}
	for rank, n := range all {
		if n == 0 {
			continue
		}
		if a.args.DDPRequireEqualInit {
			return fmt.Errorf("accelerate: ddp_require_equal_init: %d of %d parameters of rank %d differed from rank 0's", n, of, rank)
		}
		if a.IsMain() {
			a.log.Info("parameters were replaced by rank 0's", "rank", rank, "differed", n, "of", of)
		}
	}
	return nil
}

// BeginWindow prepares the exchange for the next window. It is collective: call it on
// every rank before each window.
func (a *Accelerator) BeginWindow(ctx context.Context) error {
	if a.ddp == nil {
		return nil
	}
	rebuilt, err := a.ddp.Rebuild(ctx)
	if rebuilt {
		a.sum.settle(a.ddp.Views())
	}
	return err
}

// SumCounts adds the counts of all ranks.
func (a *Accelerator) SumCounts(ctx context.Context, n int64) (int64, error) {
	if a.group == nil {
		return n, nil
	}
	v := []int64{n}
	err := a.group.AllReduce(dist.Of(v), dist.Sum, dist.Label("loss terms")).Wait(ctx)
	return v[0], err
}

// SumFloats adds vectors over all ranks, element by element. Where all ranks but one have
// zeros, the sum is that rank's value, bit for bit. Ranks use this to share figures that
// are then added in a fixed order.
func (a *Accelerator) SumFloats(ctx context.Context, v []float64, what string) error {
	if a.group == nil {
		return nil
	}
	return a.group.AllReduce(dist.Of(v), dist.Sum, dist.Label(what)).Wait(ctx)
}

// GatherBytes returns the bytes of all ranks, in rank order, on every rank.
func (a *Accelerator) GatherBytes(ctx context.Context, mine []byte) ([][]byte, error) {
	if a.group == nil {
		return [][]byte{mine}, nil
	}
	sizes := make([]int64, a.WorldSize())
	if err := a.group.AllGather(dist.Of(sizes), dist.Of([]int64{int64(len(mine))}), dist.Label("sizes")).Wait(ctx); err != nil {
		return nil, err
	}
	longest := int64(0)
	for _, n := range sizes {
		longest = max(longest, n)
	}
	in, out := make([]byte, longest), make([]byte, longest*int64(len(sizes)))
	copy(in, mine)
	if err := a.group.AllGather(dist.Of(out), dist.Of(in), dist.Label("gathered bytes")).Wait(ctx); err != nil {
		return nil, err
	}
	parts := make([][]byte, len(sizes))
	for r, n := range sizes {
		parts[r] = out[int64(r)*longest:][:n:n]
	}
	return parts, nil
}

// SyncParameters copies rank 0's values of m's parameters and buffers to every rank.
func (a *Accelerator) SyncParameters(ctx context.Context, m nn.Module) error {
	if a.group == nil {
		return nil
	}
	_, err := ddp.Verify(ctx, a.ctx, a.group, nn.Walk(m).State())
	return err
}

// Agree makes all ranks take the same decisions: each flag becomes true on every rank if
// it is true on one. Decisions to stop, save or evaluate must go through it; otherwise
// one rank would wait for the others.
func (a *Accelerator) Agree(ctx context.Context, flags ...*bool) error {
	if a.group == nil {
		return nil
	}
	v := make([]uint8, len(flags))
	for i, f := range flags {
		if *f {
			v[i] = 1
		}
	}
	if err := a.group.AllReduce(dist.Of(v), dist.Max, dist.Label("control")).Wait(ctx); err != nil {
		return err
	}
	for i, f := range flags {
		*f = v[i] == 1
	}
	return nil
}

// Barrier waits until all ranks have called it.
func (a *Accelerator) Barrier(ctx context.Context) error {
	if a.group == nil {
		return nil
	}
	return a.group.Barrier().Wait(ctx)
}

// Abort tells the other ranks that this one failed, and why, so that they get an error
// instead of waiting.
func (a *Accelerator) Abort(err error) {
	if a.group != nil {
		a.group.Abort(err)
	}
}

// release takes the gradients out of the exchange.
func (a *Accelerator) release() error {
	for _, f := range a.unhook {
		f()
	}
	a.unhook = nil
	if a.ddp == nil {
		return nil
	}
	r := a.ddp
	a.ddp = nil
	a.sum.settle(nil) // the buckets go
	return r.Close()
}

// Close leaves the rank's group without waiting for the others. Further collective work
// needs a new group.
func (a *Accelerator) Close() error {
	if a.group == nil {
		return nil
	}
	if a.unwatch != nil { // a group of the program's own is its own to watch
		a.unwatch()
		a.unwatch = nil
	}
	err := errors.Join(a.group.Close(), a.release())
	a.group = nil
	if a.processes != nil {
		err = errors.Join(err, a.processes.close())
	}
	return err
}
