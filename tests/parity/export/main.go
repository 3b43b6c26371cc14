// SPDX-License-Identifier: Apache-2.0

// Export writes what a saved language model computes and how its tokenizer cuts a text, for the
// scripts of tests/parity to compare with transformers and tokenizers:
//
//	go run ./tests/parity/export out/clm /tmp/parity
//	VENV/bin/python tests/parity/check_model.py out/clm \
//		--ids /tmp/parity/ids.json --logits /tmp/parity/logits.safetensors
//	VENV/bin/python tests/parity/check_generation.py out/clm /tmp/parity/generation.json
//	VENV/bin/python tests/parity/check_tokenizer.py out/clm/tokenizer.json /tmp/parity/lines.json /tmp/parity/lines.txt
//
// With --ids it writes the logits of given tokens alone, and with --adapter those of a model with a LoRA adapter:
// check_adapter.py calls it so.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func main() {
	flags := pflag.NewFlagSet("export", pflag.ExitOnError)
	from := flags.String("lines", "", "text to cut, line by line; empty takes Go source and lines in many scripts")
	n := flags.Int("n", 10_000, "number of lines, if there is no --lines")
	rows := flags.Int("rows", 4, "rows of tokens to compute logits of")
	given := flags.String("ids", "", "file of rows of token ids: write their logits and nothing else")
	adapter := flags.String("adapter", "", "folder of a LoRA adapter, with --ids")
	double := flags.Bool("float64", false, "compute in float64, with --ids")
	_ = flags.Parse(os.Args[1:]) // it exits
	if flags.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "export: want the folder of a saved model and the folder to write to")
		os.Exit(2)
	}
	var err error
	if *given != "" {
		dt := tensor.Float32
		if *double {
			dt = tensor.Float64
		}
		err = exportLogits(flags.Arg(0), *adapter, *given, flags.Arg(1), dt)
	} else {
		err = export(flags.Arg(0), flags.Arg(1), *from, *n, *rows)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "export:", err)
		os.Exit(1)
	}
}

// languageModel is what can be exported.
type languageModel interface {
	models.Generator
	ContextLength() int // tokens that it can read
}

// export writes ids.json, logits.safetensors, generation.json, lines.txt and lines.json into out.
func export(dir, out, from string, n, rows int) error {
	lines, err := readLines(from, n)
	if err != nil {
		return err
	}
	tok, err := tokenizers.Load(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		return err
	}
	model, err := models.LoadPretrained(tensor.CPU(), dir)
	if err != nil {
		return err
	}
	m, ok := model.(languageModel)
	if !ok {
		return fmt.Errorf("%s holds a %s: want a language model", dir, model.ModelType())
	}
	all, err := tok.Encode(strings.Join(lines, "\n"))
	if err != nil {
		return err
	}
	ids, err := cut(all, rows, m.ContextLength())
	if err != nil {
		return err
	}
	cuts, err := cutLines(tok, lines)
	if err != nil {
		return err
	}
	texts, err := continueAll(dir, tok, m)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	var logits bytes.Buffer
	return errors.Join(
		writeLogits(&logits, m, ids),
		os.WriteFile(filepath.Join(out, "logits.safetensors"), logits.Bytes(), 0o666),
		writeJSON(filepath.Join(out, "ids.json"), ids),
		writeJSON(filepath.Join(out, "generation.json"), texts),
		os.WriteFile(filepath.Join(out, "lines.txt"), []byte(strings.Join(lines, "\n")+"\n"), 0o666),
		writeJSON(filepath.Join(out, "lines.json"), cuts),
	)
}

// exportLogits writes logits.safetensors into out: what a model computes of the rows of a file, with an adapter if one
// is named.
func exportLogits(dir, adapter, ids, out string, dt tensor.DType) error {
	m, err := models.LoadPretrained(tensor.CPU(), dir, models.WithDType(dt))
	if err != nil {
		return err
	}
	if adapter != "" {
		if _, err := lora.LoadOnto(m, dir, adapter, ""); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(ids)
	if err != nil {
		return err
	}
	var rows [][]int32
	if err := json.Unmarshal(text, &rows); err != nil {
		return fmt.Errorf("%s: %w", ids, err)
	}
	var logits bytes.Buffer
	if err := writeLogits(&logits, m, rows); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "logits.safetensors"), logits.Bytes(), 0o666)
}

// cut takes rows of one length from the beginning of a stream.
func cut(stream []int32, rows, length int) ([][]int32, error) {
	if len(stream) < rows*length {
		return nil, fmt.Errorf("the text has %d tokens: want %d rows of %d", len(stream), rows, length)
	}
	ids := make([][]int32, rows)
	for i := range ids {
		ids[i] = stream[i*length : (i+1)*length]
	}
	return ids, nil
}

// writeLogits writes the logits [rows, length, vocabulary] of ids in the safetensors format.
func writeLogits(w *bytes.Buffer, m models.Model, ids [][]int32) error {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	var flat []int64
	for _, row := range ids {
		for _, id := range row {
			flat = append(flat, int64(id))
		}
	}
	var err error
	if p := tensor.Try(func() {
		in := tensor.FromSlice(c, flat, len(ids), len(ids[0]))
		out := m.Forward(nn.NewCtx(c, nil, false),
			&data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: in}, Size: len(ids)})
		err = checkpoint.SaveTensors(c, w, []tensor.Named{{Name: "logits", Tensor: out.Logits}})
	}); p != nil {
		return p
	}
	return err
}

// continued is a prompt, the ids that the model is given for it, and those that it continues them with, greedily.
type continued struct {
	Prompt string  `json:"prompt"`
	IDs    []int32 `json:"ids"`
	New    []int   `json:"new"`
}

// prompts are what the model continues, in the languages of code and people; the last has a special token in it.
var prompts = []string{"func main() {", "// Package", " leading space", "für 世界\n", "", "one<|endoftext|>two"}

// continueAll continues each prompt by 24 tokens at most, and by no more than there are positions for.
func continueAll(dir string, tok *tokenizers.Tokenizer, m languageModel) ([]continued, error) {
	end, ok := tok.TokenID("<|endoftext|>")
	if !ok {
		return nil, errors.New("the tokenizer has no token <|endoftext|>")
	}
	opt, err := generation.Saved(dir)
	if err != nil {
		return nil, err
	}
	opt.Temperature = 0
	opt.EOS = append(opt.EOS, int(end))
	var all []continued
	for _, prompt := range prompts {
		encoded, err := tok.EncodeWithSpecial(prompt)
		if err != nil {
			return nil, err
		}
		c := continued{Prompt: prompt, IDs: append([]int32{}, encoded...)}
		var ids []int
		for _, id := range c.IDs {
			ids = append(ids, int(id))
		}
		if len(ids) == 0 {
			continue // transformers' generate needs a token
		}
		opt.MaxNewTokens = min(24, m.ContextLength()-len(ids))
		c.New, err = generation.Generate(context.Background(), nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, false), m,
			ids, opt)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// cutLine is how a line is cut: token ids, and the pieces within which tokens are merged.
type cutLine struct {
	IDs    []int32  `json:"ids"`
	Splits []string `json:"splits"`
}

// cutLines encodes every line. A tokenizer shows its tokens and not the pieces, so those are
// taken from a second one: trained on these lines until no pair is left to merge, it has each
// piece as one token.
func cutLines(tok *tokenizers.Tokenizer, lines []string) ([]cutLine, error) {
	texts := func(yield func(string, error) bool) {
		for _, l := range lines {
			if !yield(l, nil) {
				return
			}
		}
	}
	whole, err := tokenizers.Train(context.Background(), texts, tokenizers.TrainOptions{VocabSize: 1 << 20})
	if err != nil {
		return nil, err
	}
	out := make([]cutLine, len(lines))
	for i, line := range lines {
		ids, err := tok.Encode(line)
		if err != nil {
			return nil, err
		}
		out[i].IDs = append([]int32{}, ids...) // an empty list, not null
		out[i].Splits = []string{}
		pieces, err := whole.EncodeOrdinary(line)
		if err != nil {
			return nil, err
		}
		for _, id := range pieces {
			piece, err := whole.AppendToken(nil, id)
			if err != nil {
				return nil, err
			}
			out[i].Splits = append(out[i].Splits, string(piece))
		}
	}
	return out, nil
}

func writeJSON(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o666)
}
