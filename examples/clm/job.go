// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/examples/internal/final"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// job is one run of the program.
type job struct {
	*settings
	*program.Process

	corpus *corpus
	tok    *tokenizers.Tokenizer
	net    language.Model
	beside trainer.Option // files beside the weights: the tokenizer's, generation's
	last   final.Evaluation
}

// run trains, or only evaluates if that is all that was asked for.
func (j *job) run(ctx context.Context) error {
	onlyEval := !j.args.TrainingWanted()
	if onlyEval && j.model.ModelNameOrPath == "" {
		return errors.New("--do_eval without --do_train evaluates a saved model: want --model_name_or_path FOLDER")
	}
	if err := requireWritable(j.args.OutputDir); err != nil {
		return err
	}
	if err := j.prepare(ctx, !onlyEval); err != nil {
		return err
	}
	train, eval, err := j.corpus.blocks(ctx, j.Process, j.tok, j.data.BlockSize, j.data)
	if err != nil {
		return err
	}
	opts := []trainer.Option{trainer.WithTrainData(train), trainer.WithMetrics(textMetric(size(j.corpus.eval))),
		j.beside, trainer.WithCallbacks(&j.last), trainer.WithDisplay(j.Stderr)}
	if eval != nil {
		opts = append(opts, trainer.WithEvalData(eval))
	}
	t := trainer.New(j.net, j.args, opts...)
	defer t.Close() // what went wrong before is the error to report
	if onlyEval {
		m, err := t.EvaluateContext(ctx)
		if err != nil {
			return err
		}
		return j.saveEvaluation(t, m)
	}
	j.Line("samples", program.Count(train.Len(), "block")+" of "+program.Count(j.data.BlockSize, "token"))
	return j.train(ctx, t)
}

// requireWritable makes the output folder and a file there, so that a run does not learn
// at its first checkpoint that it cannot.
func requireWritable(dir string) error {
	probe := filepath.Join(dir, ".writable")
	err := os.MkdirAll(dir, 0o777)
	if err == nil {
		err = os.WriteFile(probe, []byte("probe"), 0o666)
		_ = os.Remove(probe) // another run may have been faster
	}
	if err != nil {
		return fmt.Errorf("output_dir %s: %w: want a folder that can be written to", dir, err)
	}
	return nil
}

// prepare gets the text, the tokenizer and the model.
func (j *job) prepare(ctx context.Context, training bool) error {
	if err := j.download(ctx); err != nil {
		return err
	}
	if j.model.ModelNameOrPath != "" { // before much text is read for nothing
		if err := j.load(j.model.ModelNameOrPath); err != nil {
			return err
		}
	}
	took := stopwatch()
	evaluating := !training || j.args.EvaluationWanted()
	var err error
	if j.corpus, err = readCorpus(j.Process, j.data, training, evaluating); err != nil {
		return err
	}
	j.Line("text", j.corpus.String(), took())
	switch {
	case evaluating && len(j.corpus.eval) == 0:
		return errors.New("there is no text to evaluate on: want --validation_file")
	case training && len(j.corpus.train) == 0:
		return errors.New("there is no training text: want --train_file")
	}
	if j.net != nil {
		j.corpus.ends = j.net.EndTokens()
		return nil
	}
	return j.create(ctx)
}

// textFiles are what package data/text reads, of the files of data sets.
var textFiles = []string{".txt", ".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet"}

// download gets what is of the Hub.
func (j *job) download(ctx context.Context) error {
	if err := j.hub.Model(ctx, j.Process, &j.model.ModelNameOrPath); err != nil || j.set.DatasetName == "" {
		return err
	}
	files, err := j.hub.Files(ctx, j.Process, j.set, textFiles, hub.Train, hub.Validation)
	j.data.TrainFile, j.data.ValidationFile = files[hub.Train], files[hub.Validation]
	return err
}

// load takes a saved model with its tokenizer. What lies beside it and is not trained is kept unchanged.
func (j *job) load(dir string) error {
	options := []models.LoadOption{j.model.DType.Loading()}
	if j.args.ShardStrategy() != args.NoShard || j.args.TPSize > 1 {
		options = append(options, models.Deferred()) // it may not fit before it is spread
	}
	saved, err := language.Open(dir, options...)
	if err != nil {
		return err
	}
	j.net, j.tok, j.beside = saved.Model, saved.Tokenizer, trainer.WithSidecars(saved.Files...)
	if j.data.BlockSize == 0 {
		j.data.BlockSize = min(j.net.ContextLength(), 1024)
	}
	if err := j.fits(); err != nil {
		return err
	}
	j.Line("model", j.net.ModelType()+" from "+dir, program.Count(nn.NumParameters(j.net), "parameter"))
	return nil
}

// fits compares the settings with the model.
func (j *job) fits() error {
	if n := j.net.ContextLength(); j.data.BlockSize > n {
		return fmt.Errorf("block_size %d is more than the model's %d positions", j.data.BlockSize, n)
	}
	return j.args.ValidateFor(trainer.ProgramFor(j.net))
}

// create trains a tokenizer and makes a new model.
func (j *job) create(ctx context.Context) error {
	if j.data.BlockSize == 0 {
		j.data.BlockSize = 128
	}
	took := stopwatch()
	var err error
	if j.tok, err = j.corpus.trainTokenizer(ctx, j.Process, j.model.VocabSize); err != nil {
		return err
	}
	j.Line("tokenizer", "byte-level BPE of "+program.Count(j.tok.VocabSize(), "token"), took())
	if err := j.tok.BeginWith(endOfText); err != nil { // as in training, where it stands before each document
		return err
	}
	eot, _ := j.tok.TokenID(endOfText)
	in := nn.NewInit(tensor.CPU(), j.args.Seed).As(j.model.DType.New())
	if j.args.ShardStrategy() != args.NoShard || j.args.TPSize > 1 { // it may not fit before it is spread
		in = in.Deferred()
	}
	if j.model.ConfigName != "" {
		return j.follow(in, int(eot))
	}
	cfg := j.model.config()
	cfg.VocabSize, cfg.NPositions = j.tok.VocabSize(), j.data.BlockSize
	cfg.BosTokenID, cfg.EosTokenID = new(int(eot)), new(int(eot))
	net, err := gpt2.New(in, cfg)
	if err != nil {
		return err
	}
	j.net = net
	j.Line("model", "gpt2 of "+program.Count(cfg.NLayer, "layer"), fmt.Sprintf("width %d", cfg.NEmbd),
		program.Count(cfg.NHead, "head"), program.Count(nn.NumParameters(net), "parameter"))
	return j.describe(int(eot))
}

// follow makes a new model by a config.json, with the tokens of the tokenizer.
func (j *job) follow(in *nn.Init, eot int) error {
	text, err := models.ReadConfig(j.model.ConfigName)
	if err != nil {
		return err
	}
	cfg := map[string]any{}
	if err := (jsonfile.Options{Numbers: true}).Unmarshal(text, &cfg); err != nil {
		return fmt.Errorf("%s: %w", j.model.ConfigName, err)
	}
	if v, ok := cfg["vocab_size"]; ok { // it gives way to the tokenizer's, and must be one all the same
		const most = 1 << 22
		if n, err := strconv.Atoi(fmt.Sprint(v)); err != nil || n < 1 || n > most {
			return fmt.Errorf("%s: vocab_size = %v: want 1 to %d", j.model.ConfigName, v, most)
		}
		if fmt.Sprint(v) != strconv.Itoa(j.tok.VocabSize()) {
			j.Line("vocab_size", fmt.Sprintf("%d, of the tokenizer: %s has %v", j.tok.VocabSize(), j.model.ConfigName,
				v))
		}
	}
	maps.Copy(cfg, map[string]any{"vocab_size": j.tok.VocabSize(), "bos_token_id": eot, "eos_token_id": eot,
		"pad_token_id": nil})
	if text, err = json.Marshal(cfg); err != nil {
		return err
	}
	net, err := models.FromConfig(in, text)
	if err != nil {
		return fmt.Errorf("%s: %w", j.model.ConfigName, err)
	}
	var ok bool
	if j.net, ok = net.(language.Model); !ok {
		return fmt.Errorf("%s is of a %s: want a language model's, such as LlamaForCausalLM", j.model.ConfigName,
			models.Architecture(net))
	}
	if err := j.fits(); err != nil {
		return err
	}
	j.Line("model", net.ModelType()+" as "+j.model.ConfigName, program.Count(nn.NumParameters(net), "parameter"))
	return j.describe(eot)
}

// describe makes the files with which transformers, and others that read its folders, continue a text as this
// program does.
func (j *job) describe(eot int) error {
	parts := []checkpoint.Part{{Name: models.TokenizerFile, Write: func(w io.Writer) error {
		_, err := j.tok.WriteTo(w)
		return err
	}}}
	for name, content := range map[string]any{
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": endOfText, "eos_token": endOfText,
			"unk_token":     endOfText,
			"add_bos_token": true, "add_eos_token": false, // llama.cpp reads these
			"model_max_length": j.net.ContextLength(), "clean_up_tokenization_spaces": false,
		},
		generation.ConfigFile: j.sample.config(eot),
	} {
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(content); err != nil {
			return err
		}
		parts = append(parts, checkpoint.BytesPart(name, text.Bytes()))
	}
	j.beside = trainer.WithParts(parts...)
	return nil
}

// train trains, writes the results and the final model, evaluates and prints samples.
func (j *job) train(ctx context.Context, t *trainer.Trainer) error {
	var baseline float64
	if len(j.corpus.eval) > 0 {
		baseline = newByteModel(j.corpus.train).natsPerByte(j.corpus.eval)
	}
	j.corpus.train = nil
	debug.FreeOSMemory() // the text and the counts are done with, and training takes less
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.SaveMetrics("train", res.Metrics), t.SaveState(), t.SaveModel("")); err != nil {
		return err
	}
	j.Line("model", "saved to "+j.args.OutputDir)
	if len(j.corpus.eval) > 0 {
		m, err := j.last.Of(ctx, t)
		if err != nil {
			return err
		}
		if err := j.saveEvaluation(t, m); err != nil {
			return err
		}
		verdict := "better"
		if m["eval_nats_per_byte"] >= baseline {
			verdict = "not better"
		}
		j.Line("baseline", fmt.Sprintf("%.4f nats per byte, by counting what follows two bytes", baseline),
			"the model is "+verdict)
	}
	if !t.IsMain() {
		return nil
	}
	return j.write(ctx)
}

// saveEvaluation writes the results of an evaluation, which the display has shown.
func (j *job) saveEvaluation(t *trainer.Trainer, m map[string]float64) error {
	m = maps.Clone(m)
	m["perplexity"] = m["eval_perplexity"] // HuggingFace's run_clm.py has it under this name
	return t.SaveMetrics("eval", m)
}

// write prints a sample for each prompt.
func (j *job) write(ctx context.Context) error {
	if j.sample.MaxNewTokens == 0 {
		return nil
	}
	prompts := j.sample.Prompt
	if len(prompts) == 0 {
		prompts = []string{""} // the model begins by itself
	}
	for i, prompt := range prompts {
		if len(prompts) == 1 {
			fmt.Fprintf(j.Stdout, "sample:\n%s", prompt)
		} else {
			fmt.Fprintf(j.Stdout, "sample %d of %d:\n%s", i+1, len(prompts), prompt)
		}
		if err := j.continued(ctx, prompt); err != nil {
			return err
		}
		fmt.Fprintln(j.Stdout)
	}
	return nil
}

// continued prints what the model writes after a prompt.
func (j *job) continued(ctx context.Context, prompt string) error {
	eot, _ := j.corpus.end(j.tok)
	ends := append([]int{int(eot)}, j.net.EndTokens()...)
	var ids []int
	encoded, err := j.tok.EncodeWithSpecial(prompt)
	if err != nil {
		return err
	}
	for _, id := range encoded {
		ids = append(ids, int(id))
	}
	if len(ids) == 0 {
		ids = []int{int(eot)}
	}
	text := j.tok.NewStream()
	show := func(s string) {
		_, _ = io.WriteString(j.Stdout, s) // a broken pipe ends the program elsewhere
	}
	c := nn.NewCtx(tensor.NewCtx(nn.NamedParameters(j.net)[0].Device()), nil, false) // where it was trained
	_, err = generation.Generate(ctx, c, j.net, ids, generation.Options{
		MaxNewTokens: j.sample.MaxNewTokens, Temperature: j.sample.Temperature, TopK: j.sample.TopK,
		TopP:              j.sample.TopP,
		RepetitionPenalty: j.sample.RepetitionPenalty, EOS: ends, Seed: j.args.Seed,
		OnToken: func(id int) {
			if !slices.Contains(ends, id) {
				piece, _ := text.Next(int32(id)) // the model knows no other tokens
				show(piece)
			}
		},
	})
	show(text.Flush())
	return err
}
