// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/adapters"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/examples/internal/pairs"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/preference"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// job is one run of the program.
type job struct {
	*program.Process
	*pairs.PreferenceArguments
	*RewardArguments
	args     *args.TrainingArguments
	adapters *adapters.AdapterArguments

	rows pairs.Rows
}

// textModel is a saved model that reads texts: a language model, or one that scores already.
type textModel interface {
	models.Configured
	models.TokenReader
}

// run trains and saves.
func (j *job) run(ctx context.Context) error {
	j.rows = pairs.Rows{Process: j.Process, Mode: chat.DropLonger}
	if err := j.rows.Read(ctx, j.PreferenceArguments, j.args); err != nil {
		return err
	}
	saved, err := models.OpenPretrained[textModel](tensor.CPU(), j.ModelNameOrPath, "a language model, such as "+
		"LlamaForCausalLM, or a model of one label, such as LlamaForSequenceClassification", j.DType.Loading())
	if err != nil {
		return err
	}
	base := &language.Tuned[textModel]{Pretrained: saved, Line: j.Line}
	if j.rows.Encoder, j.rows.Pad, err = base.Encoder(language.Texts{ChatTemplate: j.ChatTemplate, EOSToken: j.EOSToken,
		Conversations: j.rows.Conversations(), Scores: true}); err != nil {
		return err
	}
	j.rows.Encoder.MaxLength = j.MaxLength
	m, err := j.scorer(saved.Model)
	if err != nil {
		return err
	}
	adapter, err := j.adapters.Attach(j.Process, m, j.ModelNameOrPath, j.args.Seed)
	if err != nil {
		return err
	}
	if err := j.rows.Encode(); err != nil {
		return err
	}
	loss := &preference.Reward{CenterCoefficient: j.CenterRewardsCoefficient, Dropout: !j.DisableDropout}
	opts := []trainer.Option{trainer.WithStep(loss.Step), trainer.WithFigures(preference.RewardFigures()...),
		trainer.WithSidecars(base.Files...)}
	if adapter != nil {
		opts = append(opts, trainer.WithAdapter(adapter))
	}
	return pairs.Train(ctx, &j.rows, m, j.args, opts...)
}

// scorer is the model with a head of one label: its own, or a new one.
func (j *job) scorer(saved models.Configured) (m models.Configured, err error) {
	pad, head := int(j.rows.Pad), "a new head"
	in := nn.NewInit(tensor.CPU(), j.args.Seed).As(nn.NamedParameters(saved)[0].DType())
	length := 0
	switch old := saved.(type) {
	case *transformer.Model:
		length = old.ContextLength()
		m, err = transformer.ClassifierOn(in, old, models.Labels("LABEL_0"), &pad)
	case *gpt2.Model:
		length = old.ContextLength()
		m, err = gpt2.ClassifierOn(in, old, gpt2.ClassifierConfig{ID2Label: models.Labels("LABEL_0"), PadTokenID: &pad})
	case *transformer.Classifier:
		m, head, length = old, "its head", old.Cfg.MaxPositions
		err = j.wantScore(len(old.Labels()), old.Cfg.PadTokenID)
	case *gpt2.Classifier:
		m, head, length = old, "its head", old.Cfg.NPositions
		err = j.wantScore(len(old.Labels()), old.Cfg.PadTokenID)
	default:
		err = fmt.Errorf("%s is a %s: want a language model, or a model of one label", j.ModelNameOrPath,
			models.Architecture(saved))
	}
	if err != nil {
		return nil, err
	}
	if n := j.rows.Encoder.MaxLength; n == 0 || n > length {
		j.rows.Encoder.MaxLength = length
	}
	j.Line("model", saved.ModelType()+" with "+head, program.Count(nn.NumParameters(m), "parameter"))
	return m, nil
}

// wantScore refuses a classifier that gives no score, and one that would find the end of texts elsewhere.
func (j *job) wantScore(labels int, pad *int) error {
	switch {
	case labels != 1:
		return fmt.Errorf("%s has %d labels: want a language model, or a model of one label, which is the score",
			j.ModelNameOrPath, labels)
	case pad == nil:
		return fmt.Errorf("%s: the configuration has no pad_token_id", j.ModelNameOrPath)
	}
	j.rows.Pad = int32(*pad)
	return nil
}
