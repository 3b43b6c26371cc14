// SPDX-License-Identifier: Apache-2.0

package args

import (
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
)

// Strategy says when something recurring happens: logging, evaluation, saving.
type Strategy string

// The strategies.
const (
	StrategyNo    Strategy = "no"
	StrategySteps Strategy = "steps" // every so many optimizer steps
	StrategyEpoch Strategy = "epoch" // at the end of each epoch
	StrategyBest  Strategy = "best"  // when the watched metric improves; saving only
)

// SchedulerType names a learning-rate schedule. --help lists what LRSchedulerKwargs may hold for each.
type SchedulerType string

// The schedules, with HuggingFace's names and formulas, or DeepSpeed's.
const (
	SchedulerConstant              SchedulerType = "constant"
	SchedulerConstantWithWarmup    SchedulerType = "constant_with_warmup"
	SchedulerLinear                SchedulerType = "linear"
	SchedulerCosine                SchedulerType = "cosine"
	SchedulerCosineWithRestarts    SchedulerType = "cosine_with_restarts"
	SchedulerPolynomial            SchedulerType = "polynomial"
	SchedulerInverseSqrt           SchedulerType = "inverse_sqrt"
	SchedulerCosineWithMinLR       SchedulerType = "cosine_with_min_lr"
	SchedulerCosineWarmupWithMinLR SchedulerType = "cosine_warmup_with_min_lr"
	SchedulerWarmupStableDecay     SchedulerType = "warmup_stable_decay"

	// after each evaluation, by metric_for_best_model
	SchedulerReduceLROnPlateau SchedulerType = "reduce_lr_on_plateau"
	SchedulerGreedy            SchedulerType = "greedy"

	// DeepSpeed's, by the names of its classes
	SchedulerWarmupLR       SchedulerType = "WarmupLR"
	SchedulerWarmupDecayLR  SchedulerType = "WarmupDecayLR"
	SchedulerWarmupCosineLR SchedulerType = "WarmupCosineLR"
)

func (SchedulerType) choices() []string { return catalog.ScheduleNames() }

// NonfiniteLoss is the policy for a loss or a gradient norm that is NaN or infinite. Under every policy it is counted
// and shown, and does not update the weights.
type NonfiniteLoss string

// The policies.
const (
	NonfiniteSkip  NonfiniteLoss = "skip"  // skip that step's update and continue
	NonfiniteStop  NonfiniteLoss = "stop"  // end the training as if it were finished, weights as before that step
	NonfiniteRaise NonfiniteLoss = "raise" // return an error from Train
)

// Backend names the engine of collective calls between processes.
type Backend string

// The engines. The last two are not part of Lockstep: they are those of a package that a
// program imports, which registers them (rendezvous.RegisterEngine).
const (
	BackendAuto Backend = "auto" // shared memory on one host, else TCP
	BackendGloo Backend = "gloo" // PyTorch's name for the CPU's engine: the same as auto
	BackendSHM  Backend = "shm"  // processes of one host
	BackendTCP  Backend = "tcp"  // processes of any hosts
	BackendNCCL Backend = "nccl" // GPUs
	BackendMPI  Backend = "mpi"  // CPU clusters
)

// ReductionOrder names the order in which ranks' gradients are added.
type ReductionOrder string

// The orders.
const (
	OrderTree ReductionOrder = "tree" // the same bits on any number of ranks
	OrderFast ReductionOrder = "fast" // the fastest one of the engine
)

// CPStrategy names how attention gets the keys and values of other ranks along cp.
type CPStrategy string

// The strategies of context parallelism: see package accelerate/cp.
const (
	CPGather  CPStrategy = "gather"
	CPUlysses CPStrategy = "ulysses"
	CPRing    CPStrategy = "ring"
)

// Offload names where tensors are that the device's memory need not hold between steps.
type Offload string

// The places, by the words of DeepSpeed's offload_optimizer and offload_param, whose nvme is a disk here.
const (
	OffloadNone Offload = "none" // the device's memory
	OffloadCPU  Offload = "cpu"  // the host's memory: on a CPU the same
	OffloadDisk Offload = "disk" // files in offload_dir
)

// ReduceDType names the dtype in which gradients travel between ranks.
type ReduceDType string

// The dtypes of gradients on their way.
const (
	ReduceFloat32  ReduceDType = "float32"
	ReduceBFloat16 ReduceDType = "bfloat16"
)

// LossScaler names the rule for the loss scale under fp16.
type LossScaler string

// The loss scalers.
const (
	// LossScalerTorch is torch.amp.GradScaler: fp16_growth_interval steps without overflow, since the factor changed,
	// double it.
	LossScalerTorch LossScaler = "torch"
	// LossScalerDeepSpeed is DeepSpeed's DynamicLossScaler: the factor is doubled by the step behind every
	// fp16_growth_interval steps without overflow, counted from the last overflow on.
	LossScalerDeepSpeed LossScaler = "deepspeed"
)

// HalfUpdate names how parameters of half types take updates that are smaller than their precision.
type HalfUpdate string

// The half updates.
const (
	HalfUpdatePlain      HalfUpdate = "plain"      // rounded to the nearest number: small updates are lost
	HalfUpdateKahan      HalfUpdate = "kahan"      // what rounding takes away is kept for the next step
	HalfUpdateStochastic HalfUpdate = "stochastic" // rounded up or down by chance
)

// LossAverage names what a logged loss is a mean over.
type LossAverage string

// The averages.
const (
	LossAverageTerms LossAverage = "terms" // all loss terms since the last record
	LossAverageSteps LossAverage = "steps" // the steps since then, each with the mean of its terms, as in HuggingFace
)

// RecordHashes is what of each step is recorded for lockstep diff.
type RecordHashes string

// What is recorded.
const (
	RecordNo   RecordHashes = "no"
	RecordStep RecordHashes = "step" // data, losses, gradients, weights and the optimizer's state
	RecordOp   RecordHashes = "op"   // also what each module computes
)

// TokensSeen says which input tokens are counted.
type TokensSeen string

// What is counted.
const (
	TokensSeenNo         TokensSeen = "no"
	TokensSeenAll        TokensSeen = "all"         // every token of every batch, padding too
	TokensSeenNonPadding TokensSeen = "non_padding" // those that the attention mask has; all without a mask
)

func (TokensSeen) choices() []string {
	return []string{string(TokensSeenNo), string(TokensSeenAll), string(TokensSeenNonPadding)}
}

// UnmarshalText accepts HuggingFace's booleans too: true is all, false is no.
func (t *TokensSeen) UnmarshalText(text []byte) error {
	switch strings.ToLower(string(text)) {
	case "true":
		*t = TokensSeenAll
	case "false":
		*t = TokensSeenNo
	default:
		*t = TokensSeen(text)
	}
	return nil
}

// LogLevel is the level of the program's log messages.
type LogLevel string

// The levels. LogLevelPassive leaves the logger as the program made it.
const (
	LogLevelPassive  LogLevel = "passive"
	LogLevelDebug    LogLevel = "debug"
	LogLevelInfo     LogLevel = "info"
	LogLevelWarning  LogLevel = "warning"
	LogLevelError    LogLevel = "error"
	LogLevelCritical LogLevel = "critical"
)

// Sampling says in which order training samples are visited.
type Sampling string

// The orders.
const (
	SamplingRandom     Sampling = "random"     // another permutation every epoch, from seed and epoch
	SamplingSequential Sampling = "sequential" // as the dataset has them

	// SamplingGroupByLength puts samples of similar length into one optimizer step, in another order every epoch, the
	// longest sample first. Evaluation and prediction keep the dataset's order.
	SamplingGroupByLength Sampling = "group_by_length"
)

// Sharding names the rules by which ranks share the training samples.
type Sharding string

// The rules.
const (
	// ShardingLockstep shares out the micro-batches of each optimizer step. No sample is repeated, and the result has
	// the same bits on any number of ranks.
	ShardingLockstep Sharding = "lockstep"
	// ShardingHuggingFace deals batches to the ranks as accelerate does (BatchSamplerShard, IterableDatasetShard).
	ShardingHuggingFace Sharding = "huggingface"
	// ShardingTorch deals samples to the ranks one by one, in torch's own random order, as torch's DistributedSampler
	// does. Iterable data are shared out as under ShardingHuggingFace.
	ShardingTorch Sharding = "torch"
)

// The special values of report_to. Every other value names a reporter.
const (
	ReportNone = "none"
	ReportAll  = "all"
)
