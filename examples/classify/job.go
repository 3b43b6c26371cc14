// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/examples/internal/confusion"
	"github.com/lockstep-ml/lockstep/examples/internal/final"
	"github.com/lockstep-ml/lockstep/examples/internal/tokens"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// The tokens of a new tokenizer that are no text.
const (
	endOfText = "<|endoftext|>"
	padding   = "<|pad|>"
)

// tokenizerConfigFile is what transformers saves beside tokenizer.json.
const tokenizerConfigFile = "tokenizer_config.json"

// job is one run of the program.
type job struct {
	*settings
	*program.Process

	base      *models.Pretrained[textModel] // the saved model that was named; nil: a new one
	tok       *tokenizers.Tokenizer
	tokConfig tokenizerConfig // by which transformers knows the padding
	net       *gpt2.Classifier
	length    int // tokens of a text that are read
}

// run trains, or only evaluates if that is all that was asked for, and prints the results.
func (j *job) run(ctx context.Context) error {
	training := j.args.TrainingWanted()
	switch {
	case !training && j.model.ModelNameOrPath == "":
		return errors.New("--do_eval or --do_predict without --do_train is for a saved model: want " +
			"--model_name_or_path FOLDER")
	case j.args.DoPredict && j.data.TestFile == "":
		return errors.New("--do_predict classifies the texts of a file: want --test_file")
	}
	var err error
	if j.model.ModelNameOrPath != "" { // before the texts are read for nothing
		if j.base, err = open(j.model.ModelNameOrPath); err != nil {
			return err
		}
		if err := j.args.ValidateFor(trainer.ProgramFor(j.base.Model)); err != nil {
			return err
		}
	}
	if !training && !j.args.DoEval {
		if err := j.load(nil); err != nil {
			return err
		}
		return j.predict()
	}
	train, eval, err := readTexts(j.Process, j.data, j.args.Seed, training)
	if err != nil {
		return err
	}
	if training {
		j.Line("data", train.name, program.Count(len(train.texts), "text")+" to learn from",
			fmt.Sprintf("%d held out", len(eval.texts)), program.Count(len(train.classes()), "class"))
	} else {
		j.Line("data", eval.name, program.Count(len(eval.texts), "text"))
	}
	if j.base != nil {
		err = j.load(train.classes())
	} else {
		err = j.create(ctx, train)
	}
	if err != nil {
		return err
	}
	trainSet, err := j.encode(ctx, train)
	if err != nil {
		return err
	}
	evalSet, err := j.encode(ctx, eval)
	if err != nil {
		return err
	}
	matrix, collate := confusion.New(j.net.Labels()), data.WithPadding(int32(*j.net.Cfg.PadTokenID))
	var last final.Evaluation
	t := trainer.New(j.net, j.args,
		trainer.WithTrainData(data.NewSource(trainSet, collate)),
		trainer.WithEvalData(data.NewSource(evalSet, collate)), trainer.WithMetrics(matrix),
		trainer.WithCallbacks(&last), trainer.WithDisplay(j.Stderr), j.beside())
	defer t.Close() // what went wrong before is the error to report
	if training {
		if err := j.learn(ctx, t); err != nil {
			return err
		}
	}
	m, err := last.Of(ctx, t)
	if err != nil {
		return err
	}
	j.Line("baseline", fmt.Sprintf("accuracy %.4f, by taking the most frequent class", eval.share(matrix.Names)))
	if err := t.SaveMetrics("eval", m); err != nil || !t.IsMain() {
		return err
	}
	if err := errors.Join(matrix.WriteTable(j.Stdout, 3), j.show(eval)); err != nil || !j.args.DoPredict {
		return err
	}
	return j.predict()
}

// create trains a tokenizer and makes a new model.
func (j *job) create(ctx context.Context, train *texts) error {
	var err error
	j.tok, err = tokens.Train(ctx, j.Process, train.texts, tokenizers.TrainOptions{VocabSize: j.model.VocabSize,
		SpecialTokens: []string{endOfText, padding}})
	if err != nil {
		return err
	}
	end, _ := j.tok.TokenID(endOfText)
	pad, _ := j.tok.TokenID(padding)
	j.length = j.data.MaxSeqLength
	cfg := gpt2.ClassifierConfig{Config: j.model.config(), ID2Label: models.Labels(train.classes()...),
		PadTokenID: new(int(pad))}
	cfg.VocabSize, cfg.NPositions = j.tok.VocabSize(), j.length
	cfg.BosTokenID, cfg.EosTokenID = new(int(end)), new(int(end))
	if j.net, err = gpt2.NewClassifier(nn.NewInit(tensor.CPU(), j.args.Seed), cfg); err != nil {
		return err
	}
	j.tokConfig.text, err = json.MarshalIndent(map[string]any{
		"tokenizer_class": "GPT2Tokenizer", "bos_token": endOfText, "eos_token": endOfText, "unk_token": endOfText,
		"pad_token": padding, "padding_side": "right", "model_max_length": j.length,
	}, "", "  ")
	j.Line("tokenizer", "byte-level BPE of "+program.Count(cfg.VocabSize, "token"))
	j.Line("model", "gpt2 of "+program.Count(cfg.NLayer, "layer"), fmt.Sprintf("width %d", cfg.NEmbd),
		program.Count(cfg.NHead, "head"), program.Count(nn.NumParameters(j.net), "parameter"))
	return err
}

// load takes the saved model with its tokenizer. A language model gets a new head for the given classes.
func (j *job) load(classes []string) error {
	dir := j.base.Dir
	var err error
	if j.tokConfig, err = readTokenizerConfig(j.base); err != nil {
		return err
	}
	j.tok = j.base.Tokenizer
	head := "its head"
	switch m := j.base.Model.(type) {
	case *gpt2.Classifier:
		if j.net = m; len(m.Labels()) == 1 {
			return fmt.Errorf("%s has one label: it scores texts and has no classes; examples/reward trains "+
				"such models", dir)
		}
	case *gpt2.Model:
		if len(classes) == 0 {
			return fmt.Errorf("%s is a language model, without a classifier's head: want a --train_file to train "+
				"one", dir)
		}
		pad := j.tokConfig.padToken(j.tok)
		if pad == nil {
			pad = m.Cfg.EosTokenID // as is usual with GPT-2, which has no token for padding
		}
		if pad == nil {
			return fmt.Errorf("%s: want a pad_token in %s, or an eos_token_id in config.json to stand for it", dir,
				tokenizerConfigFile)
		}
		head = "a new head"
		if j.net, err = gpt2.ClassifierOn(nn.NewInit(tensor.CPU(), j.args.Seed), m,
			gpt2.ClassifierConfig{ID2Label: models.Labels(classes...), PadTokenID: pad}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s is a %s: want a gpt2", dir, m.ModelType())
	}
	if j.net.Cfg.PadTokenID == nil {
		return fmt.Errorf("%s: the configuration has no pad_token_id", dir)
	}
	j.length = min(j.data.MaxSeqLength, j.net.Cfg.NPositions)
	j.Line("model", dir+" with "+head, program.Count(nn.NumParameters(j.net), "parameter"))
	return nil
}

// beside are the files that are saved beside the weights: those of a loaded model unchanged.
func (j *job) beside() trainer.Option {
	if j.base != nil {
		return trainer.WithSidecars(j.base.Files...)
	}
	parts := []checkpoint.Part{{Name: models.TokenizerFile, Write: func(w io.Writer) error {
		_, err := j.tok.WriteTo(w)
		return err
	}}}
	if j.tokConfig.text != nil {
		parts = append(parts, checkpoint.BytesPart(tokenizerConfigFile, j.tokConfig.text))
	}
	return trainer.WithParts(parts...)
}

// encode turns texts into tokens and labels into numbers, and reports how many texts were too long. Labels of t that
// are numbers become the names of their classes.
func (j *job) encode(ctx context.Context, t *texts) (data.Slice[data.LabelledTokens], error) {
	ids, err := tokens.Encode(ctx, j.Process, j.tok, t.texts)
	if err != nil {
		return nil, err
	}
	names := j.net.Labels()
	label, reader, cut := labelling(names), newReader(j.net, j.tok, j.tokConfig), 0
	out := make(data.Slice[data.LabelledTokens], len(ids))
	for i := range ids {
		if len(ids[i])+j.tok.NumSpecialTokens() > j.length {
			cut++
		}
		out[i] = data.LabelledTokens{InputIDs: reader.fit(ids[i], j.length)}
		if out[i].Label, err = label(t.labels[i]); err != nil {
			return nil, fmt.Errorf("%s: text %.60q: %w", t.name, t.texts[i], err)
		}
		t.labels[i] = names[out[i].Label]
	}
	if cut > 0 {
		share := 100 * float64(cut) / float64(len(ids))
		j.Line("cut", fmt.Sprintf("%.1f %% of %s to %d tokens: see --max_seq_length", share,
			program.Count(len(ids), "text"), j.length))
	}
	return out, nil
}

// labelling returns what finds the number of a label among the names of a model's classes. Of a model whose classes
// have no numbers as names, a label may be the number of its class, as data sets of HuggingFace have them.
func labelling(names []string) func(label string) (int64, error) {
	numbers := !slices.ContainsFunc(names, func(n string) bool {
		_, err := strconv.ParseFloat(n, 64)
		return err == nil
	})
	return func(label string) (int64, error) {
		if i := slices.Index(names, label); i >= 0 {
			return int64(i), nil
		}
		want := strings.Join(names, ", ")
		if numbers {
			if f, err := strconv.ParseFloat(label, 64); err == nil && f >= 0 && f < float64(len(names)) &&
				f == math.Trunc(f) {
				return int64(f), nil
			}
			want += fmt.Sprintf(", or 0 to %d", len(names)-1)
		}
		return 0, fmt.Errorf("label %q is none of the model's: want one of %s", label, want)
	}
}

// learn trains and writes the results and the final model.
func (j *job) learn(ctx context.Context, t *trainer.Trainer) error {
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.SaveMetrics("train", res.Metrics), t.SaveState(), t.SaveModel("")); err != nil {
		return err
	}
	j.Line("model", "saved to "+j.args.OutputDir)
	return nil
}

// show prints what the model makes of some texts that it has not learned from.
func (j *job) show(eval *texts) error {
	const most = 8
	step := max(len(eval.texts)/most, 1)
	var some, labels []string
	for i := step / 2; i < len(eval.texts) && len(some) < most; i += step {
		some, labels = append(some, eval.texts[i]), append(labels, eval.labels[i])
	}
	got, err := newPredictor(j.net, newReader(j.net, j.tok, j.tokConfig)).predict(some)
	if err != nil {
		return err
	}
	fmt.Fprintln(j.Stdout, "some of the texts that were held out:")
	for i, p := range got {
		verdict := "right"
		if p.Label != labels[i] {
			verdict = "wrong, it is " + labels[i]
		}
		line := fmt.Sprintf("  %s (%.0f %%, %s): ", p.Label, 100*p.Score, verdict)
		fmt.Fprintln(j.Stdout, line+shorten(some[i], cmp.Or(j.Width(), usual)-len(line)))
	}
	return nil
}

// usual is how long a line is in a file.
const usual = 100

// shorten is the beginning of a text, for a line of so many columns.
func shorten(s string, columns int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) > columns {
		r = append(r[:max(columns, 1)-1], '…')
	}
	return string(r)
}
