// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

const estimateUsage = `usage: lockstep estimate-memory MODEL [FLAGS]

Prints how much memory the tensors of a training run need on each rank. MODEL is a saved model's
folder, a config.json, the name of a published model (gpt2), or org/name of HuggingFace's Hub, from
which only config.json is downloaded; weights are not read. The command runs the steps on a meta
device, which has shapes but no values, and counts what they allocate. A process needs some ten MiB
more, and a few percent for free memory between blocks.

  gradients       include the partial sums of micro-batches, whose number depends on
                  deterministic_ranks
  activations     the rest of the peak. They are less than all activations, since the backward pass
                  frees activations as it makes gradients
  gathered units  under --fsdp and --zero_stage, the largest memory of units with whole parameters
                  and gradients; a part of "activations" if they exist at the peak
  start           the peak before the first step, while the whole model is divided

With --fsdp or --zero_stage the rows are those of one rank. With several ranks a table compares the
strategies; "shared" is full_shard with one copy of the parameters for the ranks of each host.
With --tp_size and --cp_size a rank has its parts of matrices, and the activations of its tokens.
With --pp_size above 1 a table has a row for each rank of a pipeline, whose step has
gradient_accumulation_steps micro-batches. --deepspeed and --fsdp_config read the files that
training programs read; "auto" in them means the value of the flag.

`

// estimateSettings are those of the command beside TrainingArguments.
type estimateSettings struct {
	Ranks int  `json:"ranks" usage:"ranks of the run, which sum their gradients; 0: num_replicas"`
	JSON  bool `json:"json" usage:"print JSON"`
}

// Check implements args.Checked.
func (s *estimateSettings) Check(c *args.Checker) {
	c.Require(s.Ranks >= 0, "ranks", s.Ranks, "at least 0")
}

// estimate is what the command shows.
type estimate struct {
	ModelType string `json:"model_type"`
	Count     int    `json:"num_parameters"`
	Mesh      string `json:"mesh,omitempty"` // of ranks that divide matrices or tokens
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
	a, s, of := args.Default(""), &estimateSettings{}, &modelSettings{DType: tensor.Float32.String()}
	fs := pflag.NewFlagSet("estimate-memory", pflag.ContinueOnError)
	loader := args.Bind(fs, a, of, s)
	if code, done := p.load(loader, argv, "estimate-memory", estimateUsage); done {
		return code
	}
	m, err := of.load(p, fs.Args())
	if err != nil {
		return p.failed("estimate-memory", err)
	}
	if s.Ranks == 0 {
		s.Ranks = worldOf(a)
	}
	if a.PPSize > 1 {
		err = p.estimateStages(a, s, m, of.DType)
	} else {
		err = p.estimateRank(a, s, m, of.DType)
	}
	if err != nil {
		return p.failed("estimate-memory", err)
	}
	return exitOK
}

// estimateRank estimates the memory of one rank of many that all have all layers.
func (p *program) estimateRank(a *args.TrainingArguments, s *estimateSettings, m *sampleModel, dtype string) error {
	e, err := s.estimate(a, m)
	if err != nil {
		return err
	}
	if s.JSON {
		return p.json(e)
	}
	p.showEstimate(e, a, s, dtype)
	return nil
}

func (s *estimateSettings) estimate(a *args.TrainingArguments, m *sampleModel) (*estimate, error) {
	on, err := device(a.Device)
	if err != nil {
		return nil, err
	}
	fresh, batch := m.fresh, m.batch
	e, err := trainer.EstimateMemory(a, on, s.Ranks, fresh, batch)
	if err != nil {
		return nil, err
	}
	all := &estimate{ModelType: m.modelType, Count: m.parameters, MemoryEstimate: e}
	mesh := comm.Mesh{TP: 1, CP: 1}
	if max(a.TPSize, a.CPSize, a.SPSize) > 1 {
		if mesh, err = accelerate.MeshOf(a, s.Ranks); err != nil {
			return nil, err
		}
		all.Mesh = mesh.String()
	}
	if s.Ranks == mesh.TP { // no rank has the same parts
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
	if a.OffloadParams == args.OffloadDisk || all.Mesh != "" { // files are not shared, nor are parts
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
func (p *program) showEstimate(e *estimate, a *args.TrainingArguments, s *estimateSettings, dtype string) {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns := terminal.Width(p.stdout)
	fmt.Fprint(p.stdout, terminal.Lines(fmt.Sprintf("%s, %d parameters in %s, %s per micro-batch, %s\n", e.ModelType,
		e.Count, dtype, quantity.Of(a.PerDeviceTrainBatchSize, "sample"), a.Optim), columns))
	if e.Mesh != "" {
		fmt.Fprintf(p.stdout, "mesh %s\n", e.Mesh)
	}
	type row struct {
		name  string
		bytes int64
	}
	rows := []row{{"parameters", e.Parameters}, {"gradients", e.Gradients}, {"optimizer state", e.OptimizerState},
		{"activations", e.Activations}, {"peak", e.Peak}}
	if e.Gathered > 0 {
		rows = append(rows, row{"gathered units", e.Gathered})
	}
	if e.Start > 0 { // no rank has the whole model
		rows = append(rows, row{"start", e.Start})
	}
	if e.OnDisk > 0 {
		rows = append(rows, row{"on disk", e.OnDisk})
	}
	for _, row := range rows {
		fmt.Fprintf(w, "%s\t%s MiB\t\n", row.name, mebibytes(row.bytes))
	}
	w.Flush()
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
