// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all" // the architectures that it knows
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// modelSettings name a model and its samples.
type modelSettings struct {
	Model    string `json:"model_name_or_path" usage:"MODEL, given as a flag"`
	Revision string `json:"revision" usage:"branch, tag or commit of a model of the Hub (default: main)"`
	Length   int    `json:"length" usage:"tokens per sample, or pixels per side; 0: the model's size"`
	DType    string `json:"dtype" choices:"float32,bfloat16,float16,float64" usage:"dtype of the parameters"`
}

// Check implements args.Checked.
func (s *modelSettings) Check(c *args.Checker) {
	c.Require(s.Length >= 0, "length", s.Length, "at least 0")
}

// dtypes are those of parameters.
var dtypes = []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Float64}

// sampleModel makes a model and its batches.
type sampleModel struct {
	modelType  string
	parameters int
	fresh      func(in *nn.Init) (models.Model, error)
	batch      func(c *tensor.Ctx, n int) *data.Batch
}

// load reads the model's configuration.
func (s *modelSettings) load(p *program, words []string) (*sampleModel, error) {
	if s.Model != "" {
		words = append(words, s.Model)
	}
	if len(words) != 1 {
		return nil, &usageFault{quantity.Of(len(words), "word") +
			": want one MODEL, a folder, a config.json or a name"}
	}
	ctx, stop := signal.NotifyContext(context.Background(), p.endings()...)
	defer stop()
	path, err := p.hubConfig(ctx, words[0], s.Revision)
	if err != nil {
		return nil, err
	}
	config, err := models.ReadConfig(path)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(dtypes, func(dt tensor.DType) bool { return dt.String() == s.DType })
	model, err := models.FromConfig(nn.NewInit(tensor.NewMeta(), 0), config)
	if err != nil {
		return nil, err
	}
	example, ok := model.(models.Example)
	if !ok {
		return nil, fmt.Errorf("model_type %s does not describe its batches (models.Example)", model.ModelType())
	}
	return &sampleModel{model.ModelType(), nn.NumParameters(model),
		func(in *nn.Init) (models.Model, error) { return models.FromConfig(in.As(dtypes[i]), config) },
		func(c *tensor.Ctx, n int) *data.Batch { return example.ExampleBatch(c, n, s.Length) }}, nil
}

// usageFault is an error in how a command is called.
type usageFault struct{ text string }

func (e *usageFault) Error() string { return e.text }

// play is a run of the arguments on so many ranks, or 0 for those of the arguments.
func (m *sampleModel) play(a *args.TrainingArguments, world int) (*trainer.Play, error) {
	if world == 0 {
		world = worldOf(a)
	}
	mesh, err := accelerate.MeshOf(a, world)
	if err != nil {
		return nil, err
	}
	on, err := device(a.Device)
	return &trainer.Play{Args: a, On: on, Mesh: mesh, Model: m.fresh, Batch: m.batch}, err
}

// worldOf is how many ranks the arguments have: as many as the sizes of their mesh make, or num_replicas.
func worldOf(a *args.TrainingArguments) int {
	return max(a.NumReplicas, max(a.PPSize, 1)*max(a.DPReplicateSize, 1)*max(a.DPShardSize, 1)*
		max(a.CPSize, a.SPSize, 1)*max(a.TPSize, 1))
}

// setMesh puts the sizes of a mesh into the arguments.
func setMesh(a *args.TrainingArguments, text string) error {
	mesh, err := comm.ParseMesh(text)
	if err != nil {
		return &usageFault{err.Error()}
	}
	for _, axis := range []struct {
		size int
		into *int
		name string
	}{{mesh.PP, &a.PPSize, "pp"}, {mesh.DPReplicate, &a.DPReplicateSize, "dp_replicate"},
		{mesh.DPShard, &a.DPShardSize, "dp_shard"}, {mesh.CP, &a.CPSize, "cp"}, {mesh.TP, &a.TPSize, "tp"}} {
		if axis.size == 0 {
			continue
		}
		if axis.size < 0 {
			return &usageFault{fmt.Sprintf("mesh has %s=%d: want sizes of at least 1", axis.name, axis.size)}
		}
		if *axis.into > 1 && *axis.into != axis.size {
			return &usageFault{fmt.Sprintf("mesh has %s=%d, and %s_size is %d: want one of both", axis.name, axis.size,
				axis.name, *axis.into)}
		}
		*axis.into = axis.size
	}
	return nil
}

// load reads the settings of a command. done says that code is the exit code.
func (p *program) load(loader *args.Loader, argv []string, name, usage string) (code int, done bool) {
	loader.AllowArgs = true
	_, err := loader.Parse(argv)
	switch {
	case errors.Is(err, args.ErrHelp):
		columns := terminal.Width(p.stdout)
		fmt.Fprint(p.stdout, terminal.Paragraphs(usage, columns), terminal.Lines(loader.UsageWrapped(columns), columns))
		return exitOK, true
	case err != nil:
		return p.usageError("%s: %v", name, err), true
	}
	return exitOK, false
}

// failed reports the error of a command.
func (p *program) failed(name string, err error) int {
	if fault, ok := errors.AsType[*usageFault](err); ok {
		return p.usageError("%s: %v", name, fault)
	}
	p.complain("lockstep: %s: %v", name, err)
	return exitError
}

// json prints a value.
func (p *program) json(v any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
