// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/adapters"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/examples/internal/pairs"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/models/preference"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// job is one run of the program.
type job struct {
	*program.Process
	*pairs.PreferenceArguments
	*DPOArguments
	args     *args.TrainingArguments
	adapters *adapters.AdapterArguments

	base      *language.Tuned[language.Model]
	adapter   *lora.Adapter // nil: the whole model is trained
	rows      pairs.Rows
	reference preference.Reference
}

// run trains and saves.
func (j *job) run(ctx context.Context) error {
	if j.PrecomputeRefLogProbs && j.Streams() {
		return errors.New("precompute_ref_log_probs: the rows are streamed (dataset_streaming), and nothing is kept " +
			"of them: want one of the two")
	}
	if err := j.open(ctx); err != nil {
		return err
	}
	loss := j.loss()
	loss.Reference, loss.Dropout = j.reference, !j.DisableDropout
	if j.PrecomputeRefLogProbs {
		if err := j.precompute(ctx); err != nil {
			return err
		}
		loss.Reference = nil
	}
	opts := []trainer.Option{trainer.WithStep(loss.Step), trainer.WithFigures(preference.DPOFigures()...),
		trainer.WithSidecars(j.base.Files...)}
	if j.adapter != nil {
		opts = append(opts, trainer.WithAdapter(j.adapter))
	}
	return pairs.Train(ctx, &j.rows, j.base.Model, j.args, opts...)
}

// open reads the rows and the model, and makes the reference of it.
func (j *job) open(ctx context.Context) error {
	j.rows = pairs.Rows{Process: j.Process, Mode: j.TruncationMode}
	if err := j.rows.Read(ctx, j.PreferenceArguments, j.args); err != nil {
		return err
	}
	saved, err := language.Open(j.ModelNameOrPath, j.DType.Loading())
	if err != nil {
		return err
	}
	j.base = &language.Tuned[language.Model]{Pretrained: saved, Line: j.Line}
	j.Line("model", saved.Model.ModelType(), program.Count(nn.NumParameters(saved.Model), "parameter"))
	if err := j.refer(); err != nil {
		return err
	}
	e, pad, err := j.base.Encoder(language.Texts{ChatTemplate: j.ChatTemplate, EOSToken: j.EOSToken,
		Conversations: j.rows.Conversations()})
	if err != nil {
		return err
	}
	e.MaxLength = j.MaxLength
	if n := saved.Model.ContextLength(); e.MaxLength == 0 || e.MaxLength > n {
		e.MaxLength = n
	}
	j.rows.Encoder, j.rows.Pad = e, pad
	return j.rows.Encode()
}

// refer settles the reference, and gives the model its adapter.
func (j *job) refer() (err error) {
	m := j.base.Model
	copied := func() error {
		twin, err := nn.Clone(m, tensor.CPU())
		j.reference = preference.Frozen(twin)
		return err
	}
	switch whole := len(j.adapters.LoraModulesToSave) > 0; {
	case j.RefModelNameOrPath != "":
		other, err := language.Open(j.RefModelNameOrPath, j.DType.Loading())
		if err != nil {
			return fmt.Errorf("ref_model_name_or_path: %w", err)
		}
		if a, b := other.Tokenizer.VocabSize(), j.base.Tokenizer.VocabSize(); a != b {
			return fmt.Errorf("ref_model_name_or_path: its tokenizer has %d tokens, and the model's %d: want the same",
				a, b)
		}
		j.reference = preference.Frozen(other.Model)
	case j.adapters.Adapter != "":
		if err := j.referToAdapter(); err != nil {
			return err
		}
	case j.PrecomputeRefLogProbs: // the model itself
	case !j.adapters.UsePEFT || whole:
		j.Line("reference", "a copy of the model")
		if err := copied(); err != nil {
			return err
		}
	}
	if j.adapter, err = j.adapters.Attach(j.Process, m, j.ModelNameOrPath, j.args.Seed); err != nil {
		return err
	}
	if j.adapter != nil && j.reference == nil && !j.PrecomputeRefLogProbs {
		j.Line("reference", "the model without its adapter")
		j.reference = preference.WithoutAdapter(j.adapter)
	}
	return nil
}

// referenceAdapter is the name of the frozen copy of an adapter that is trained further.
const referenceAdapter = "reference"

// referToAdapter makes the reference the model with the adapter as it is.
func (j *job) referToAdapter() error {
	if j.PrecomputeRefLogProbs {
		return nil // the model with its adapter
	}
	frozen, err := lora.LoadOnto(j.base.Model, j.ModelNameOrPath, j.adapters.Adapter, referenceAdapter)
	if err != nil {
		return err
	}
	if cfg := frozen.Config; len(cfg.ModulesToSave) > 0 || cfg.Bias != lora.BiasNone {
		return errors.New("adapter: it has parameters of the model (modules_to_save, bias), of which there are no " +
			"two: want --precompute_ref_log_probs, which computes the reference before they are trained")
	}
	frozen.Deactivate()
	j.Line("reference", "the model with the adapter as it is")
	j.reference = preference.WithAdapters(referenceAdapter)
	return nil
}

// precompute gives all samples the log-probabilities of the reference.
func (j *job) precompute(ctx context.Context) error {
	a := j.args.Clone()
	a.PerDeviceEvalBatchSize = cmp.Or(j.PrecomputeRefBatchSize, a.PerDeviceTrainBatchSize)
	a.EvalStrategy, a.EvalOnStart, a.ReportTo, a.PredictionLossOnly = args.StrategyNo, false, nil, false
	a.LoadBestModelAtEnd, a.ResumeFromCheckpoint = false, ""
	opts := []trainer.Option{trainer.WithStep(preference.LogProbs(j.reference)), trainer.WithDisplay(nil)}
	if j.adapter != nil {
		opts = append(opts, trainer.WithAdapter(j.adapter))
	}
	t := trainer.New(j.base.Model, a, opts...)
	defer t.Close() // what went wrong before is the error to report
	for _, list := range []data.Slice[chat.PreferenceSample]{j.rows.Train, j.rows.Eval} {
		if len(list) == 0 {
			continue
		}
		out, err := t.PredictContext(ctx, j.rows.Source(list))
		if err != nil {
			return fmt.Errorf("precompute_ref_log_probs: %w", err)
		}
		for _, p := range out.Predictions {
			list[p.Index].Reference = (*[2]float32)(p.Logits)
		}
	}
	j.Line("reference", "computed for "+program.Count(len(j.rows.Train)+len(j.rows.Eval), "row"))
	return nil
}
