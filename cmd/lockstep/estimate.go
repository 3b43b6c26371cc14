// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
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
"activations" is what there is beyond the other rows at the peak. "gradients" are as many partial
sums as the tree over micro-batches keeps at a time, which deterministic_ranks decides. With --fsdp or --zero_stage
the model is spread over the ranks, and the rows are those of one of them; "gathered units" is the
most that whole parameters and gradients of units take, which come and go, as far as they are
there at the peak a part of "activations"; "shared" is full_shard for ranks of one host, which have
the parameters once. "start" is the peak before the first step, when the
model is whole and is cut. With several ranks a table compares the strategies. --deepspeed and
--fsdp_config read the files that a training program reads; "auto" in them is what the flags say.

`

// estimateSettings are those of the command beside TrainingArguments.
type estimateSettings struct {
	Model  string `json:"model_name_or_path" usage:"the MODEL, instead of a word"`
	Length int    `json:"length" usage:"tokens per sample, or pixels per side; 0: as many as the model has"`
	Ranks  int    `json:"ranks" usage:"ranks of the run; several ranks sum their gradients; 0: num_replicas"`
	DType  string `json:"dtype" choices:"float32,bfloat16,float16,float64" usage:"dtype of the parameters"`
	JSON   bool   `json:"json" usage:"print JSON"`
}

// Check implements args.Checked.
func (s *estimateSettings) Check(c *args.Checker) {
	c.Require(s.Length >= 0, "length", s.Length, "at least 0")
	c.Require(s.Ranks >= 0, "ranks", s.Ranks, "at least 0")
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
	{"full_shard, ZeRO-3", func(a *args.TrainingArguments) { a.FSDP = []string{"full_shard"} }},
}

func (p *program) estimateMemory(argv []string) int {
	a, s := args.Default(""), &estimateSettings{DType: tensor.Float32.String()}
	fs := pflag.NewFlagSet("estimate-memory", pflag.ContinueOnError)
	loader := args.Bind(fs, a, s)
	loader.AllowArgs = true
	_, err := loader.Parse(argv)
	if errors.Is(err, args.ErrHelp) {
		columns := terminal.Width(p.stdout)
		fmt.Fprint(p.stdout, terminal.Paragraphs(estimateUsage, columns),
			terminal.Lines(loader.UsageWrapped(columns), columns))
		return exitOK
	}
	if err != nil {
		return p.usageError("estimate-memory: %v", err)
	}
	words := fs.Args()
	if s.Model != "" {
		words = append(words, s.Model)
	}
	if len(words) != 1 {
		return p.usageError("estimate-memory: %d words: want one MODEL, a folder or a config.json", len(words))
	}
	config, err := models.ReadConfig(words[0])
	if err != nil {
		p.complain("lockstep: estimate-memory: %v", err)
		return exitError
	}
	if s.Ranks == 0 {
		s.Ranks = a.NumReplicas
	}
	e, err := s.estimate(a, config)
	if err != nil {
		p.complain("lockstep: estimate-memory: %v", err)
		return exitError
	}
	if s.JSON {
		encoder := json.NewEncoder(p.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(e); err != nil {
			p.complain("lockstep: estimate-memory: %v", err)
			return exitError
		}
		return exitOK
	}
	p.showEstimate(e, a, s)
	return exitOK
}

// dtypes are those of parameters.
var dtypes = []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Float64}

func (s *estimateSettings) estimate(a *args.TrainingArguments, config []byte) (*estimate, error) {
	i := slices.IndexFunc(dtypes, func(dt tensor.DType) bool { return dt.String() == s.DType })
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
	on, err := device(a.Device)
	if err != nil {
		return nil, err
	}
	batch := func(c *tensor.Ctx, n int) *data.Batch { return example.ExampleBatch(c, n, s.Length) }
	e, err := trainer.EstimateMemory(a, on, s.Ranks, fresh, batch)
	if err != nil {
		return nil, err
	}
	all := &estimate{model.ModelType(), nn.NumParameters(model), e, nil}
	if s.Ranks == 1 {
		return all, nil
	}
	for _, way := range strategies {
		b := a.Clone()
		b.FSDP, b.ZeroStage, b.DPReplicateSize, b.DPShardSize = nil, 0, 0, 0
		way.set(b)
		e, err := trainer.EstimateMemory(b, on, s.Ranks, fresh, batch)
		if err != nil {
			return nil, err
		}
		all.Strategies = append(all.Strategies, strategyEstimate{way.name, e})
	}
	if a.OffloadParams == args.OffloadDisk { // files are not shared
		return all, nil
	}
	b := a.Clone()
	b.DPReplicateSize, b.DPShardSize = 0, 0
	e, err = trainer.EstimateSharedMemory(b, on, s.Ranks, fresh, batch)
	if err != nil {
		return nil, err
	}
	all.Strategies = append(all.Strategies, strategyEstimate{"full_shard, shared", e})
	return all, nil
}

// device opens the device that a run of the argument would take first; nil is the CPU.
func device(name string) (*tensor.Device, error) {
	if name == "auto" {
		name = "cuda"
		if !slices.Contains(tensor.DeviceNames(), name+":0") {
			name = "cpu"
		}
	}
	if name == "cpu" {
		return nil, nil
	}
	if slices.Contains(tensor.DeviceNames(), name+":0") {
		name += ":0"
	}
	return tensor.OpenDevice(name)
}

// showEstimate prints the estimate as a table.
func (p *program) showEstimate(e *estimate, a *args.TrainingArguments, s *estimateSettings) {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns := terminal.Width(p.stdout)
	fmt.Fprint(p.stdout, terminal.Lines(fmt.Sprintf("%s, %d parameters in %s, %s per micro-batch, %s\n", e.ModelType,
		e.Count, s.DType, quantity.Of(a.PerDeviceTrainBatchSize, "sample"), a.Optim), columns))
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
	if n := e.GradientSums; n > 1 {
		fmt.Fprint(p.stdout, terminal.Lines(fmt.Sprintf("gradients: %d sums of %s MiB at a time, the tree of "+
			"deterministic_ranks %d\n", n, mebibytes(e.Gradients/int64(n)), a.DeterministicRanks), columns))
	}
	if len(e.Strategies) == 0 {
		return
	}
	fmt.Fprintf(p.stdout, "\nMiB on each of %d ranks\n", s.Ranks)
	fmt.Fprintln(w, "strategy\tparams\tgrads\toptim\tsum\tgathered\tpeak\tof DDP\t")
	for _, way := range e.Strategies {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t\n", way.Strategy, mebibytes(way.Parameters),
			mebibytes(way.Gradients), mebibytes(way.OptimizerState),
			mebibytes(way.Parameters+way.Gradients+way.OptimizerState), mebibytes(way.Gathered), mebibytes(way.Peak),
			float64(way.Peak)/float64(e.Strategies[0].Peak))
	}
	w.Flush()
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }
