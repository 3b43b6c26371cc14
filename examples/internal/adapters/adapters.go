// SPDX-License-Identifier: Apache-2.0

// Package adapters has the flags of examples that train LoRA adapters or compute with them.
package adapters

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
)

// AdapterArguments are the settings of an adapter that is trained, by the names and defaults of TRL's ModelConfig.
type AdapterArguments struct {
	UsePEFT           bool     `json:"use_peft" usage:"train a LoRA adapter in place of the whole model"`
	LoraR             int      `json:"lora_r" usage:"rank of the adapter's matrices"`
	LoraAlpha         float64  `json:"lora_alpha" usage:"the adapter is scaled by lora_alpha / lora_r"`
	LoraDropout       float64  `json:"lora_dropout" usage:"dropout probability of the adapter's inputs"`
	LoraTargetModules []string `json:"lora_target_modules" usage:"linear layers to adapt: names, a regular expression or all-linear; none: PEFT's default for the model"`
	LoraModulesToSave []string `json:"lora_modules_to_save" usage:"modules to train whole, besides the adapter"`
	LoraTaskType      string   `json:"lora_task_type" usage:"PEFT's name of the task"`
	UseRSLoRA         bool     `json:"use_rslora" usage:"scale by lora_alpha / √lora_r"`
	Adapter           string   `json:"adapter" path:"true" usage:"folder of an adapter, Lockstep's or PEFT's, to train further"`
}

// Defaults are TRL's.
func Defaults() *AdapterArguments {
	return &AdapterArguments{LoraR: 16, LoraAlpha: 32, LoraDropout: 0.05, LoraTaskType: "CAUSAL_LM"}
}

// Check reports all faults at once.
func (l *AdapterArguments) Check(c *args.Checker) {
	c.Require(l.LoraR > 0, "lora_r", l.LoraR, "at least 1")
	c.Require(l.LoraDropout >= 0 && l.LoraDropout < 1, "lora_dropout", l.LoraDropout, "a probability in [0, 1)")
	c.Require(l.LoraAlpha != 0, "lora_alpha", l.LoraAlpha, "a number other than 0: with 0 the adapter has no effect")
	d := Defaults()
	others := l.LoraR != d.LoraR || l.LoraAlpha != d.LoraAlpha || l.LoraDropout != d.LoraDropout || l.UseRSLoRA ||
		len(l.LoraTargetModules)+len(l.LoraModulesToSave) > 0
	c.Require(l.UsePEFT || !others, "use_peft", l.UsePEFT, "true with settings of LoRA")
	c.Require(!l.UsePEFT || l.Adapter == "", "adapter", l.Adapter,
		"use_peft, which makes a new adapter, or adapter, which has its own settings")
}

// Attach gives a model that was loaded from a folder the adapter that is asked for, and prints what is trained; nil if
// none is.
func (l *AdapterArguments) Attach(p *program.Process, m models.Configured, base string, seed uint64,
) (a *lora.Adapter, err error) {
	switch {
	case l.Adapter != "":
		a, err = lora.LoadOnto(m, base, l.Adapter, "")
	case !l.UsePEFT:
		return nil, nil
	default:
		a, err = lora.New(m, lora.Config{R: l.LoraR, Alpha: l.LoraAlpha, Dropout: l.LoraDropout, RSLoRA: l.UseRSLoRA,
			TargetModules: lora.ParseTargets(l.LoraTargetModules...), ModulesToSave: l.LoraModulesToSave,
			TaskType: l.LoraTaskType, BaseModel: base, Seed: seed})
	}
	if err == nil {
		describe(p, m, a)
	}
	return a, err
}

// describe prints what is trained, and warns of ranks that cannot help: a product of matrices has at most the rank that
// the layer's own weight can have.
func describe(p *program.Process, m models.Configured, a *lora.Adapter) {
	trained, all := 0, 0
	for _, q := range nn.NamedParameters(m) {
		if all += q.Numel(); q.RequiresGrad() {
			trained += q.Numel()
		}
	}
	layers := a.Layers()
	p.Line("adapter", fmt.Sprintf("rank %d of %s", a.Config.R, program.Count(len(layers), "layer")),
		fmt.Sprintf("%s are trained, %.2f%% of all", program.Count(trained, "parameter"),
			100*float64(trained)/float64(all)))
	high := slices.DeleteFunc(layers, func(l lora.Layer) bool { return l.Rank <= min(l.In, l.Out) })
	for _, name := range a.Unmatched() {
		p.Line("warning", "no layer is adapted by the target module "+name)
	}
	if len(high) > 0 {
		l := high[0]
		p.Line("warning", fmt.Sprintf("rank %d is more than the %d features of %s, the first of %s", l.Rank,
			min(l.In, l.Out), l.Path, program.Count(len(high), "such layer")), "a lower lora_r learns the same")
	}
}

// Find settles which folders have a model and an adapter of it, and downloads what is of the Hub. A model's folder that
// has an adapter alone is the adapter's, and one that is not given, or the default, is the one that the adapter was
// trained on.
func Find(ctx context.Context, p *program.Process, h *downloads.HubArguments, model, adapter *string,
	byDefault string) error {
	if err := h.ModelAt(ctx, p, adapter, ""); err != nil {
		return err
	}
	if *adapter == "" || *model != byDefault {
		if err := h.Model(ctx, p, model); err != nil {
			return err
		}
	}
	if *adapter == "" {
		if !has(*model, models.AdapterConfigFile) || has(*model, models.ConfigFile) {
			return nil
		}
		*adapter = *model
	} else if *model != byDefault {
		return nil
	}
	cfg, err := lora.ReadConfig(*adapter)
	if err != nil {
		return err
	}
	if cfg.BaseModel == "" {
		return fmt.Errorf("%s does not say which model the adapter is of (base_model_name_or_path): want "+
			"model_name_or_path too", filepath.Join(*adapter, models.AdapterConfigFile))
	}
	*model = cfg.BaseModel
	return h.ModelAt(ctx, p, model, cfg.Revision)
}

func has(dir, file string) bool {
	_, err := os.Stat(filepath.Join(dir, file))
	return err == nil
}

// Add merges the adapter of a folder into a model that was loaded from base; "" is none.
func Add(m models.Configured, base, dir string) error {
	if dir == "" {
		return nil
	}
	a, err := lora.LoadOnto(m, base, dir, "")
	if err != nil {
		return err
	}
	if err := a.Merge(); err != nil {
		return err
	}
	a.Remove()
	return nil
}

// Beside takes the files that an adapter's folder has of those beside a model's weights: a chat template that it was
// trained with, for example. It returns the folder that has one of a name: the adapter's, or the model's.
func Beside(model, adapter, name string) string {
	if adapter != "" && has(adapter, name) {
		return adapter
	}
	return model
}

// Save writes a model with its adapter merged, as transformers reads it, into a folder that has no model, and prints of
// which dtype its weights are.
func Save[M models.Configured](out *program.Process, p *models.Pretrained[M], adapter, dir string) error {
	if has(dir, models.ConfigFile) || has(dir, models.WeightsFile) {
		return fmt.Errorf("%s has a model: want another folder for the merged one", dir)
	}
	files := p.Files
	if adapter != "" { // its files were those of the training
		own, err := models.Sidecars(adapter)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, f := range own {
			files = slices.DeleteFunc(slices.Clone(files), func(g models.Sidecar) bool { return g.Name == f.Name })
			files = append(files, f)
		}
	}
	config, err := models.ConfigJSON(p.Model)
	if err == nil {
		err = models.SaveWeights(p.Model, dir)
	}
	for _, f := range append(files, models.Sidecar{Name: models.ConfigFile, Data: config}) {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644)
		}
	}
	if err == nil {
		out.Line("merged", "weights of "+nn.NamedParameters(p.Model)[0].DType().String(), "saved to "+dir)
	}
	return err
}
