// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/fake"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/backend/meta"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// MemoryEstimate is the memory of tensors that training needs on one rank, in bytes. The rest of a process (the Go
// heap, scratch memory of kernels, free blocks) adds some ten MiB plus a few percent.
type MemoryEstimate struct {
	Parameters int64 `json:"parameters"` // and buffers
	// including the partial sums of accumulation that exist at the same time
	Gradients int64 `json:"gradients"`
	// how many sums of each gradient that is: 1 and, where a window has more groups of micro-batches than are added on
	// their way, one for each level of the tree of docs/numerics.md. It depends on deterministic_ranks.
	GradientSums   int   `json:"gradient_sums"`
	OptimizerState int64 `json:"optimizer_state"` // such as Adam's moments
	// everything else at the peak: the batch, temporary results, and what backward needs, except what gradients
	// replace; of a sharded model also what of Gathered is there at that moment
	Activations int64 `json:"activations"`
	Peak        int64 `json:"peak"` // the maximum of the sum
	// of a sharded model: the most that gathered parameters and gradients of its units take at one time
	Gathered int64 `json:"gathered,omitempty"`
	// what offload_optimizer and offload_params keep in files: it is part of no other figure
	OnDisk int64 `json:"on_disk,omitempty"`
	// of a model that is sharded or whose matrices are divided: the peak before the first step, when the model is whole
	// on each rank and is cut
	Start int64 `json:"start,omitempty"`

	cut, rounded int64 // bytes of whole parameters that are cut, and of what autocast makes of those of products
}

// EstimateMemory trains for two steps on a device without values (tensor.NewMeta), which allocates what a real run
// would and computes nothing, and reports the memory in use. model creates the model on it; batch creates a batch of
// the given number of samples, which is a's per_device_train_batch_size. on is the device of the real run, nil for the
// CPU: on a GPU some ops take more memory to take less time. ranks is the number of its ranks, on which the
// accumulation depends. If a's fsdp or zero_stage spreads the model over them, the estimate is that of the first rank,
// with its buffers and the parameters that it gathers and frees; ranks are assumed to share no memory. If tp_size or
// cp_size divides matrices or tokens among them, it has only its parts of the matrices and the activations of its
// tokens. It writes no file and waits for no other process.
func EstimateMemory(a *args.TrainingArguments, on *tensor.Device, ranks int,
	model func(in *nn.Init) (models.Model, error), batch func(c *tensor.Ctx, samples int) *data.Batch,
) (*MemoryEstimate, error) {
	played, err := playedOf(a, ranks)
	if err != nil {
		return nil, err
	}
	return estimateMemory(a, on, played, false, model, batch)
}

// playedRanks are the ranks of a run, and those of them that an estimate goes through.
type playedRanks struct {
	replicas int       // of all ranks, those with different samples
	mesh     comm.Mesh // those that have a model, or the tokens of a sequence, together
	sharded  bool      // fsdp or zero_stage spreads the model over several
}

// count is how many ranks the estimate goes through.
func (p playedRanks) count() int { return p.mesh.DPShard * p.mesh.CP * p.mesh.TP }

// group is the first of the ranks that the estimate goes through.
func (p playedRanks) group(log *slog.Logger) *comm.Group {
	if p.count() == 1 {
		return local.New(1, comm.Options{Log: log})[0]
	}
	group, engine := fake.New(0, p.count(), comm.Options{Log: log})
	engine.Mirror = true
	return group
}

// others is how many replicas there are for each that the estimate goes through.
func (p playedRanks) others() int { return p.replicas / p.mesh.DPShard }

// playedOf is which ranks an estimate goes through.
func playedOf(a *args.TrainingArguments, ranks int) (playedRanks, error) {
	p := playedRanks{replicas: ranks, mesh: comm.Mesh{DPShard: 1, CP: 1, TP: 1}}
	if a.PPSize > 1 {
		return p, fmt.Errorf("trainer: pp_size is %d, and the ranks of a pipeline need different amounts of memory: "+
			"want Play.EstimateMemory",
			a.PPSize)
	}
	sharded := ranks > 1 && a.ShardStrategy() != args.NoShard
	if !sharded && max(a.TPSize, a.CPSize, a.SPSize) <= 1 {
		return p, nil
	}
	mesh, err := accelerate.MeshOf(a, ranks)
	if err != nil {
		return p, fmt.Errorf("trainer: estimate of memory: %w", err)
	}
	p.mesh.CP, p.mesh.TP = max(mesh.CP, 1), max(mesh.TP, 1)
	p.replicas = ranks / p.mesh.CP / p.mesh.TP
	if sharded {
		p.mesh.DPShard = max(mesh.DPShard, 1)
		p.sharded = p.mesh.DPShard*p.mesh.CP > 1
	}
	return p, nil
}

// EstimateSharedMemory is EstimateMemory under full_shard for ranks of one host that have the parameters once, in
// memory that they share. A rank's part of that counts.
func EstimateSharedMemory(a *args.TrainingArguments, on *tensor.Device, ranks int,
	model func(in *nn.Init) (models.Model, error), batch func(c *tensor.Ctx, samples int) *data.Batch,
) (*MemoryEstimate, error) {
	stage2 := a.Clone()
	stage2.FSDP, stage2.ZeroStage = nil, 2
	played, err := playedOf(stage2, ranks)
	if err != nil {
		return nil, err
	}
	return estimateMemory(a, on, played, true, model, batch)
}

// share divides whole parameters among ranks, and their rounded copies, which then stay: at the peak those of a rank
// alone are gone.
func (e *MemoryEstimate) share(ranks int64) {
	e.Peak += (e.cut+e.rounded)/ranks - e.cut
	e.Parameters += (e.cut+e.rounded)/ranks - e.cut
	e.Gathered = min(e.Gathered, e.Peak-e.Parameters-e.OptimizerState)
	e.Activations = e.Peak - e.Parameters - e.Gradients - e.OptimizerState
}

// offload moves to the disk what is there during a step.
func (e *MemoryEstimate) offload(a *args.TrainingArguments) {
	move := func(bytes *int64) {
		e.OnDisk += *bytes
		e.Peak -= *bytes
		*bytes = 0
	}
	if a.OffloadOptimizer == args.OffloadDisk {
		move(&e.OptimizerState)
	}
	if a.OffloadParams == args.OffloadDisk {
		move(&e.Parameters)
	}
}

// estimateMemory is EstimateMemory, or with shared EstimateSharedMemory: ranks that share whole parameters have all
// else as under stage 2 of ZeRO.
func estimateMemory(a *args.TrainingArguments, on *tensor.Device, played playedRanks, shared bool,
	model func(in *nn.Init) (models.Model, error), batch func(c *tensor.Ctx, samples int) *data.Batch,
	opts ...Option) (*MemoryEstimate, error) {
	if a.OffloadParams == args.OffloadDisk && !played.sharded {
		return nil, errors.New("trainer: estimate of memory: offload_params disk is estimated only for sharded " +
			"parameters: want fsdp full_shard or zero_stage 3 on several ranks, or no offload_params")
	}
	if shared {
		a = a.Clone()
		a.FSDP, a.ZeroStage = nil, 2
	}
	gas, err := a.AccumulationSteps(played.replicas)
	if err != nil {
		return nil, err
	}
	counter := meta.Like(joint.Backend(cmp.Or(on, tensor.CPU())))
	dev := joint.Device[*tensor.Device](counter)
	defer dev.Close()
	var m models.Model
	if tried := tensor.Try(func() { m, err = model(nn.NewInit(dev, a.Seed)) }); tried != nil || err != nil {
		return nil, errors.Join(tried, err)
	}
	e := &MemoryEstimate{Parameters: dev.MemStats().InUse}
	s := shadow(a, gas, played)
	if s.TPParts, err = accelerate.TensorParts(a, m); err != nil {
		return nil, fmt.Errorf("trainer: estimate of memory: %w", err)
	}
	quiet := slog.New(slog.DiscardHandler)
	watch := &stateWatch{dev: dev, state: -dev.MemStats().InUse, keep: !played.sharded && played.replicas > 1}
	if played.sharded || s.TPParts > 0 {
		watch.begin = counter.ResetPeak
	}
	samples := 2 * gas * a.PerDeviceTrainBatchSize * played.mesh.DPShard
	set := data.NewSource(data.Slice[struct{}](make([]struct{}, samples)),
		func(c *tensor.Ctx, samples []struct{}) (*data.Batch, error) {
			return batch(c, len(samples)), nil
		})
	opts = append(opts, withGroup(played.group(quiet)), WithDevice(dev), WithTrainData(set), WithCallbacks(watch),
		WithDisplay(nil), WithLogger(quiet))
	t := New(m, s, opts...)
	watch.t = t
	_, err = t.Train()
	if err = errors.Join(err, t.Close()); err != nil {
		return nil, fmt.Errorf("trainer: estimate of memory: %w", err)
	}
	e.GradientSums = t.acc.GradientSets()
	if watch.held.Parameters > 0 { // which are whole again
		e.Parameters, e.Start = watch.held.Parameters, watch.start
		e.Gradients = int64(e.GradientSums) * watch.held.Gradients
	} else {
		for _, p := range t.acc.Params() {
			e.Gradients += int64(e.GradientSums * p.Numel() * p.GradDType().Size())
		}
	}
	e.OptimizerState, e.Peak = watch.state, watch.peak
	if played.sharded {
		e.Gradients, e.GradientSums, e.Gathered = watch.held.Gradients, watch.held.Sums, watch.held.Gathered
		e.cut, e.rounded = watch.cut, watch.rounded
	}
	e.Activations = e.Peak - e.Parameters - e.Gradients - e.OptimizerState
	// The sharder adds up the most of each kind, which are not there at the same time; all are at most what the peak
	// leaves beside what stays.
	e.Gathered = min(e.Gathered, e.Peak-e.Parameters-e.OptimizerState)
	e.offload(a)
	if shared && played.sharded {
		e.share(int64(played.mesh.DPShard * played.mesh.CP))
	}
	return e, nil
}

// keepGradients gives the parameters gradient memory that stays from step to step, like the memory in which several
// ranks exchange gradients.
func keepGradients(dev *tensor.Device, params []tensor.Named) {
	c := tensor.NewCtx(dev).NoGrad()
	for _, p := range params {
		if p.IsLeaf() {
			p.SwapGrad(tensor.Zeros(c, p.GradDType(), p.Shape()...), false)
		}
	}
}

// shadow returns the arguments of a run that allocates what a's run would, without files, evaluations and other
// ranks. Without shards, one of many ranks holds as many sums at once as a single rank with fewer deterministic ranks;
// so does a replica of each ranks, as if there were no other.
func shadow(a *args.TrainingArguments, gas int, played playedRanks) *args.TrainingArguments {
	s := args.Default(a.OutputDir)
	s.PerDeviceTrainBatchSize, s.GradientAccumulationSteps = a.PerDeviceTrainBatchSize, gas
	s.DeterministicRanks = max(1, a.DeterministicRanks/played.others())
	s.FSDP, s.ZeroStage, s.DDPBucketCapMB = a.FSDP, a.ZeroStage, a.DDPBucketCapMB
	s.FSDPIgnoredModules, s.FSDPPersistenceThreshold = a.FSDPIgnoredModules, a.FSDPPersistenceThreshold
	if played.sharded {
		s.FSDPReduceDType = a.FSDPReduceDType
	}
	s.TPSize, s.TPPlan = a.TPSize, a.TPPlan
	s.CPSize, s.SPSize, s.CPStrategy, s.CPChunks = a.CPSize, a.SPSize, a.CPStrategy, a.CPChunks
	s.FSDPTransformerLayerClsToWrap, s.FSDPMinNumParams = a.FSDPTransformerLayerClsToWrap, a.FSDPMinNumParams
	s.GradientCheckpointing, s.Optim, s.OptimArgs = a.GradientCheckpointing, a.Optim, a.OptimArgs
	s.BF16, s.FP16, s.HalfUpdate = a.BF16, a.FP16, a.HalfUpdate
	s.MaxSteps, s.SaveStrategy, s.TrainSamplingStrategy = 2, args.StrategyNo, args.SamplingSequential
	return s
}

// withGroup makes the trainer a rank of g and ignores the environment.
func withGroup(g *comm.Group) Option {
	return func(t *Trainer) { t.ranks = append(t.ranks, accelerate.WithGroup(g)) }
}

// stateWatch measures what the optimizer allocates, the peaks, and what a sharder holds.
type stateWatch struct {
	callbacks.Base
	t             *Trainer
	dev           *tensor.Device
	before, state int64
	keep          bool   // gradients have memory that stays
	begin         func() // forgets the peak when training begins; nil: it counts
	start, peak   int64
	held          strategy.Memory
	cut, rounded  int64
}

// OnTrainBegin notes what an optimizer has before its first step.
func (w *stateWatch) OnTrainBegin(*callbacks.Event) error {
	w.state += w.dev.MemStats().InUse
	if w.begin != nil {
		w.start, w.state = w.dev.MemStats().Peak, 0 // parameters have moved; shards have no state yet
		w.begin()
	}
	if w.keep {
		keepGradients(w.dev, w.t.acc.Params())
	}
	return nil
}

// OnPreOptimizerStep notes what is in use.
func (w *stateWatch) OnPreOptimizerStep(*callbacks.Event) error {
	w.before = w.dev.MemStats().InUse
	return nil
}

// OnOptimizerStep notes what the step added.
func (w *stateWatch) OnOptimizerStep(*callbacks.Event) error {
	w.state += w.dev.MemStats().InUse - w.before
	return nil
}

// OnStepEnd notes the peak, and what there is while the model is sharded.
func (w *stateWatch) OnStepEnd(*callbacks.Event) error {
	w.peak = w.dev.MemStats().Peak
	if w.held = w.t.acc.ShardMemory(); w.held.Parameters == 0 {
		return nil
	}
	w.cut, w.rounded = w.held.Parameters, 0
	w.held.Parameters += w.held.Uncut
	if projected := w.t.acc.Tree().Projected(); w.t.args.BF16 || w.t.args.FP16 {
		for _, p := range w.t.acc.Params() {
			if projected[p.Name] {
				w.rounded += int64(2 * p.Numel())
			}
		}
	}
	return nil
}
