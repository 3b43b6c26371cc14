// SPDX-License-Identifier: Apache-2.0

package args

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
)

// Program lists which of the things that settings name the running program has. That depends on the packages that it
// imports: see trainer.Program.
type Program struct {
	// Reporters are the names that report_to can choose from.
	Reporters []string
	// Engines are the names that ddp_backend can choose from besides auto, gloo, shm and tcp.
	Engines []string
	// Devices are the names that device can choose from besides auto and cpu: of kinds, as cuda, or with an index, as
	// cuda:0.
	Devices []string
	// Processes is how many the job has, 0 if that is not known: Mesh is not asked then.
	Processes int
	// Mesh describes what is wrong with the mesh of so many ranks; nil: nothing.
	Mesh func(a *TrainingArguments, ranks int) error
	// Stages is how many stages the schedule of a name, or a file, has on the ranks of a pipeline, or an error if it
	// does not fit so many micro-batches, 0 if their number is not known. nil: not known.
	Stages func(schedule string, ranks, microBatches int) (int, error)
	// Parts is how many parts the model has, each of which can be a stage; 0 if that is not known. Settings that
	// describe a model report it by [Checker.Parts].
	Parts int
	// Tensors returns what is wrong with how the matrices of a model are divided (tp_size, tp_plan, tp_parts); nil:
	// nothing. It is asked if they are. The model is what settings report by [Checker.Model], nil if they do not.
	Tensors func(a *TrainingArguments, model any) error
	// Tokens is Tensors for the tokens of the sequences that a model reads (cp_size, sp_size, cp_strategy, cp_chunks).
	Tokens func(a *TrainingArguments, model any) error
}

// DeviceAuto is an accelerator if the machine and the program have one, and the CPU otherwise.
const DeviceAuto = "auto"

// ForProgram gives the loader the program's features, so that Parse reports missing ones together with all other
// faults. An engine that the program lacks, as nccl without a GPU, is replaced by auto, with a notice: the choice of an
// engine changes no result.
func (l *Loader) ForProgram(p Program) { l.program = &p }

// ValidateFor is Validate together with what can be told of a program.
func (a *TrainingArguments) ValidateFor(p Program) error {
	c := a.checked()
	a.checkProgram(c, p)
	return c.Err()
}

// checkProgram checks report_to, ddp_backend and device against what there is.
func (a *TrainingArguments) checkProgram(c *Checker, p Program) {
	if c.OK("report_to") {
		_, want := reporters(a.ReportTo, append([]string{}, p.Reporters...))
		c.Require(want == "", "report_to", a.ReportTo, want)
	}
	if c.OK("ddp_backend") {
		have := append([]string{"auto", "gloo", "shm", "tcp"}, p.Engines...)
		c.Require(p.hasEngine(a.DDPBackend), "ddp_backend", string(a.DDPBackend),
			fmt.Sprintf("one of %s, which are what this program has", strings.Join(have, ", ")))
	}
	p.CheckDevice(c, a.Device)
	a.checkMeshOf(c, p)
	a.checkPipeline(c, p)
	a.checkContext(c, p)
	a.checkTensors(c, p)
	a.checkBatchSearch(c)
	if alpha := a.NeftuneNoiseAlpha; alpha != nil {
		c.Require(max(a.TPSize, a.CPSize, a.SPSize) <= 1, "neftune_noise_alpha", *alpha,
			"none with tp_size, cp_size or sp_size above 1")
	}
	c.Require(!a.PredictWithGenerate || max(a.CPSize, a.SPSize) <= 1, "predict_with_generate", true,
		"false with cp_size or sp_size above 1: ranks that share a sequence do not generate")
}

// CheckDevice checks the setting device against what there is.
func (p Program) CheckDevice(c *Checker, device string) {
	have := []string{DeviceAuto, "cpu"}
	for _, name := range p.Devices {
		kind, _, _ := strings.Cut(name, ":")
		for _, name := range []string{kind, name} {
			if !slices.Contains(have, name) {
				have = append(have, name)
			}
		}
	}
	want := fmt.Sprintf("one of %s, which are what this program has", strings.Join(have, ", "))
	if strings.HasPrefix(device, "cuda") && !slices.Contains(have, "cuda") {
		want += "; cuda needs a GPU and a program that imports tensor/cuda and is built with -tags cuda (docs/gpu.md)"
	}
	c.Require(slices.Contains(have, device), "device", device, want)
}

// ranks is how many the job has, 0 if that is not known.
func (a *TrainingArguments) ranks(p Program) int {
	if p.Processes == 0 {
		return 0
	}
	return max(p.Processes, a.NumReplicas)
}

// checkBatchSearch refuses auto_find_batch_size where ranks exchange something in each pass, or have a state besides
// the optimizer's.
func (a *TrainingArguments) checkBatchSearch(c *Checker) {
	if !a.AutoFindBatchSize || !c.OK("fsdp", "zero_stage") {
		return
	}
	var beside []string
	for _, other := range []struct {
		set bool
		key string
	}{
		{a.ShardStrategy() != NoShard, "fsdp, zero_stage or dp_shard_size"}, {a.PPSize > 1, "pp_size"},
		{max(a.CPSize, a.SPSize) > 1, "cp_size or sp_size"}, {max(a.TPSize, a.TPParts) > 1, "tp_size or tp_parts"},
		{a.OffloadParams != OffloadNone, "offload_params"}, {a.OffloadOptimizer != OffloadNone, "offload_optimizer"},
		{a.DDPCommHook != CommHookNo, "ddp_comm_hook"}, {a.LocalSGDSteps > 0, "local_sgd_steps"},
	} {
		if other.set {
			beside = append(beside, other.key)
		}
	}
	c.Require(len(beside) == 0, "auto_find_batch_size", true, "false, or a run without "+strings.Join(beside, ", "))
}

// checkMeshOf checks that the ranks of the job can form the mesh.
func (a *TrainingArguments) checkMeshOf(c *Checker, p Program) {
	ranks := a.ranks(p)
	if p.Mesh == nil || ranks == 0 || !c.OK("num_replicas", "pp_size", "dp_replicate_size", "dp_shard_size", "cp_size",
		"sp_size", "tp_size", "fsdp", "zero_stage") {
		return
	}
	c.addAll(p.Mesh(a, ranks))
}

// addAll adds a fault for each error that one joins, at any depth.
func (c *Checker) addAll(err error) {
	if err == nil {
		return
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range all.Unwrap() {
			c.addAll(err)
		}
		return
	}
	c.add(Fault{Problem: strings.TrimPrefix(err.Error(), "accelerate: ")})
}

// checkTensors checks what does not go together with divided matrices, or with sums in parts on one rank.
func (a *TrainingArguments) checkTensors(c *Checker, p Program) {
	if !c.OK("tp_parts", "tp_plan") || max(a.TPSize, a.TPParts) <= 1 {
		return
	}
	a.checkBesideTensors(c, "tp_size 1 and tp_parts 1: ")
	if a.TPSize > 1 {
		o, _ := catalog.OptimizerNamed(string(a.Optim))
		c.Require(!o.Whole, "optim", a.Optim, "an optimizer that computes each element independently, such as "+
			"adamw_torch, or tp_size 1: ranks have parts of matrices, and it needs whole ones")
		c.Require(a.EMADecay == 0, "ema_decay", a.EMADecay, "0, or tp_size 1: each rank has only parts of the weights")
		c.Require(a.RecordHashes != RecordOp, "record_hashes", a.RecordHashes,
			"step, or tp_size 1: each rank has only parts of the modules' outputs")
	}
	if p.Tensors != nil && c.OK("tp_size") {
		c.addAll(p.Tensors(a, c.described()))
	}
}

// checkBesideTensors checks what is not built together with divided matrices. without completes what is wanted.
func (a *TrainingArguments) checkBesideTensors(c *Checker, without string) {
	without = ", or " + without
	c.Require(a.LocalSGDSteps == 0, "local_sgd_steps", a.LocalSGDSteps,
		"0"+without+"the ranks of a model step together")
	c.Require(a.DDPCommHook == CommHookNo, "ddp_comm_hook", a.DDPCommHook, "no"+without+"hooks are not built there")
	const disk = "offload to disk is not built there"
	c.Require(a.OffloadParams != OffloadDisk, "offload_params", a.OffloadParams, "none or cpu"+without+disk)
	c.Require(a.OffloadOptimizer != OffloadDisk, "offload_optimizer", a.OffloadOptimizer, "none or cpu"+without+disk)
}

// checkPipeline checks the schedule against the size of the pipeline, the micro-batches, the split and the model.
func (a *TrainingArguments) checkPipeline(c *Checker, p Program) {
	if !c.OK("pp_size") {
		return
	}
	if a.PPSize == 1 {
		const want = "it left out, or pp_size of at least 2 beside it"
		unset := a.PPSchedule == "" || a.PPSchedule == Default("").PPSchedule
		c.Require(unset && !c.Given("pp_schedule"), "pp_schedule", a.PPSchedule, want)
		c.Require(len(a.PPSplit) == 0, "pp_split", a.PPSplit, want)
		return
	}
	a.checkPipelined(c)
	if p.Stages == nil {
		return
	}
	stages, err := p.Stages(a.PPSchedule, a.PPSize, a.microBatches(c, p))
	if err != nil {
		c.refuse("pp_schedule", a.PPSchedule, inOneLine(err.Error()))
		return
	}
	a.checkStages(c, stages, cmp.Or(p.Parts, c.parts))
}

// checkPipelined checks what does not go together with a pipeline.
func (a *TrainingArguments) checkPipelined(c *Checker) {
	c.Require(!strings.HasPrefix(string(a.Optim), "schedule_free_"), "optim", a.Optim,
		"another one, or pp_size 1: it averages weights, of which each rank needs all")
	c.Require(a.DDPCommHook == CommHookNo, "ddp_comm_hook", a.DDPCommHook, "no: hooks are not built in pipelines")
	c.Require(a.LocalSGDSteps == 0, "local_sgd_steps", a.LocalSGDSteps, "0: the ranks of a pipeline step together")
	c.Require(a.OffloadParams != OffloadDisk, "offload_params", a.OffloadParams,
		"none or cpu: offload to disk is not built in pipelines")
	c.Require(a.OffloadOptimizer != OffloadDisk, "offload_optimizer", a.OffloadOptimizer,
		"none or cpu: offload to disk is not built in pipelines")
}

// checkContext checks what does not go together with sequences whose tokens are divided.
func (a *TrainingArguments) checkContext(c *Checker, p Program) {
	if a.ContextChunks() <= 1 {
		return
	}
	off := "cp_size 1"
	switch {
	case a.contextRanks() == 1:
		off = "cp_chunks 0"
	case a.SPSize > 1:
		off = "sp_size 1"
	}
	if !c.OK("cp_size", "sp_size", "cp_chunks") {
		return
	}
	without := func(ok bool, key string, value any, want string) {
		c.Require(ok, key, value, want+", or "+off+": they are not built together")
	}
	without(a.LocalSGDSteps == 0, "local_sgd_steps", a.LocalSGDSteps, "0")
	if a.contextRanks() > 1 {
		without(a.OffloadParams != OffloadDisk, "offload_params", a.OffloadParams, "none or cpu")
		stateful := a.DDPCommHook == CommHookPowerSGD || a.DDPCommHook == CommHookTopK
		without(!stateful, "ddp_comm_hook", a.DDPCommHook, "no, fp16, bf16 or int8")
	}
	if p.Tokens != nil && c.OK("cp_strategy") {
		c.addAll(p.Tokens(a, c.described()))
	}
}

// microBatches is how many a pipeline's step has, 0 if that is not known.
func (a *TrainingArguments) microBatches(c *Checker, p Program) int {
	if !c.OK("per_device_train_batch_size", "gradient_accumulation_steps", "global_train_batch_size", "num_replicas",
		"cp_size", "sp_size", "tp_size") {
		return 0
	}
	others := a.PPSize * max(a.CPSize, a.SPSize) * a.TPSize // ranks that share samples
	ranks := a.ranks(p)
	if a.GlobalTrainBatchSize > 0 && (ranks == 0 || ranks%others > 0) {
		return 0
	}
	micro, _ := a.AccumulationSteps(ranks / others) // the trainer reports what does not divide
	return micro
}

// checkStages checks that a model of so many parts, 0 if that is not known, can be cut into the stages.
func (a *TrainingArguments) checkStages(c *Checker, stages, parts int) {
	if parts > 0 {
		c.Require(stages <= parts, "pp_size", a.PPSize, fmt.Sprintf("at most %d stages, as many as the model has "+
			"parts; %s with pp_size %d has %d", parts, a.PPSchedule, a.PPSize, stages))
	}
	split, err := a.PipelineSplit()
	if err != nil || split == nil {
		return
	}
	each := fmt.Sprintf("%d numbers, one for each stage of %s with pp_size %d", stages, a.PPSchedule, a.PPSize)
	if !c.Require(len(split) == stages, "pp_split", a.PPSplit, each) || parts == 0 {
		return
	}
	sum := 0
	for _, n := range split {
		sum += n
	}
	c.Require(sum == parts, "pp_split", a.PPSplit,
		fmt.Sprintf("%d parts in all, those of the model; these are %d", parts, sum))
}

// inOneLine joins the lines of a text that lists faults.
func inOneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}

func (p Program) hasEngine(b Backend) bool {
	return b != BackendNCCL && b != BackendMPI || slices.Contains(p.Engines, string(b))
}

// replaceEngine takes auto for an engine that the user asked for and the program lacks.
func (m *merge) replaceEngine(structs []any) []Notice {
	const key = "ddp_backend"
	a, p := m.loader.training(structs), m.loader.program
	if a == nil || p == nil || m.origins[key] == "" || p.hasEngine(a.DDPBackend) {
		return nil
	}
	tag := map[Backend]string{BackendMPI: "mpi", BackendNCCL: "cuda"}[a.DDPBackend]
	text := fmt.Sprintf("has no effect: built without %[1]s (comm/%[1]s, -tags %[2]s), this program takes %[3]s",
		a.DDPBackend, tag, BackendAuto)
	a.DDPBackend = BackendAuto
	return []Notice{{key, m.origins[key], text}}
}
