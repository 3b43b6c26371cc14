// SPDX-License-Identifier: Apache-2.0

// Package pairs is what the examples that learn preferences share: their rows, and the run. It is no example itself.
package pairs

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/final"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/examples/internal/rowsets"
	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

// PreferenceArguments are settings of both programs, by the names of TRL.
type PreferenceArguments struct {
	ModelNameOrPath string `json:"model_name_or_path" path:"true" usage:"folder of a saved model and its tokenizer, or a GGUF file"`
	// ValidationFile has rows in a form that chat.ParsePair reads, as the train_file of rowsets.
	ValidationFile []string `json:"validation_file" usage:"rows to evaluate on, as train_file"`

	DType        language.DType `json:"dtype" choices:"auto,bfloat16,float16,float32" usage:"dtype of the parameters: float32, bfloat16, float16, or auto for that of the saved weights; see half_update"`
	ChatTemplate string         `json:"chat_template" path:"true" usage:"file of a chat template, in place of the model's"`
	EOSToken     string         `json:"eos_token" usage:"token that ends an answer; empty for the tokenizer's"`
	MaxLength    int            `json:"max_length" usage:"largest number of tokens of a prompt with an answer; 0: the model's limit"`
	// DisableDropout is TRL's default.
	DisableDropout bool `json:"disable_dropout" usage:"train without dropout"`

	demonstrates bool
	rows         *rowsets.TrainingDataArguments
	dataset      *downloads.HubDataArguments
}

// All are these settings and those of the rows, for args.Bind.
func (a *PreferenceArguments) All() []any { return []any{a, a.rows, a.dataset} }

// Streams reports whether rows are read while training.
func (a *PreferenceArguments) Streams() bool { return a.rows.DatasetStreaming }

// demonstration has answers to what examples/finetune has taught.
//
//go:embed pairs.jsonl
var demonstration []byte

// Demonstrate makes the settings those of the demonstration, which learns from what examples/finetune has saved.
func (a *PreferenceArguments) Demonstrate(t *args.TrainingArguments) {
	a.ModelNameOrPath, a.demonstrates = filepath.FromSlash("out/finetune"), true
	t.LearningRate, t.NumTrainEpochs, t.PerDeviceTrainBatchSize, t.OverwriteOutputDir = 1e-3, 10, 8, true
}

// unpack writes the demonstration beside the results.
func (a *PreferenceArguments) unpack(dir string) error {
	if !a.demonstrates {
		return nil
	}
	path := filepath.Join(dir, "demonstration", "pairs.jsonl")
	a.rows.TrainFile = []string{path}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return os.WriteFile(path, demonstration, 0o666)
}

// Defaults are TRL's, except that numbers are float32.
func Defaults() *PreferenceArguments {
	return &PreferenceArguments{DType: "float32", MaxLength: 1024, DisableDropout: true, rows: rowsets.Defaults(),
		dataset: &downloads.HubDataArguments{}}
}

// pairFiles are what chat.ReadPairs reads.
var pairFiles = []string{".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet"}

// Download gets the model, its adapter and the rows if they are of the Hub. Rows to evaluate on are those of
// dataset_test_split.
func (a *PreferenceArguments) Download(ctx context.Context, p *program.Process, h *downloads.HubArguments,
	adapter *string) error {
	if a.demonstrates {
		return nil
	}
	if err := h.Model(ctx, p, &a.ModelNameOrPath); err != nil {
		return err
	}
	if err := h.ModelAt(ctx, p, adapter, ""); err != nil || a.dataset.DatasetName == "" {
		return err
	}
	splits := []string{hub.Train}
	if a.dataset.DatasetTestSplit != "" {
		splits = append(splits, hub.Validation)
	}
	files, err := h.Files(ctx, p, a.dataset, pairFiles, splits...)
	a.rows.TrainFile, a.ValidationFile = files[hub.Train], files[hub.Validation]
	return err
}

// Check reports all faults at once.
func (a *PreferenceArguments) Check(c *args.Checker) {
	c.Require(a.ModelNameOrPath != "", "model_name_or_path", a.ModelNameOrPath, "a folder of a saved model")
	rows := c.Given("train_file") || c.Given("dataset_name")
	c.Require(rows || a.demonstrates, "train_file", a.rows.TrainFile, "rows of chosen and rejected answers")
	c.Require(a.MaxLength == 0 || a.MaxLength > 1, "max_length", a.MaxLength, "at least 2, or 0")
}

// Rows are the rows of both files, and what they become.
type Rows struct {
	*program.Process
	Encoder chat.Encoder
	Mode    chat.TruncationMode
	Pad     int32

	train, eval []chat.Pair // train: all, or the first of stream
	stream      data.Iterable[chat.Pair]
	rowset      *rowsets.TrainingDataArguments
	seed        uint64
	// Train and Eval are the samples; Eval is empty without a file.
	Train, Eval data.Slice[chat.PreferenceSample]
}

// Read reads the files, or opens them for a stream.
func (r *Rows) Read(ctx context.Context, a *PreferenceArguments, t *args.TrainingArguments) (err error) {
	if err := a.unpack(t.OutputDir); err != nil {
		return err
	}
	r.rowset, r.seed = a.rows, t.SamplerSeed()
	if r.stream, err = rowsets.Open(a.rows, r.seed, chat.Columns.ReadPairs); err != nil {
		return err
	}
	if r.train, err = rowsets.Head(ctx, a.rows, r.stream); err != nil {
		return err
	}
	for _, row := range r.train {
		if err := r.sameForm(row); err != nil {
			return err
		}
	}
	if len(a.ValidationFile) > 0 {
		columns, err := a.rows.Columns()
		if err != nil {
			return err
		}
		if r.eval, err = columns.ReadPairs(a.ValidationFile...); err != nil {
			return err
		}
	}
	how := program.Count(len(r.train), "row")
	if a.Streams() {
		how = a.rows.Description()
	}
	r.Line("rows", how, r.train[0].Description())
	if unread := chat.UnreadOfPairs(r.train); len(unread) > 0 {
		r.Line("not read", strings.Join(unread, ", "))
	}
	return nil
}

// sameForm is an error of a row that has another form than the first.
func (r *Rows) sameForm(row chat.Pair) error {
	if first := r.train[0]; (row.PromptMessages == nil) != (first.PromptMessages == nil) {
		return fmt.Errorf("%s: %s, and in %s %s: want one form", row.Place, row.Description(), first.Place,
			first.Description())
	}
	return nil
}

// Conversations reports whether the chat template renders the rows.
func (r *Rows) Conversations() bool { return r.train[0].PromptMessages != nil }

// Encode makes samples of the rows, and shows one of them as the model will see it.
func (r *Rows) Encode() (err error) {
	if r.Train, err = r.encode("train_file", r.train); err != nil || r.eval == nil {
		return err
	}
	r.Eval, err = r.encode("validation_file", r.eval)
	return err
}

func (r *Rows) encode(name string, rows []chat.Pair) (list data.Slice[chat.PreferenceSample], err error) {
	left, first := map[error]int{}, map[error]string{}
	cut, merged := 0, 0
	for _, row := range rows {
		s, err := r.Encoder.EncodePair(row, r.Mode)
		reason := reasonOf(err)
		switch {
		case reason != nil:
			if left[reason]++; left[reason] == 1 {
				first[reason] = row.Place
			}
			continue
		case err != nil:
			return nil, fmt.Errorf("%s: %w", row.Place, err)
		}
		if s.Cut > 0 {
			cut++
		}
		if s.Merged > 0 {
			merged++
		}
		list = append(list, s)
	}
	for _, reason := range reasons {
		if n := left[reason]; n > 0 {
			r.Line("left out", fmt.Sprintf("%s of %s: %v", program.Count(n, "row"), name, reason),
				"the first is "+first[reason])
		}
	}
	if cut > 0 {
		r.Line("cut", fmt.Sprintf("%s of %s longer than max_length = %d", program.Count(cut, "row"), name,
			r.Encoder.MaxLength))
	}
	if merged > 0 {
		r.Line("prompts", fmt.Sprintf("%s of %s end otherwise with an answer than alone: the answers begin before",
			program.Count(merged, "prompt"), name))
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: no row teaches anything: want rows with two different answers that are not empty, "+
			"and a max_length (%d) that leaves some of them", name, r.Encoder.MaxLength)
	}
	if name == "train_file" {
		err = r.show(list[0])
	}
	return list, err
}

// reasons are why a row is left out.
var reasons = []error{chat.ErrSameAnswers, chat.ErrEmptyAnswer, chat.ErrPairCut}

func reasonOf(err error) error {
	for _, reason := range reasons {
		if errors.Is(err, reason) {
			return reason
		}
	}
	return nil
}

// show prints a row.
func (r *Rows) show(s chat.PreferenceSample) error {
	chosen, rejected, err := r.Encoder.MarkedPair(s)
	if err == nil {
		fmt.Fprintf(r.Stdout, "the first row, with the answers in ⟦⟧, chosen:\n%s\nrejected:\n%s\n",
			strings.TrimSuffix(chosen, "\n"), strings.TrimSuffix(rejected, "\n"))
	}
	return err
}

// Source are samples as batches.
func (r *Rows) Source(list data.Slice[chat.PreferenceSample]) data.Source {
	return data.NewSource(list, chat.CollatePairs(r.Pad))
}

// trainData is what is trained on.
func (r *Rows) trainData() trainer.Option {
	if !r.rowset.DatasetStreaming {
		return trainer.WithTrainData(r.Source(r.Train))
	}
	name := fmt.Sprintf("pairs %s %d", r.Mode, r.Encoder.MaxLength)
	encoded := data.Map(r.stream, name, 1, r.encodeNext)
	return trainer.WithIterableTrainData(data.NewIterableSource(rowsets.Shuffle(r.rowset, encoded, r.seed),
		chat.CollatePairs(r.Pad)))
}

// encodeNext makes samples of rows of a stream, without those that teach nothing.
func (r *Rows) encodeNext(rows []chat.Pair) (list []chat.PreferenceSample, err error) {
	for _, row := range rows {
		if err := r.sameForm(row); err != nil {
			return nil, err
		}
		s, err := r.Encoder.EncodePair(row, r.Mode)
		switch {
		case err == nil:
			list = append(list, s)
		case reasonOf(err) == nil:
			return nil, fmt.Errorf("%s: %w", row.Place, err)
		}
	}
	return list, nil
}

// Train trains a model with rows, evaluates and saves it.
func Train(ctx context.Context, r *Rows, m models.Model, a *args.TrainingArguments, opts ...trainer.Option) error {
	evaluated := &final.Evaluation{}
	opts = append(opts, r.trainData(), trainer.WithDisplay(r.Stderr),
		trainer.WithCallbacks(evaluated))
	if len(r.Eval) > 0 {
		opts = append(opts, trainer.WithEvalData(r.Source(r.Eval)))
	}
	t := trainer.New(m, a, opts...)
	defer t.Close() // what went wrong before is the error to report
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.SaveMetrics("train", res.Metrics), t.SaveState(), t.SaveModel("")); err != nil {
		return err
	}
	if t.IsMain() {
		r.Line("model", "saved to "+a.OutputDir)
	}
	if len(r.Eval) == 0 {
		return nil
	}
	metrics, err := evaluated.Of(ctx, t)
	if err != nil {
		return err
	}
	return t.SaveMetrics("eval", metrics)
}
