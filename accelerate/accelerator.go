// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/offload"
	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/precision"
	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/accelerate/statistics"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Accelerator runs training steps on the available device and ranks. It belongs to one
// goroutine. Methods that take a context are collective: all ranks call them in the same
// order, and an error on one rank is an error on all. Those that give windows and batches are not: their context ends
// loading.
type Accelerator struct {
	*ranks.Ranks
	plan     plan
	next     plan // from the next Prepare on, and of the data before
	log      *slog.Logger
	kernels  string   // the variant, which ranks compare
	versions []string // see Environment

	devices devices
	dev     *tensor.Device
	ctx     *tensor.Ctx

	model   nn.Module
	tree    *nn.Tree
	units   []nn.Module
	params  []tensor.Named
	frozen  []tensor.Named // at Prepare
	opt     *optim.Optimizer
	disk    offload.Disk
	scaler  *precision.Scaler   // nil: not with fp16
	norm    float64             // of the window's gradients as ClipGradNorm measured it; −1 before
	empty   emptiness           // of the window
	pending *PendingStep        // of the window; nil: none was started
	stats   *statistics.Reports // nil: the model tracks none
	torn    *nn.Tree            // see Incomplete; nil: nothing was
	waiting bool                // see StepPending
	sealed  bool                // the last was: gradients are on their way
	claimed *claimed            // to the model's tensors; nil: without other ranks
	noSync  int                 // nested calls of NoSync
	steps   int                 // since Prepare

	sharding Sharding
	layout   samplers.WindowLayout // of the training stream, as of Prepare

	strategy strategy.Strategy // strategy.Single before Prepare, and after it ended
	pipeline *pp.Strategy      // the strategy, where it is a pipeline; nil otherwise
	divided  *ContextParallel  // of WithContextParallel; nil: as the plan says
	context  *cp.Passes        // of micro-batches whose tokens are divided; nil: they run as a whole
	fits     bool              // the first sequences were found to have as many tokens as chunks
	stages   Stages            // of WithStages
	division *tp.Division      // of the model, while it is divided; nil: it is whole
	factory  strategy.Factory  // of WithStrategy; without New the plan decides
	world    *comm.Group       // nil: New finds the ranks
	mesh     comm.Mesh
	unhook   []func()
	sends    bool // the pass under way announces gradients to the strategy

	hook   ddp.Hook // nil: what ddp_comm_hook says
	active ddp.Hook // which the strategy uses; nil: it uses none
	own    precision.Modules
	trace  tracer
	ran    *tensor.DTypeCounts // of the first window under bf16 or fp16; nil: nobody counts
}

// Option changes what New chooses.
type Option func(*Accelerator)

// WithDevice runs on dev instead of the device that the arguments name.
func WithDevice(dev *tensor.Device) Option { return func(a *Accelerator) { a.dev = dev } }

// WithGroup makes the accelerator a rank of g. It closes g at the end.
func WithGroup(g *comm.Group) Option {
	return func(a *Accelerator) { a.world = g }
}

// WithLogger sets the logger; the default is slog.Default().
func WithLogger(l *slog.Logger) Option { return func(a *Accelerator) { a.log = l } }

// WithCommHook sets the communication hook for gradients, instead of ddp_comm_hook. All
// ranks must use the same.
func WithCommHook(h ddp.Hook) Option { return func(a *Accelerator) { a.hook = h } }

// WithPrecision makes the module of a path, and all within it, compute in its own dtype: tensor.Float32,
// tensor.BFloat16 or tensor.Float16, regardless of bf16 and fp16. Parameters keep their dtype.
func WithPrecision(module string, dt tensor.DType) Option {
	return func(a *Accelerator) { a.own = append(a.own, precision.Module{Path: module, DType: dt}) }
}

// WithMesh arranges the ranks along the axes of a mesh, as the arguments dp_replicate_size, dp_shard_size, pp_size,
// cp_size and tp_size do, which must agree with it: see MeshOf. Ranks that differ along dp_replicate and dp_shard see
// different data and sum their gradients, and a sharded model is spread over dp_shard. Ranks along pp are a pipeline:
// see WithStages. Those along cp divide the tokens of sequences: see WithContextParallel. Those along tp divide the
// model's matrices.
func WithMesh(m comm.Mesh) Option { return func(a *Accelerator) { a.mesh = m } }

// newRank makes rank replica of n goroutines of this process, or its only rank: −1. on are the devices without
// WithDevices.
func newRank(p plan, on devices, opts []Option, replica, n int) (*Accelerator, error) {
	acc := &Accelerator{plan: p, next: p, devices: on, sharding: p.sharding, log: slog.Default(),
		kernels: kernels.Active().String()}
	for _, o := range opts {
		o(acc)
	}
	var err error
	if acc.Ranks, err = ranks.New(acc.rankOptions(replica, n)); err != nil {
		return nil, err
	}
	if err := acc.openDevice(); err != nil {
		return nil, err
	}
	acc.ctx, acc.versions = tensor.NewCtx(acc.dev), acc.ownVersions()
	acc.strategy = strategy.NewSingle(strategy.Job{Ctx: acc.ctx})
	acc.allowTF32()
	if acc.PipelineRanks().WorldSize() > 1 {
		if _, err := acc.loadSchedule(); err != nil { // before anybody reads data
			return nil, err
		}
	}
	return acc, acc.chooseDeviceEngine()
}

// rankOptions are what the plan says of the ranks.
func (a *Accelerator) rankOptions(replica, n int) ranks.Options {
	o := ranks.Options{World: a.world, Replicas: n, Replica: replica, Engine: a.plan.job.engine,
		Group: a.plan.job.group, Mesh: a.mesh, Sizes: a.plan.mesh, Sharded: a.sharded(), Hybrid: a.sharding.Hybrid}
	if a.plan.job.devices == deviceEngineAlways && !comm.HasDeviceEngine(nccl) {
		o.Engine = nccl // which is none between processes: an error
	}
	o.Group.Log = a.log
	return o
}

// Kernels is the variant of the CPU's kernels that the process runs, as "avx512".
func (a *Accelerator) Kernels() string { return a.kernels }

// reject aborts the group for an error of this rank, for which the others would wait, and returns it.
func (a *Accelerator) reject(err error) error {
	a.Abort(err)
	return err
}

// Device is where the rank computes.
func (a *Accelerator) Device() *tensor.Device { return a.dev }

// Ctx is the rank's root tensor context, without a memory scope.
func (a *Accelerator) Ctx() *tensor.Ctx { return a.ctx }

// Layout describes how the training stream is divided for this rank.
func (a *Accelerator) Layout() (samplers.WindowLayout, error) {
	peers := a.DataRanks()
	gas, err := a.next.batches.accumulation(peers.WorldSize())
	if err != nil {
		return samplers.WindowLayout{}, err
	}
	layout := samplers.WindowLayout{
		BatchSize: a.next.batches.train, DropLast: a.next.batches.dropLast,
		AccumulationSteps: gas, WorldSize: peers.WorldSize(), Rank: peers.Rank(),
		Interleaved: peers.WorldSize() > 1 && (a.sharding.Strategy.ShardsGradients() || a.factory.Interleaved),
	}
	if layout.Interleaved && a.sharded() {
		layout.Replicas = a.ReplicaRanks().WorldSize()
	}
	return layout, nil
}

// OptimizerFunc makes the optimizer of a rank. It gets the accelerator's context and the parameters that this rank
// updates: the trained ones or, where the model is sharded, what the rank owns of each, as vectors under the
// parameters' names.
type OptimizerFunc func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error)

// Prepare prepares a model for training and makes its optimizer. Nothing is wrapped: the caller keeps using the same
// model. Without an OptimizerFunc (nil) the loop updates the parameters by itself. units are the modules to recompute
// in backward, if gradient checkpointing is on, and those whose parameters a sharded model gathers together. With
// several ranks it checks that all have the same arguments, kernels and parameters, and that each rank of a process has
// its own model. Then it copies rank 0's parameters and buffers to every rank, and sets up the exchange of gradients.
//
// Parameters that require a gradient now are trained. They may be frozen and unfrozen between steps, on
// all ranks alike; one that is frozen now stays so: Reduce returns an error if it requires a gradient
// later. To unfreeze layers one by one, prepare with all trainable and then freeze some.
func (a *Accelerator) Prepare(ctx context.Context, model nn.Module, newOptimizer OptimizerFunc,
	units ...nn.Module) error {
	if err := a.spread(ctx, model, units); err != nil || newOptimizer == nil {
		return err
	}
	opt, err := newOptimizer(a.ctx, a.Trained())
	switch {
	case err != nil:
		return err
	case opt == nil:
		return errors.New("accelerate: the OptimizerFunc returned no optimizer: want one, or Prepare without function")
	}
	if err := a.checkOptimizer(opt); err != nil {
		return err
	}
	if err := a.checkMemory(opt); err != nil {
		return err
	}
	if err := a.offloadState(opt); err != nil {
		return err
	}
	a.opt = opt
	return nil
}

// spread puts the model's parameters where they belong, and readies the exchange of their gradients.
func (a *Accelerator) spread(ctx context.Context, model nn.Module, units []nn.Module) error {
	if err := a.leave(true); err != nil {
		return err
	}
	a.plan = a.next
	if err := a.take(model, units); err != nil {
		return err
	}
	a.scaler, a.norm = precision.NewScaler(a.plan.scaling), -1
	if a.plan.lower.Train != tensor.Invalid {
		a.ran = &tensor.DTypeCounts{}
	}
	layout, err := a.Layout()
	if err != nil {
		return err
	}
	a.layout = layout
	a.stats = statistics.New(a.ctx.NoGrad(), a.tree)
	a.strategy = strategy.NewSingle(a.strategyJob(units))
	a.warmUp()
	if err := a.offloadParams(); err != nil {
		return err
	}
	if err := a.checkConnected(); err != nil {
		return err
	}
	if err := a.checkContext(); err != nil {
		return err
	}
	if a.WorldSize() > 1 || a.divides() {
		if err := a.join(ctx, units); err != nil {
			return err
		}
	}
	return a.divideTokens()
}

// take makes a model the accelerator's, if it can be trained.
func (a *Accelerator) take(model nn.Module, units []nn.Module) error {
	a.model, a.tree, a.opt, a.units, a.torn, a.pending = model, nn.Walk(model), nil, nil, nil, nil
	a.context, a.fits = nil, false
	known := map[nn.Module]bool{}
	a.tree.Modules(func(_ string, m nn.Module) { known[m] = true })
	for _, u := range slices.Concat(units, a.sharding.Modules) {
		if !known[u] {
			return fmt.Errorf("accelerate: a unit of type %T is not a module of the model: want modules of "+
				"%T", u, model)
		}
	}
	if a.plan.recompute {
		if len(units) == 0 {
			return fmt.Errorf("accelerate: gradient_checkpointing is on, but %T names no units to recompute "+
				"(models.Recomputable)", model)
		}
		a.units = units
	}
	if err := a.findTrained(); err != nil {
		return err
	}
	return a.own.Check(a.tree)
}

// checkConnected is an error if the ranks have no groups.
func (a *Accelerator) checkConnected() error {
	switch {
	case a.WorldSize() == 1:
	case a.Group() == nil:
		return fmt.Errorf("accelerate: rank %d of %d is not connected: want Connect before Prepare", a.Rank(),
			a.WorldSize())
	case a.DataRanks().Group() == nil && a.DataRanks().WorldSize() > 1:
		return fmt.Errorf("accelerate: rank %d of %d has no groups of its mesh: want Open before Prepare", a.Rank(),
			a.WorldSize())
	}
	return nil
}

// findTrained finds the parameters that are trained and refuses a model that cannot be.
func (a *Accelerator) findTrained() error {
	for _, p := range a.tree.State() {
		if p.Device() != a.dev {
			return fmt.Errorf("accelerate: parameter %s is on %s: want %s: call MoveModel before the optimizer is made",
				p.Name, p.Device().Name(), a.dev.Name())
		}
	}
	if err := a.plan.lower.CheckParams(a.tree.Parameters()); err != nil {
		return err
	}
	a.params, a.frozen = nil, nil
	for _, p := range a.tree.Parameters() {
		if p.IsLeaf() {
			a.params = append(a.params, p)
		} else {
			a.frozen = append(a.frozen, p)
		}
	}
	if len(a.params) == 0 {
		return errors.New("accelerate: the model has no parameter that requires grad: nothing to train")
	}
	return nil
}

// Tree is the prepared model's parameters and modules.
func (a *Accelerator) Tree() *nn.Tree { return a.tree }

// Params are the trained parameters in registration order.
func (a *Accelerator) Params() []tensor.Named { return a.params }

// Optimizer returns the optimizer that Prepare made, or nil.
func (a *Accelerator) Optimizer() *optim.Optimizer { return a.opt }

// Trained is what the optimizer of this rank updates: see OptimizerFunc. Reduce leaves the gradients there.
func (a *Accelerator) Trained() []tensor.Named { return a.strategy.Trained() }

// TrainCtx is the context of a training forward pass whose first sample has the given
// position in the training stream.
func (a *Accelerator) TrainCtx(position int64) *nn.Ctx {
	a.trace.beginForward()
	return a.trainCtx(a.ctx, a.tree, position)
}

// trainCtx derives the context of a training forward pass from a device's. tree is that of the model or of a copy.
func (a *Accelerator) trainCtx(root *tensor.Ctx, tree *nn.Tree, position int64) *nn.Ctx {
	root = root.WithRandom(a.plan.seed, position).Autocast(a.plan.lower.Train).CountDTypes(a.ran)
	c := a.own.Apply(nn.NewCtx(root, tree, true))
	if len(a.units) > 0 {
		c = c.WithRecompute(a.units)
	}
	if a.stats != nil {
		c = c.WithObserver(a.stats)
	}
	return c
}

// EvalCtx is the context of a forward pass without gradients and dropout.
func (a *Accelerator) EvalCtx() *nn.Ctx { return a.evalCtx(a.ctx.NoGrad(), a.tree) }

// evalCtx is EvalCtx for a root as trainCtx takes it.
func (a *Accelerator) evalCtx(root *tensor.Ctx, tree *nn.Tree) *nn.Ctx {
	return a.own.Apply(nn.NewCtx(root.Autocast(a.plan.lower.Eval), tree, false))
}

// Scaler is the loss scaling of fp16, nil without it.
func (a *Accelerator) Scaler() *precision.Scaler { return a.scaler }

// Backward runs the backward pass of one micro-batch: lossSum is the sum of its loss terms, count the number of terms
// (or the sum of their weights) in the whole window over all ranks, and microBatch its number in the window. last
// reports whether it is this rank's last in the window. Gradients of the micro-batches are added in the tree of
// docs/numerics.md. During the pass of the last micro-batch they are sent as soon as they are complete, unless NoSync
// forbids it.
func (a *Accelerator) Backward(c *nn.Ctx, lossSum *tensor.Tensor, count float64, microBatch int, last bool) {
	if a.pipeline != nil {
		panic(&tensor.Error{Op: "accelerate.Backward", Msg: "a backward pass of one micro-batch under pp_size: want " +
			"RunWindow or StartWindow, which send the micro-batches of a window through the stages"})
	}
	if a.context != nil {
		panic(&tensor.Error{Op: "accelerate.Backward", Msg: "a backward pass of one micro-batch whose tokens are " +
			"divided: want RunWindow or StartWindow, which run its chunks"})
	}
	seed := tensor.Full(c.Ctx, lossSum.DType(), a.scaler.Factor()/divisor(count), lossSum.Shape()...)
	a.backward(c.Ctx, []*tensor.Tensor{lossSum}, []*tensor.Tensor{seed}, microBatch, last)
}

// backward is Backward from roots with the given gradients.
func (a *Accelerator) backward(c *tensor.Ctx, roots, grads []*tensor.Tensor, microBatch int, last bool) {
	if !slices.ContainsFunc(roots, (*tensor.Tensor).RequiresGrad) {
		panic(&tensor.Error{Op: "accelerate.Backward", Msg: "no parameter that requires a gradient leads to " +
			"the loss: want a loss that is computed in the context that the loss function gets, by a model of which " +
			"not all is frozen"})
	}
	opts, seal := a.beginPass(microBatch, last)
	defer seal()
	defer a.trace.backward(a.Rank(), microBatch, time.Now())
	opts = append(opts, tensor.Reaching(func(reached func(*tensor.Tensor) bool) {
		any := false
		for i, p := range a.params {
			is := reached(p.Tensor)
			if any = any || is; !is && a.sends {
				a.strategy.Ready(i) // so that nothing waits for it until the end
			}
		}
		if !any {
			panic(&tensor.Error{Op: "accelerate.Backward", Msg: reachesNone})
		}
	}))
	defer func() {
		a.strategy.End()
		a.sends = false
	}()
	tensor.Backward(c, roots, grads, nil, opts...)
}

// reachesNone is what is wrong with a loss of another model.
const reachesNone = "the loss reaches no trained parameter of the prepared model: want a loss of the model that was " +
	"prepared on this rank"

// beginPass begins the backward pass of a micro-batch. seal is called at its end.
func (a *Accelerator) beginPass(microBatch int, last bool) (opts []tensor.BackwardOption, seal func()) {
	if a.sealed {
		panic(&tensor.Error{Op: "accelerate.Backward", Msg: fmt.Sprintf(
			"micro-batch %d comes after the rank's last of the window: want last in one backward pass alone, and "+
				"Reduce behind it", microBatch)})
	}
	last = last && a.noSync == 0
	a.waiting = true
	a.sends = a.strategy.Begin(microBatch, last)
	if a.stats != nil {
		a.stats.Own(microBatch)
	}
	if last {
		opts = append(opts, tensor.DroppingLowered())
	}
	return opts, func() { a.sealed = last }
}

// Reduce ends a window. Afterwards the gradients of the parameters are the sums over all
// its micro-batches on every rank, and every rank has the batch statistics of all.
func (a *Accelerator) Reduce(ctx context.Context) error {
	if a.noSync > 0 {
		return errors.New("accelerate: Reduce inside NoSync: want it after NoSync, where the gradients are exchanged")
	}
	for _, p := range a.frozen {
		if p.IsLeaf() {
			return fmt.Errorf("accelerate: parameter %s requires a gradient, but was frozen at Prepare and is not "+
				"trained: want it trainable at Prepare, and frozen after it", p.Name)
		}
	}
	a.sealed = false
	waited := a.trace.Region(a.Rank(), "wait")
	if err := a.strategy.Finish(ctx); err != nil {
		return err
	}
	if a.Group() != nil {
		waited()
	}
	ran := a.ran
	a.ran = nil
	if err := a.plan.lower.CheckFirst(ran, a.params); err != nil {
		return err
	}
	if a.stats != nil {
		var peers statistics.Peers
		if a.DataRanks().Group() != nil && a.plan.exchange.statistics {
			peers = a.DataRanks()
		}
		return a.stats.Exchange(ctx, peers)
	}
	return nil
}

// ClipGradNorm clips the joint L2 norm of all gradients to maxNorm (0 only measures it) and returns the norm before
// clipping, without the scale of fp16, which it takes away. The gradients themselves stay unchanged: Step scales them
// in the pass that reads them. It is collective, as Step is; it returns an error if a rank is lost.
func (a *Accelerator) ClipGradNorm(ctx context.Context, maxNorm float64) (norm float64, err error) {
	defer a.trace.Region(a.Rank(), "clip")()
	if norm, err = a.strategy.Norm(ctx); err != nil {
		return 0, fmt.Errorf("accelerate: norm of the gradients: %w", err)
	}
	scale := a.scaler.Factor()
	norm /= scale
	a.norm = norm
	if a.opt != nil {
		a.opt.ScaleGrads(optim.ClipFactor(norm, maxNorm) / scale)
	}
	return norm, nil
}

// ClipGradValue limits each element of the gradients to [−limit, limit], without the scale of fp16, as accelerate's
// clip_grad_value_ does. Unlike ClipGradNorm it changes the gradients, and comes before it. Gradients of fp16 that
// overflowed stay unchanged, so that Step leaves the window out. It is collective, as Step is.
func (a *Accelerator) ClipGradValue(ctx context.Context, limit float64) error {
	switch {
	case a.tree == nil:
		return a.reject(errors.New("accelerate: ClipGradValue before Prepare: want a prepared model"))
	case !(limit > 0):
		return a.reject(fmt.Errorf("accelerate: ClipGradValue by %g: want a limit above 0", limit))
	case a.norm >= 0:
		return a.reject(errors.New("accelerate: ClipGradValue after ClipGradNorm, which measured other gradients: " +
			"want it before"))
	}
	scale := a.scaler.Factor()
	if a.scaler != nil {
		norm, err := a.strategy.Norm(ctx)
		if err != nil {
			return fmt.Errorf("accelerate: norm of the gradients: %w", err)
		}
		if !finite(norm) {
			return nil
		}
	}
	for _, p := range a.summed() {
		if g := p.Grad(); g != nil {
			a.ctx.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				tensor.CopyInto(c, g, tensor.Clamp(c, g, -limit*scale, limit*scale))
				return nil
			})
		}
	}
	return nil
}

// Step updates the parameters, and updates running statistics (batch norm's) with each micro-batch of the window, in
// order. If Step is not called, both stay unchanged. Step itself leaves them unchanged if the gradients overflowed
// under fp16, when it lowers the scale instead, and after a window without loss terms, which would move parameters only
// by momentum and weight decay. It is collective; it returns an error if a rank is lost.
func (a *Accelerator) Step(ctx context.Context) error {
	if a.tree == nil {
		return errors.New("accelerate: Step before Prepare: want a prepared model")
	}
	skip := a.empty.all
	if a.scaler != nil && !skip {
		if a.norm < 0 {
			if _, err := a.ClipGradNorm(ctx, 0); err != nil {
				return err
			}
		}
		skip = !finite(a.norm)
		a.scaler.Update(skip)
	}
	return a.endWindow(ctx, skip)
}

// endWindow steps, or with skip leaves parameters and running statistics as they are.
func (a *Accelerator) endWindow(ctx context.Context, skip bool) error {
	defer a.trace.collectives(a.Rank(), a.Group())
	defer a.trace.Region(a.Rank(), "optimizer")()
	own := !skip && !a.empty.own
	if a.opt != nil && own { // without one the program updates the parameters itself
		a.opt.Step(a.ctx)
	}
	if err := a.strategy.Stepped(ctx, !skip); err != nil {
		return fmt.Errorf("accelerate: step: %w", err)
	}
	if a.stats != nil && own {
		a.stats.Track()
	}
	a.waiting = false
	a.countStep()
	return nil
}

// warmUpSteps are those after which steps ask a GPU's driver for nothing new: kernels are loaded, libraries have
// planned what they compute, and pools have their memory.
const warmUpSteps = 2

// warmUp keeps collective calls and other work on the rank's device apart until the first steps have been made.
func (a *Accelerator) warmUp() {
	a.steps = 0
	if g := a.Group(); g != nil {
		g.Overlap(false)
	}
}

// countStep ends the warm-up after its last step.
func (a *Accelerator) countStep() {
	if a.steps++; a.steps == warmUpSteps && a.Group() != nil {
		a.Group().Overlap(true)
	}
}

// StepPending reports whether a window is under way: a backward pass has run, and neither Step (with a PendingStep also
// Read) nor ZeroGrad has ended it.
func (a *Accelerator) StepPending() bool { return a.waiting }

// emptiness tells whether a window has no loss terms: on any rank, and in the micro-batches that the optimizer of this
// rank steps by. These differ where ranks step on their own.
type emptiness struct{ all, own bool }

// GradientSets is the largest number of gradients of a parameter that exist at the same time: that of the current
// micro-batch and the sums of earlier ones that wait in the tree.
func (a *Accelerator) GradientSets() int {
	groups := accumulation.Groups(int(a.layout.MicroBatches()), a.plan.exchange.DeterministicRanks)
	return bits.Len(uint(max(1, groups/a.DataRanks().WorldSize())))
}

// ZeroGrad discards all gradients and batch statistics and prepares the next window. On one rank it also frees the
// gradients, which the next window allocates again as needed; several ranks keep the memory in which they exchange
// them. After the last backward pass of a window, call Reduce first, because its gradients are being exchanged.
func (a *Accelerator) ZeroGrad() {
	a.norm, a.empty, a.pending = -1, emptiness{}, nil
	if a.opt != nil {
		a.opt.ScaleGrads(1)
	}
	a.strategy.Reset()
	a.sealed, a.waiting = false, false
	if a.stats != nil {
		a.stats.Forget()
	}
}
