// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
)

// ShardStrategy says of what each rank has a part only, instead of the whole.
type ShardStrategy string

// The strategies, by the names of ZeRO (Rajbhandari et al. 2020) and FSDP (Zhao et al. 2023). All give the bits of one
// rank.
const (
	// NoShard is data parallelism: every rank has everything.
	NoShard ShardStrategy = ""
	// ShardOptimizer shards the optimizer's state: ZeRO stage 1.
	ShardOptimizer ShardStrategy = "optimizer"
	// ShardGradients shards the optimizer's state and the gradients: ZeRO stage 2.
	ShardGradients ShardStrategy = "gradients"
	// ShardGradOp also shards the parameters, which are whole from a unit's forward pass to the end of the backward
	// pass: FSDP's SHARD_GRAD_OP.
	ShardGradOp ShardStrategy = "shard_grad_op"
	// FullShard also shards the parameters, which are whole only while their unit computes: ZeRO stage 3, FSDP's
	// FULL_SHARD.
	FullShard ShardStrategy = "full_shard"
)

// StateDictType is the form of the checkpoints of a model that is spread over ranks.
type StateDictType string

// The forms, by the names of PyTorch's FSDP.
const (
	// FullStateDict has the files of a model that is not spread; rank 0 gathers and writes them.
	FullStateDict StateDictType = "full_state_dict"
	// ShardedStateDict has a file of each rank with what it owns. Any number of ranks can load it, under any strategy.
	ShardedStateDict StateDictType = "sharded_state_dict"
)

// UnmarshalText implements encoding.TextUnmarshaler. It takes either case, as accelerate does.
func (s *StateDictType) UnmarshalText(text []byte) error {
	*s = StateDictType(strings.ToLower(string(text)))
	return nil
}

// zeroStages are the strategies by ZeRO's stage.
var zeroStages = []ShardStrategy{NoShard, ShardOptimizer, ShardGradients, FullShard}

// ShardStrategy is what fsdp and zero_stage say, or FullShard if only dp_shard_size asks for shards; Validate has
// checked them.
func (a *TrainingArguments) ShardStrategy() ShardStrategy {
	if s, want := a.fsdpStrategy(); want == "" && s != NoShard {
		return s
	}
	if s := zeroStages[min(max(a.ZeroStage, 0), len(zeroStages)-1)]; s != NoShard || a.DPShardSize <= 1 {
		return s
	}
	return FullShard
}

// fsdpStrategy is what fsdp says, or what was wanted of it.
func (a *TrainingArguments) fsdpStrategy() (s ShardStrategy, want string) {
	words := strings.FieldsFunc(strings.Join(a.FSDP, " "), func(r rune) bool { return r == ' ' || r == ',' })
	var named []string
	for _, w := range words {
		switch w = strings.ToLower(w); w {
		case "full_shard", "true":
			s, named = FullShard, append(named, w)
		case "shard_grad_op":
			s, named = ShardGradOp, append(named, w)
		case "no_shard", "false":
			s, named = NoShard, append(named, w)
		case "auto_wrap": // the units are the model's blocks
		case "offload": // to the host's memory, where a CPU's parameters are anyway
		case "hybrid_shard":
			s, named = FullShard, append(named, w)
		case "hybrid_shard_zero2":
			s, named = ShardGradOp, append(named, w)
		default:
			return NoShard, "full_shard, shard_grad_op, hybrid_shard, hybrid_shard_zero2 or no_shard, and auto_wrap " +
				"beside it"
		}
	}
	switch {
	case len(named) > 1:
		return NoShard, fmt.Sprintf("one strategy, not %s", strings.Join(named, " and "))
	case len(words) > 0 && len(named) == 0:
		return NoShard, "full_shard or shard_grad_op beside auto_wrap"
	}
	return s, ""
}

// Hybrid reports whether fsdp asks for a whole model on each host, spread over its ranks: FSDP's HYBRID_SHARD.
func (a *TrainingArguments) Hybrid() bool {
	return strings.Contains(strings.ToLower(strings.Join(a.FSDP, " ")), "hybrid_shard")
}

// PipelineSplit is PPSplit as numbers; nil if there are none.
func (a *TrainingArguments) PipelineSplit() (split []int, err error) {
	for _, text := range a.PPSplit {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("args: pp_split has %q: want numbers of at least 1", text)
		}
		split = append(split, n)
	}
	return split, nil
}

// TensorPlan is TPPlan as texts; nil if it changes nothing. want is empty, or says what was wanted.
func (a *TrainingArguments) TensorPlan() (plan map[string]string, want string) {
	if len(a.TPPlan) == 0 {
		return nil, ""
	}
	plan = map[string]string{}
	for path, style := range a.TPPlan {
		text, ok := style.(string)
		if !ok {
			return nil, planWanted() + "; " + path + " has none"
		}
		plan[path] = text
	}
	return plan, ""
}

// planWanted is what tp_plan may be.
func planWanted() string {
	return "auto, a JSON object of styles by paths of modules, or a .json or .yaml file of one; the styles are " +
		strings.Join(catalog.TensorStyles, ", ")
}

// maxAxis is the most ranks along an axis of the mesh.
const maxAxis = 1 << 12

func (a *TrainingArguments) checkMesh(c *Checker) {
	between(c, "pp_size", a.PPSize, 1, maxAxis)
	_, err := a.PipelineSplit()
	c.Require(err == nil, "pp_split", a.PPSplit, "numbers of parts, each at least 1")
	between(c, "dp_replicate_size", a.DPReplicateSize, 0, maxAxis)
	between(c, "dp_shard_size", a.DPShardSize, 0, maxAxis)
	between(c, "cp_size", a.CPSize, 1, maxAxis)
	between(c, "sp_size", a.SPSize, 0, maxAxis)
	between(c, "tp_size", a.TPSize, 1, maxAxis)
	between(c, "tp_parts", a.TPParts, 0, maxAxis)
	_, want := a.TensorPlan()
	c.Require(want == "", "tp_plan", a.TPPlan, want)
	c.Require(a.CPSize <= 1 || a.SPSize <= 1, "sp_size", a.SPSize, "1, or cp_size 1: both divide the tokens")
	a.checkChunks(c)
	if s, want := a.fsdpStrategy(); want == "" && s == NoShard && fsdpOn(a.FSDP) { // no_shard
		c.Require(a.DPShardSize <= 1 || a.ZeroStage > 0, "dp_shard_size", a.DPShardSize,
			"0, or fsdp without no_shard")
	}
}

// ContextChunks is how many chunks sequences are cut into: cp_chunks, or what 0 means. Up to 1 they are whole.
func (a *TrainingArguments) ContextChunks() int {
	if n := a.contextRanks(); a.CPChunks == 0 && n > 1 {
		return 2 * n
	}
	return a.CPChunks
}

// ContextStrategy is cp_strategy, or what sp_size stands for.
func (a *TrainingArguments) ContextStrategy() CPStrategy {
	if a.SPSize > 1 {
		return CPUlysses
	}
	return a.CPStrategy
}

// contextRanks is how many ranks divide the tokens: sp_size is another name, and one of both is 1.
func (a *TrainingArguments) contextRanks() int { return max(a.CPSize, a.SPSize, 1) }

// maxChunks is the most chunks of a sequence.
const maxChunks = 2 * maxAxis

// checkChunks checks how sequences are cut.
func (a *TrainingArguments) checkChunks(c *Checker) {
	if !c.OK("cp_size", "sp_size") {
		return
	}
	const power = "a power of two, so that the sums of the ranks form a tree"
	n, least := a.contextRanks(), 1
	c.Require(a.CPSize <= 1 || powerOf2(float64(n)), "cp_size", a.CPSize, power)
	c.Require(a.SPSize <= 1 || powerOf2(float64(n)), "sp_size", a.SPSize, power)
	if n > 1 {
		least = 2 * n
	}
	chunks := a.CPChunks
	c.Require(chunks == 0 || chunks >= least && chunks <= maxChunks && powerOf2(float64(chunks)), "cp_chunks", chunks,
		fmt.Sprintf("a power of two from %d, two for each rank along cp, to %d; or 0", least, maxChunks))
	c.Require(a.SPSize <= 1 || a.CPStrategy == CPUlysses || a.CPStrategy == CPGather && !c.Given("cp_strategy"),
		"cp_strategy", a.CPStrategy, "ulysses with sp_size above 1, or cp_size in its place")
}

func (a *TrainingArguments) checkSharding(c *Checker) {
	s, want := a.fsdpStrategy()
	c.Require(want == "", "fsdp", a.FSDP, want)
	a.checkMesh(c)
	between(c, "fsdp_persistence_threshold", a.FSDPPersistenceThreshold, 0, 1<<40)
	_, err := regexp.Compile(a.FSDPIgnoredModules)
	c.Require(err == nil, "fsdp_ignored_modules", a.FSDPIgnoredModules, "a regular expression for paths of modules")
	c.Require(a.FSDPReduceDType == ReduceFloat32 || want != "" || a.ShardStrategy() != NoShard, "fsdp_reduce_dtype",
		a.FSDPReduceDType, "float32, or a sharded model (fsdp, zero_stage); without sharding use ddp_comm_hook bf16")
	between(c, "fsdp_min_num_params", a.FSDPMinNumParams, 0, 1<<40)
	c.Require(a.FSDPMinNumParams == 0 || len(a.FSDPTransformerLayerClsToWrap) == 0, "fsdp_min_num_params",
		a.FSDPMinNumParams, "0, or no fsdp_transformer_layer_cls_to_wrap: units are chosen by size or by class")
	if !between(c, "zero_stage", a.ZeroStage, 0, len(zeroStages)-1) || want != "" || a.ShardStrategy() == NoShard {
		return
	}
	c.Require(s == NoShard || a.ZeroStage == 0, "zero_stage", a.ZeroStage, "0, or no fsdp: each selects a strategy")
	c.Require(a.DDPCommHook == CommHookNo, "ddp_comm_hook", a.DDPCommHook,
		"no: the gradients of a sharded model are summed exactly")
	c.Require(a.LocalSGDSteps == 0, "local_sgd_steps", a.LocalSGDSteps, "0: a rank steps with its shard only")
}
