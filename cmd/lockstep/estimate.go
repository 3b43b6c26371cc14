// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all" // the architectures that it knows
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

const estimateUsage = `usage: lockstep estimate-memory MODEL [FLAGS]

Says how much memory the tensors of a training run need on each rank. MODEL is a saved
model's folder, or a config.json; weights are not read. The run is gone through without
computing anything, so that what it says is what a run allocates; beside tensors a process
needs some ten MiB, and a few percent more for free memory between blocks. The peak is less
than gradients and all that backward needs together: it makes the one as it frees the other.
"activations" is what there is beyond the other rows at the peak. With --fsdp or --zero_stage
the model is spread over the ranks, and the rows are those of one of them; "gathered units" is the
most that whole parameters and gradients of units take, which come and go, as far as they are
there at the peak a part of "activations"; "shared" is full_shard for ranks of one host, which have
the parameters once. "start" is the peak before the first step, when the
model is whole and is cut. With several ranks a table compares the strategies. --deepspeed and
--fsdp_config read the files that a training program reads; "auto" in them is what the flags say.

`

// estimateFlags are what memory depends on, under the names of TrainingArguments.
type estimateFlags struct {
	batch, accumulation, ranks, length int
	zeroStage, replicas                int
	fsdp                               []string
	optim, dtype, model                string
	deepspeed, fsdpConfig              string
	checkpointing, json, bf16, fp16    bool
}

func (f *estimateFlags) flagSet() *pflag.FlagSet {
	a := args.Default("")
	fs := pflag.NewFlagSet("estimate-memory", pflag.ContinueOnError)
	fs.IntVar(&f.batch, "per_device_train_batch_size", a.PerDeviceTrainBatchSize, "samples per micro-batch and rank")
	fs.IntVar(&f.length, "length", 0, "tokens per sample, or pixels per side of an image; 0 for the model's maximum "+
		"or default")
	fs.IntVar(&f.accumulation, "gradient_accumulation_steps", a.GradientAccumulationSteps,
		"micro-batches per optimizer step and rank")
	fs.IntVar(&f.ranks, "ranks", 1, "ranks of the run; several ranks sum their gradients")
	fs.IntVar(&f.ranks, "num_replicas", 1, "the same as ranks")
	fs.StringSliceVar(&f.fsdp, "fsdp", nil, "spread the model over the ranks: full_shard, shard_grad_op or "+
		"hybrid_shard")
	fs.IntVar(&f.replicas, "dp_replicate_size", 0, "replicas of the sharded model, each spread over its part of the "+
		"ranks; for hybrid_shard the number of hosts")
	fs.IntVar(&f.zeroStage, "zero_stage", 0, "stage of ZeRO: 1 spreads the optimizer's state, 2 the gradients too, 3 "+
		"the parameters too")
	fs.StringVar(&f.deepspeed, "deepspeed", "", "DeepSpeed's configuration, a JSON file")
	fs.StringVar(&f.fsdpConfig, "fsdp_config", "", "JSON or YAML file with HuggingFace's settings of fsdp")
	fs.StringVar(&f.model, "model_name_or_path", "", "the MODEL, instead of a word")
	fs.StringVar(&f.optim, "optim", string(a.Optim), "optimizer: adamw_torch, adamw_torch_fused, adam or sgd")
	fs.StringVar(&f.dtype, "dtype", "float32", "dtype of the parameters: float32, bfloat16, float16 or float64")
	fs.BoolVar(&f.bf16, "bf16", false, "compute in bfloat16 where that is safe")
	fs.BoolVar(&f.fp16, "fp16", false, "compute in float16 where that is safe")
	fs.BoolVar(&f.checkpointing, "gradient_checkpointing", false,
		"recompute activations in the backward pass instead of keeping them")
	fs.BoolVar(&f.json, "json", false, "print JSON")
	return fs
}

// estimate is what the command shows.
type estimate struct {
	ModelType string `json:"model_type"`
	Count     int    `json:"num_parameters"`
	*trainer.MemoryEstimate
	// Strategies are the same figures for each way to spread the model over several ranks.
	Strategies []strategyEstimate `json:"strategies,omitempty"`
}

// strategyEstimate is what a rank needs under a strategy.
type strategyEstimate struct {
	Strategy string `json:"strategy"`
	*trainer.MemoryEstimate
}

// strategies are those of the table.
var strategies = []struct {
	name string
	set  func(a *args.TrainingArguments)
}{
	{"no_shard (DDP)", func(*args.TrainingArguments) {}},
	{"zero_stage 1", func(a *args.TrainingArguments) { a.ZeroStage = 1 }},
	{"zero_stage 2", func(a *args.TrainingArguments) { a.ZeroStage = 2 }},
	{"shard_grad_op", func(a *args.TrainingArguments) { a.FSDP = []string{"shard_grad_op"} }},
	{"full_shard, zero_stage 3", func(a *args.TrainingArguments) { a.FSDP = []string{"full_shard"} }},
}

func (p *program) estimateMemory(argv []string) int {
	var f estimateFlags
	fs := f.flagSet()
	if code, done := p.parse(fs, argv, estimateUsage); done {
		return code
	}
	words := fs.Args()
	if f.model != "" {
		words = append(words, f.model)
	}
	if len(words) != 1 {
		return p.usageError("estimate-memory: %d words; want one MODEL, a folder or a config.json", len(words))
	}
	config, err := models.ReadConfig(words[0])
	if err != nil {
		fmt.Fprintln(p.stderr, "lockstep: estimate-memory:", err)
		return exitError
	}
	e, err := f.estimate(config)
	if err != nil {
		fmt.Fprintln(p.stderr, "lockstep: estimate-memory:", err)
		return exitError
	}
	if f.json {
		encoder := json.NewEncoder(p.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(e); err != nil {
			fmt.Fprintln(p.stderr, "lockstep: estimate-memory:", err)
			return exitError
		}
		return exitOK
	}
	p.showEstimate(e, &f)
	return exitOK
}

// dtypes are those of parameters.
var dtypes = []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Float64}

func (f *estimateFlags) estimate(config []byte) (*estimate, error) {
	i := slices.IndexFunc(dtypes, func(dt tensor.DType) bool { return dt.String() == f.dtype })
	if i < 0 {
		return nil, fmt.Errorf("dtype is %q; want one of %v", f.dtype, dtypes)
	}
	if f.ranks < 1 || f.length < 0 {
		return nil, fmt.Errorf("ranks is %d and length %d; want at least 1 and 0", f.ranks, f.length)
	}
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = f.batch, f.accumulation
	a.Optim, a.GradientCheckpointing, a.BF16, a.FP16 = args.Optim(f.optim), f.checkpointing, f.bf16, f.fp16
	a.FSDP, a.ZeroStage, a.DPReplicateSize = f.fsdp, f.zeroStage, f.replicas
	a.DeepSpeed, a.FSDPConfig = f.deepspeed, f.fsdpConfig
	if err := a.ReadConfigs(); err != nil {
		return nil, err
	}
	if err := a.Validate(); err != nil {
		return nil, err
	}
	f.batch, f.optim = a.PerDeviceTrainBatchSize, string(a.Optim)
	var model models.Configured
	fresh := func(in *nn.Init) (models.Model, error) {
		m, err := models.FromConfig(in.As(dtypes[i]), config)
		model = m
		return m, err
	}
	if _, err := fresh(nn.NewInit(tensor.NewMeta(), 0)); err != nil {
		return nil, err
	}
	example, ok := model.(models.Example)
	if !ok {
		return nil, fmt.Errorf("model_type %s does not describe its batches (models.Example)", model.ModelType())
	}
	batch := func(c *tensor.Ctx, n int) *data.Batch { return example.ExampleBatch(c, n, f.length) }
	e, err := trainer.EstimateMemory(a, f.ranks, fresh, batch)
	if err != nil {
		return nil, err
	}
	all := &estimate{model.ModelType(), nn.NumParameters(model), e, nil}
	if f.ranks == 1 {
		return all, nil
	}
	for _, s := range strategies {
		b := a.Clone()
		b.FSDP, b.ZeroStage, b.DPReplicateSize = nil, 0, 0
		s.set(b)
		e, err := trainer.EstimateMemory(b, f.ranks, fresh, batch)
		if err != nil {
			return nil, err
		}
		all.Strategies = append(all.Strategies, strategyEstimate{s.name, e})
	}
	if a.OffloadParams == args.OffloadDisk { // files are not shared
		return all, nil
	}
	b := a.Clone()
	b.DPReplicateSize = 0
	e, err = trainer.EstimateSharedMemory(b, f.ranks, fresh, batch)
	if err != nil {
		return nil, err
	}
	all.Strategies = append(all.Strategies, strategyEstimate{"full_shard, shared on one host", e})
	return all, nil
}

// showEstimate prints the estimate as a table.
func (p *program) showEstimate(e *estimate, f *estimateFlags) {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(p.stdout, "%s, %d parameters in %s, %d samples per micro-batch, %s\n", e.ModelType, e.Count, f.dtype,
		f.batch, f.optim)
	type row struct {
		name  string
		bytes int64
	}
	rows := []row{{"parameters", e.Parameters}, {"gradients", e.Gradients}, {"optimizer state", e.OptimizerState},
		{"activations", e.Activations}, {"peak", e.Peak}}
	if e.Start > 0 { // no rank has the whole model
		rows = append(rows, row{"gathered units", e.Gathered}, row{"start", e.Start})
	}
	if e.OnDisk > 0 {
		rows = append(rows, row{"on disk", e.OnDisk})
	}
	for _, row := range rows {
		fmt.Fprintf(w, "%s\t%s MiB\t\n", row.name, mebibytes(row.bytes))
	}
	w.Flush() // as writes to stdout elsewhere, without a way to report failure
	if len(e.Strategies) == 0 {
		return
	}
	fmt.Fprintf(p.stdout, "\nMiB on each of %d ranks\n", f.ranks)
	fmt.Fprintln(w, "strategy\tparameters\tgradients\toptimizer\tsum\tgathered\tpeak\tof DDP\t")
	for _, s := range e.Strategies {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t\n", s.Strategy, mebibytes(s.Parameters),
			mebibytes(s.Gradients), mebibytes(s.OptimizerState), mebibytes(s.Parameters+s.Gradients+s.OptimizerState),
			mebibytes(s.Gathered), mebibytes(s.Peak), float64(s.Peak)/float64(e.Strategies[0].Peak))
	}
	w.Flush()
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }
