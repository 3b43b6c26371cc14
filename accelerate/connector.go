// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/accelerate/localsgd"
	"github.com/lockstep-ml/lockstep/accelerate/precision"
	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// The connector is this file, the only one that reads args.TrainingArguments: it makes a plan of them, and the rest of
// the package follows the plan.

// New chooses the device for the given arguments and determines the rank of this process
// among those that a launcher started; see Open. With WithGroup it is a rank of that group
// instead. The arguments are read once: what changes in them later has no effect, see SetArguments.
func New(a *args.TrainingArguments, opts ...Option) (*Accelerator, error) {
	p := planOf(a)
	return newRank(p, named(p.device), opts, -1, p.replicas)
}

// Replicas returns the accelerators of n ranks that are goroutines of this process, in rank order. They take the
// devices that the arguments name round robin; those that share one, such as the CPU, share its workers, which help any
// rank that has work. Connect prepares them for collective work.
func Replicas(a *args.TrainingArguments, n int, opts ...Option) ([]*Accelerator, error) {
	p := planOf(a)
	accs, on := make([]*Accelerator, n), named(p.device)
	for r := range accs {
		var err error
		if accs[r], err = newRank(p, on, opts, r, n); err != nil {
			return nil, err
		}
	}
	return accs, shareDevices(accs)
}

// Run calls body on every rank of this process: num_replicas goroutines, or the single
// rank of this process in a launcher's job. Use it to run your own training loop on any
// number of ranks. Each rank creates its own model, in body. See RunRanks.
func Run(ctx context.Context, a *args.TrainingArguments, body func(acc *Accelerator) error, opts ...Option) error {
	accs, err := Replicas(a, max(1, a.NumReplicas), opts...)
	if err != nil {
		return err
	}
	return RunRanks(ctx, accs, body)
}

// SetArguments makes a rank follow other arguments from its next Prepare on, as a run does that resumes with those of
// its checkpoint. Until then the model trains by the old ones; Layout and the windows and batches that are made for the
// next follow the new ones. The device, the ranks, their engine and the sharding stay as New chose them.
func (acc *Accelerator) SetArguments(a *args.TrainingArguments) { acc.next = planOf(a) }

// OpenDevice opens the device that the argument device names, for programs that compute without a training run. auto is
// an accelerator if the program has a usable one, and otherwise the CPU, with a warning that gives the reason; a kind
// of devices is its first one.
func OpenDevice(name string) (*tensor.Device, error) {
	dev, err := named(deviceOf(name)).take(0, slog.Default())
	if err != nil {
		return nil, fmt.Errorf("accelerate: device %s: %w", name, err)
	}
	return dev, nil
}

// deviceOf is the argument device as a plan has it.
func deviceOf(name string) string {
	if name == args.DeviceAuto {
		return ""
	}
	return name
}

// plan is what the arguments come to, in the words of this package and of those below it.
type plan struct {
	device    string // to compute on; "" is the best that there is
	replicas  int    // ranks that are goroutines of this process
	seed      uint64
	recompute bool // the units that Prepare is given
	tf32      bool
	lower     precision.DTypes
	scaling   *precision.Rule // nil without fp16
	batches   batches
	loading   data.LoaderOptions
	job       job
	mesh      comm.Mesh // sizes that are asked for; 0 leaves an axis open
	pipelining
	context  *ContextParallel // nil: sequences are whole
	tensors  tensors
	exchange exchange
	local    localsgd.Options
	sharding Sharding
	wrap     shard.Wrap // by class or size
	disk     diskRule

	settings func() ([]byte, error) // the arguments as JSON, which ranks compare
}

// batches is how the training stream is cut, and who gets what.
type batches struct {
	train, eval int // samples of a micro-batch of a rank
	dropLast    bool
	dealing     dealing
	shard       samplers.BatchSamplerShardOptions // of wholeBatches
	// accumulation is the number of micro-batches of each of so many ranks in a window.
	accumulation func(ranks int) (int, error)
}

// dealing is how ranks share the samples.
type dealing int

const (
	microBatches dealing = iota // of each window
	wholeBatches                // as accelerate's BatchSamplerShard deals them
	singles                     // one by one, as torch's DistributedSampler deals them
)

// job is how the ranks are connected.
type job struct {
	engine  string // between processes; "" is shared memory on one host, otherwise TCP
	devices deviceEngine
	group   comm.Options // deadline and order of sums
}

// deviceEngine is whether tensors go from device to device, past the engine between processes.
type deviceEngine int

const (
	deviceEngineNever deviceEngine = iota
	deviceEngineIf                 // the program has one
	deviceEngineAlways
)

// exchange is what happens to gradients and statistics between ranks.
type exchange struct {
	strategy.Exchange
	hook         string
	hookSettings map[string]any
	equalInit    bool // parameters that differ at first are an error
	statistics   bool // running statistics follow the micro-batches of all ranks
}

// diskRule is what lies in files between passes.
type diskRule struct {
	params, state bool
	host          bool // something is wanted in the host's memory
	dir           string
}

// planOf reads the arguments.
func planOf(a *args.TrainingArguments) plan {
	a = a.Clone() // later changes have no effect
	p := plan{
		replicas: a.NumReplicas, seed: a.Seed, recompute: a.GradientCheckpointing, tf32: a.TF32,
		batches: batchesOf(a), job: jobOf(a), mesh: sizesOf(a), sharding: shardingOf(a), settings: a.JSON,
		context: contextOf(a),
		loading: data.LoaderOptions{Workers: a.DataloaderNumWorkers, PrefetchFactor: a.PrefetchBatches()},
		exchange: exchange{
			Exchange: strategy.Exchange{DeterministicRanks: a.DeterministicRanks, BucketBytes: a.DDPBucketCapMB << 20,
				RequireUsed: !a.DDPFindUnusedParameters, StaticGraph: a.DDPStaticGraph},
			hook: string(a.DDPCommHook), hookSettings: a.DDPCommStateOption,
			equalInit: a.DDPRequireEqualInit, statistics: a.DDPBroadcastBuffers,
		},
		local: localsgd.Options{Every: int64(a.LocalSGDSteps), After: int64(a.StartLocalSGDIter)},
		wrap:  shard.Wrap{Classes: a.FSDPTransformerLayerClsToWrap, MinParams: a.FSDPMinNumParams},
		disk: diskRule{params: a.OffloadParams == args.OffloadDisk, state: a.OffloadOptimizer == args.OffloadDisk,
			host: a.OffloadParams == args.OffloadCPU || a.OffloadOptimizer == args.OffloadCPU,
			dir:  cmp.Or(a.OffloadDir, filepath.Join(a.OutputDir, "offload"))},
	}
	p.pipelining.schedule = a.PPSchedule
	p.pipelining.split, _ = a.PipelineSplit() // Validate has checked it
	p.tensors = tensorsOf(a)
	p.device = deviceOf(a.Device)
	p.lower.Train = half(a.BF16, a.FP16)
	p.lower.Eval = cmp.Or(half(a.BF16FullEval, a.FP16FullEval), p.lower.Train)
	if a.FP16 {
		p.scaling = &precision.Rule{Initial: a.FP16InitialScale, Least: a.FP16MinScale, Interval: a.FP16GrowthInterval,
			Hysteresis: a.FP16Hysteresis, Consecutive: a.FP16ConsecutiveHysteresis,
			DeepSpeed: a.FP16LossScaler == args.LossScalerDeepSpeed}
	}
	return p
}

// half is the dtype that bf16 and fp16 name.
func half(bf16, fp16 bool) tensor.DType {
	switch {
	case bf16:
		return tensor.BFloat16
	case fp16:
		return tensor.Float16
	}
	return tensor.Invalid
}

func batchesOf(a *args.TrainingArguments) batches {
	b := batches{train: a.PerDeviceTrainBatchSize, eval: a.PerDeviceEvalBatchSize, dropLast: a.DataloaderDropLast,
		accumulation: a.AccumulationSteps}
	switch o, ok := a.BatchSharding(); {
	case ok:
		b.dealing = wholeBatches
		b.shard = samplers.BatchSamplerShardOptions{SplitBatches: o.Split, EvenBatches: o.Even}
	case a.DataSharding == args.ShardingTorch:
		b.dealing = singles
	}
	return b
}

func jobOf(a *args.TrainingArguments) job {
	j := job{group: comm.Options{Timeout: time.Duration(a.DDPTimeout) * time.Second,
		FastOrder: a.DDPReductionOrder == args.OrderFast}}
	switch a.DDPBackend {
	case args.BackendAuto:
		j.devices = deviceEngineIf
	case args.BackendGloo:
	case args.BackendNCCL:
		j.devices = deviceEngineAlways
	default:
		j.engine = string(a.DDPBackend)
	}
	return j
}

func shardingOf(a *args.TrainingArguments) Sharding {
	return Sharding{Strategy: shard.Strategy(a.ShardStrategy()), Gather: !a.FSDPShareParameters,
		Hybrid: a.Hybrid(), Ignored: a.FSDPIgnoredModules, Persist: a.FSDPPersistenceThreshold,
		Rounded: a.FSDPReduceDType == args.ReduceBFloat16}
}

// contextOf is how the tokens of sequences are divided; nil: they are not.
func contextOf(a *args.TrainingArguments) *ContextParallel {
	chunks := a.ContextChunks()
	if chunks <= 1 {
		return nil
	}
	methods := map[args.CPStrategy]*cp.Method{args.CPUlysses: cp.Ulysses, args.CPRing: cp.Ring}
	return &ContextParallel{Chunks: chunks, Method: methods[a.ContextStrategy()]}
}

// MeshOf is the mesh that so many ranks form under the arguments: of their sizes, and the ranks that these leave. Its
// error says all that is wrong, and what would do. Of hybrid_shard it does not know the hosts.
func MeshOf(a *args.TrainingArguments, world int) (comm.Mesh, error) {
	return ranks.MeshFor(world, sizesOf(a), a.ShardStrategy() != args.NoShard)
}

func tensorsOf(a *args.TrainingArguments) tensors {
	t := tensors{parts: a.TPParts, most: a.DeterministicRanks}
	t.plan, _ = a.TensorPlan() // Validate has checked it
	return t
}

// CheckTensors lists what is wrong with how the arguments divide the matrices of a model (tp_size, tp_plan, tp_parts).
// Its error has all faults. A nil model leaves out those of the model.
func CheckTensors(a *args.TrainingArguments, model nn.Module) error {
	t := tensorsOf(a)
	if model == nil {
		_, err := tp.ParsePlan(t.plan)
		return errors.Join(err, tp.Size{Ranks: a.TPSize, Parts: cmp.Or(a.TPParts, a.TPSize)}.Validate())
	}
	_, _, err := t.settle(nn.Walk(model), model, a.TPSize)
	return err
}

// TensorParts is how many parts each sum of the model has that ranks along tp share under the arguments (tp_parts); 0
// if the model is not divided.
func TensorParts(a *args.TrainingArguments, model nn.Module) (int, error) {
	if max(a.TPSize, a.TPParts) <= 1 {
		return 0, nil
	}
	_, parts, err := tensorsOf(a).settle(nn.Walk(model), model, a.TPSize)
	return parts, err
}

// RehearseTensors runs a forward pass of a model that CheckTensors accepts, without values and as a rank of tp_size has
// it, or as one of several that share the parts of one rank. Its error says which rules of the plan do not fit each
// other. run computes the pass of the model that it gets.
func RehearseTensors(a *args.TrainingArguments, model nn.Module, run func(c *nn.Ctx, m nn.Module)) error {
	if max(a.TPSize, a.TPParts) <= 1 {
		return nil
	}
	tree := nn.Walk(model)
	plan, parts, err := tensorsOf(a).settle(tree, model, a.TPSize)
	if err != nil {
		return err
	}
	size := tp.Size{Ranks: a.TPSize, Parts: parts}
	if size.Ranks == 1 {
		size.Ranks = parts
		if _, err := plan.Resolve(tree, size); err != nil {
			return nil // so many ranks cannot share it
		}
	}
	return plan.Rehearse(model, size, run)
}

// TensorConfig is how the arguments divide a model that CheckTensors accepts among the ranks of a group; ok is false if
// they do not.
func TensorConfig(a *args.TrainingArguments, model nn.Module, g *comm.Group) (cfg tp.Config, ok bool, err error) {
	if max(a.TPSize, a.TPParts) <= 1 {
		return cfg, false, nil
	}
	plan, parts, err := tensorsOf(a).settle(nn.Walk(model), model, a.TPSize)
	return tp.Config{Group: g, Plan: plan, Parts: parts}, err == nil, err
}

// ShardsGradients reports whether, under the arguments, a rank has only the sums of its shard of the gradients.
func ShardsGradients(a *args.TrainingArguments) bool {
	return shard.Strategy(a.ShardStrategy()).ShardsGradients()
}

// StageStrategy is how ranks with the same stages of a pipeline train them under the arguments, each stage by itself
// (pp.Config.Strategy). tree is that of the whole model.
func StageStrategy(a *args.TrainingArguments, tree *nn.Tree) (func(strategy.Job) (strategy.Strategy, error), error) {
	p := planOf(a)
	hook, err := commHook(nil, p.exchange)
	of := &Accelerator{plan: p, sharding: p.sharding, tree: tree}
	return func(j strategy.Job) (strategy.Strategy, error) { return of.choose(hook, j) }, err
}

// TokenPasses are those of batches whose tokens the arguments divide among the ranks of a group, nil for one; nil if
// they do not.
func TokenPasses(a *args.TrainingArguments, g *comm.Group) (*cp.Passes, error) {
	o := contextOf(a)
	if o == nil {
		return nil, nil
	}
	return cp.New(cp.Config{Group: g, Chunks: o.Chunks, Method: o.Method})
}

// CheckTokens is what is wrong with how the arguments divide the tokens of the sequences that a model reads (cp_size,
// sp_size, cp_strategy, cp_chunks). Its error has all faults.
func CheckTokens(a *args.TrainingArguments, model nn.Module) error {
	o := contextOf(a)
	if o == nil || model == nil {
		return nil
	}
	return o.check(nn.Walk(model), model, sizesOf(a).CP, a.TPSize)
}

func sizesOf(a *args.TrainingArguments) comm.Mesh {
	// sp is cp by another exchange, and one of both is 1
	return comm.Mesh{PP: a.PPSize, DPReplicate: a.DPReplicateSize, DPShard: a.DPShardSize, CP: max(a.CPSize, a.SPSize),
		TP: a.TPSize}
}

// shared are the settings that ranks must share although a run may be resumed with others:
// their calls depend on them.
var shared = []string{"ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_require_equal_init", "ddp_static_graph",
	"fsdp", "fsdp_state_dict_type", "zero_stage", "pp_size", "pp_schedule", "pp_split", "dp_replicate_size",
	"dp_shard_size", "cp_size", "sp_size", "cp_strategy", "tp_size", "tp_plan", "load_best_model_at_end",
	"gradient_checkpointing", "per_device_eval_batch_size", "prediction_loss_only"}

// sameSettings names the first setting that matters and differs. Ranks mostly have the same text, which is not read.
func sameSettings(zero, other json.RawMessage, rank int) error {
	if bytes.Equal(zero, other) {
		return nil
	}
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
			return fmt.Errorf("accelerate: %s is %s on rank 0 and %s on rank %d: want the same value on all ranks",
				d.Key, d.Old, d.New, rank)
		}
	}
	return nil
}
