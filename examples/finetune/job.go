// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/adapters"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/examples/internal/rowsets"
	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// job is one run of the program.
type job struct {
	*FineTuningArguments
	*program.Process
	args     *args.TrainingArguments
	rowset   *rowsets.TrainingDataArguments
	adapters *adapters.AdapterArguments
	hub      *downloads.HubArguments
	dataset  *downloads.HubDataArguments
	adapter  *lora.Adapter // nil: the whole model is trained

	base    *language.Tuned[language.Model]
	rows    []chat.Row              // all, or the first of stream
	stream  data.Iterable[chat.Row] // with DatasetStreaming
	encoder chat.Encoder
	pad     int32
}

// run trains, saves, and answers.
func (j *job) run(ctx context.Context) error {
	if err := j.find(ctx); err != nil {
		return err
	}
	if err := j.open(ctx); err != nil {
		return err
	}
	train, err := j.trainData()
	if err != nil {
		return err
	}
	opts := []trainer.Option{train, trainer.WithSidecars(j.base.Files...), trainer.WithDisplay(j.Stderr)}
	if j.adapter != nil {
		opts = append(opts, trainer.WithAdapter(j.adapter))
	}
	t := trainer.New(j.base.Model, j.args, opts...)
	defer t.Close() // what went wrong before is the error to report
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.SaveMetrics("train", res.Metrics), t.SaveState(), t.SaveModel("")); err != nil {
		return err
	}
	if !t.IsMain() {
		return nil
	}
	j.Line("model", "saved to "+j.args.OutputDir)
	return j.answer(ctx)
}

// demonstration is a tiny model and conversations.
//
//go:embed testdata/model testdata/chats.jsonl
var demonstration embed.FS

// unpack writes the demonstration beside the results.
func (j *job) unpack() error {
	dir := filepath.Join(j.args.OutputDir, "demonstration")
	j.ModelNameOrPath, j.rowset.TrainFile = filepath.Join(dir, "model"), []string{filepath.Join(dir, "chats.jsonl")}
	inner, err := fs.Sub(demonstration, "testdata")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.CopyFS(dir, inner)
}

// rowFiles are what chat.ReadRows reads.
var rowFiles = []string{".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet"}

// find settles which folders and files have the model, its adapter and the rows.
func (j *job) find(ctx context.Context) error {
	if j.ModelNameOrPath == "" {
		return j.unpack()
	}
	if err := j.hub.Model(ctx, j.Process, &j.ModelNameOrPath); err != nil {
		return err
	}
	if err := j.hub.ModelAt(ctx, j.Process, &j.adapters.Adapter, ""); err != nil || j.dataset.DatasetName == "" {
		return err
	}
	files, err := j.hub.Files(ctx, j.Process, j.dataset, rowFiles, hub.Train)
	j.rowset.TrainFile = files[hub.Train]
	return err
}

// open reads the model, its chat template and the rows.
func (j *job) open(ctx context.Context) (err error) {
	if err := j.readRows(ctx); err != nil {
		return err
	}
	loading := []models.LoadOption{j.DType.Loading()}
	if j.adapters.UsePEFT || j.adapters.Adapter != "" {
		loading = append(loading, models.Mapped()) // it is frozen
	}
	saved, err := language.Open(j.ModelNameOrPath, loading...)
	if err != nil {
		return err
	}
	j.base = &language.Tuned[language.Model]{Pretrained: saved, Line: j.Line}
	j.Line("model", j.base.Model.ModelType(), program.Count(nn.NumParameters(j.base.Model), "parameter"))
	if err := j.addTokens(); err != nil {
		return err
	}
	j.adapter, err = j.adapters.Attach(j.Process, j.base.Model, j.ModelNameOrPath, j.args.Seed)
	if err != nil {
		return err
	}
	return j.setEncoder()
}

// setEncoder prepares the encoder of rows, and the tokens at which the saved model will stop.
func (j *job) setEncoder() (err error) {
	row := j.rows[0]
	e, pad, err := j.base.Encoder(language.Texts{ChatTemplate: j.ChatTemplate, EOSToken: j.EOSToken,
		Conversations: row.Messages != nil || row.PromptMessages != nil})
	if err != nil {
		return err
	}
	e.AssistantOnly, e.AllTokens, e.MaxLength = j.AssistantOnlyLoss, !j.CompletionOnlyLoss, j.MaxLength
	if n := j.base.Model.ContextLength(); e.MaxLength == 0 || e.MaxLength > n {
		e.MaxLength = n
	}
	j.encoder, j.pad = e, pad
	return nil
}

// trainData is what is trained on.
func (j *job) trainData() (trainer.Option, error) {
	samples, err := j.samples()
	if err != nil {
		return nil, err
	}
	switch {
	case !j.rowset.DatasetStreaming:
		return trainer.WithTrainData(data.NewSource(samples, chat.Collate(j.pad))), nil
	case j.Packing:
		return trainer.WithIterableTrainData(data.NewIterableSource(j.packedStream(), chat.Collate(j.pad))), nil
	}
	rows := rowsets.Shuffle(j.rowset, j.stream, j.args.SamplerSeed())
	return trainer.WithIterableTrainData(data.NewIterableSource(rows, j.collate)), nil
}

// samples encodes the rows, and shows one of them as the model will see it.
func (j *job) samples() (data.Slice[chat.Sample], error) {
	e, length := j.packingEncoder(), j.encoder.MaxLength
	samples, cut := make([]chat.Sample, len(j.rows)), 0
	for i, row := range j.rows {
		var err error
		if samples[i], err = j.encode(&e, row); err != nil {
			return nil, err
		}
		if samples[i].Cut > 0 {
			cut++
		}
	}
	j.warnOfPrompts(samples)
	if err := j.describe(samples); err != nil || j.rowset.DatasetStreaming {
		return nil, err
	}
	if cut > 0 {
		j.Line("cut", fmt.Sprintf("%s longer than max_length = %d", program.Count(cut, "row"), length))
	}
	if j.Packing {
		return j.pack(samples, length)
	}
	taught := slices.DeleteFunc(samples, func(s chat.Sample) bool { return !s.Teaches() })
	if n := len(j.rows) - len(taught); n > 0 {
		j.Line("left out", fmt.Sprintf("%s of which nothing is learned before max_length", program.Count(n, "row")))
	}
	if len(taught) == 0 {
		return nil, fmt.Errorf("nothing is learned: max_length = %d cuts all answers: want more", length)
	}
	return taught, nil
}

// packingEncoder is the encoder of rows that may be put together.
func (j *job) packingEncoder() chat.Encoder {
	e := j.encoder
	if j.Packing && j.PackingStrategy != chat.BestFit {
		e.MaxLength = 0 // longer rows are split
	}
	return e
}

// packedStream are the rows of a stream put together, a thousand at a time as TRL does it, and drawn from the buffer.
func (j *job) packedStream() data.Iterable[chat.Sample] {
	e, length := j.packingEncoder(), j.encoder.MaxLength
	pack := func(rows []chat.Row) ([]chat.Sample, error) {
		samples, err := j.encodeAll(&e, rows)
		if err != nil {
			return nil, err
		}
		return chat.Pack(samples, length, j.PackingStrategy)
	}
	name := fmt.Sprintf("packed %s %d", j.PackingStrategy, length)
	return rowsets.Shuffle(j.rowset, data.Map(j.stream, name, chat.PackedTogether, pack), j.args.SamplerSeed())
}

// pack puts samples together.
func (j *job) pack(samples []chat.Sample, length int) (data.Slice[chat.Sample], error) {
	packed, err := chat.Pack(samples, length, j.PackingStrategy)
	if err != nil {
		return nil, err
	}
	tokens := 0
	for _, s := range packed {
		tokens += len(s.IDs)
	}
	j.Line("packed", program.Count(len(packed), "row"), fmt.Sprintf("%.1f%% of their %d tokens are filled",
		100*float64(tokens)/float64(len(packed)*length), length))
	return packed, nil
}

// describe prints what is learned.
func (j *job) describe(samples []chat.Sample) error {
	tokens, learned := 0, 0
	for _, s := range samples {
		tokens += len(s.IDs)
		for _, yes := range s.Learned {
			if yes {
				learned++
			}
		}
	}
	where := ""
	if j.rowset.DatasetStreaming {
		where = " of the first " + program.Count(len(samples), "row")
	}
	j.Line("tokens", program.Count(tokens, "token")+where, program.Count(learned, "token")+" learned")
	text, err := j.encoder.Marked(samples[0])
	if err != nil {
		return err
	}
	fmt.Fprintf(j.Stdout, "the first row, with what is learned in ⟦⟧:\n%s\n", text)
	return nil
}

// continuation is how the model continues after a prompt.
type continuation struct {
	PromptIDs []int  `json:"prompt_ids"`
	NewIDs    []int  `json:"new_ids"`
	Text      string `json:"text"`
	Stopped   bool   `json:"stopped"` // at an end token
}

// continuationsFile keeps the answers beside the model.
const continuationsFile = "continuations.json"

// answer continues the prompts of some rows greedily, and says how many answers have an end: a model whose answers have
// none has learned not to stop.
func (j *job) answer(ctx context.Context) error {
	var all []continuation
	stopped := 0
	var ends []int
	for _, id := range j.encoder.Ends {
		ends = append(ends, int(id))
	}
	for _, row := range j.rows {
		if len(all) == j.Answers || j.MaxNewTokens == 0 {
			break
		}
		prompt, err := j.encoder.Prompt(row)
		if err != nil {
			return err
		}
		room := j.base.Model.ContextLength() - len(prompt)
		if len(prompt) == 0 || room < 1 {
			continue
		}
		c := continuation{}
		for _, id := range prompt {
			c.PromptIDs = append(c.PromptIDs, int(id))
		}
		dev := nn.NamedParameters(j.base.Model)[0].Device() // where it was trained
		net := nn.NewCtx(tensor.NewCtx(dev), nil, false)
		c.NewIDs, err = generation.Generate(ctx, net, j.base.Model, c.PromptIDs, generation.Options{
			MaxNewTokens: min(j.MaxNewTokens, room), EOS: ends})
		if err != nil {
			return err
		}
		if err := j.show(&c); err != nil {
			return err
		}
		if all = append(all, c); c.Stopped {
			stopped++
		}
	}
	if len(all) == 0 {
		return nil
	}
	within := program.Count(j.MaxNewTokens, "token")
	j.Line("stopped", fmt.Sprintf("%d of %d answers within %s", stopped, len(all), within))
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(j.args.OutputDir, continuationsFile), append(text, '\n'), 0o666)
}

// show prints an answer.
func (j *job) show(c *continuation) error {
	var ids []int32
	for _, id := range c.NewIDs {
		ids = append(ids, int32(id))
		c.Stopped = c.Stopped || slices.Contains(j.encoder.Ends, int32(id))
	}
	prompt := make([]int32, len(c.PromptIDs))
	for i, id := range c.PromptIDs {
		prompt[i] = int32(id)
	}
	asked, err := j.base.Tokenizer.Decode(prompt)
	if err != nil {
		return err
	}
	if c.Text, err = j.base.Tokenizer.DecodeText(ids); err != nil {
		return err
	}
	end := ""
	if !c.Stopped {
		end = " … (it did not stop)"
	}
	fmt.Fprintf(j.Stdout, "%s%s%s\n", asked, c.Text, end)
	return nil
}
