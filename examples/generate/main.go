// SPDX-License-Identifier: Apache-2.0

// Generate shows how a saved language model writes text: it loads the model with its tokenizer, gives it the ids that
// transformers would, and prints token by token what it draws.
//
//	go run ./examples/generate --model_name_or_path out/clm --prompt "func New"
//
// Several prompts are continued together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all" // the architectures that it can load
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// GenerationArguments are the program's settings. What is not given is as the model's generation_config.json has it.
type GenerationArguments struct {
	ModelNameOrPath   string   `json:"model_name_or_path" path:"true" usage:"folder of a saved model with its tokenizer.json"`
	Prompt            []string `json:"prompt" usage:"what a text begins with; repeatable, for several texts at once; empty lets the model begin"`
	MaxNewTokens      *int     `json:"max_new_tokens" usage:"length of the text in tokens; none: the model's setting, or 120"`
	Temperature       *float64 `json:"temperature" usage:"0 takes the likeliest token, 1 samples from the model; none: the model's setting"`
	TopK              *int     `json:"top_k" usage:"sample from the k likeliest tokens, 0 from all; none: the model's setting"`
	TopP              *float64 `json:"top_p" usage:"sample from the likeliest tokens that make up so much probability; none: the model's setting"`
	MinP              *float64 `json:"min_p" usage:"sample from tokens at least so likely, as a share of the likeliest; none: the model's setting"`
	RepetitionPenalty *float64 `json:"repetition_penalty" usage:"above 1 tokens that are there already become less likely; none: the model's setting"`
	NoRepeatNGram     *int     `json:"no_repeat_ngram_size" usage:"sequences of so many tokens come once only; none: the model's setting"`
	Stop              []string `json:"stop" usage:"end the text before this string; repeatable"`
	Seed              uint64   `json:"seed" usage:"seed of the draws"`
}

// Check reports all faults at once.
func (g *GenerationArguments) Check(c *args.Checker) {
	c.Require(g.ModelNameOrPath != "", "model_name_or_path", g.ModelNameOrPath,
		"the folder of a saved model, as examples/clm writes to its output_dir")
	c.Require(g.MaxNewTokens == nil || *g.MaxNewTokens >= 1, "max_new_tokens", g.MaxNewTokens, "at least 1")
	c.Require(g.Temperature == nil || *g.Temperature >= 0, "temperature", g.Temperature, "at least 0")
	c.Require(g.TopK == nil || *g.TopK >= 0, "top_k", g.TopK, "at least 0")
	c.Require(g.TopP == nil || *g.TopP >= 0 && *g.TopP <= 1, "top_p", g.TopP, "a probability in [0, 1]")
	c.Require(g.MinP == nil || *g.MinP >= 0 && *g.MinP <= 1, "min_p", g.MinP, "a share in [0, 1]")
	c.Require(g.RepetitionPenalty == nil || *g.RepetitionPenalty > 0, "repetition_penalty", g.RepetitionPenalty,
		"a number above 0")
	c.Require(g.NoRepeatNGram == nil || *g.NoRepeatNGram >= 0, "no_repeat_ngram_size", g.NoRepeatNGram, "at least 0")
	c.Require(!slices.Contains(g.Stop, ""), "stop", g.Stop, "strings that are not empty")
}

// options are the model's, changed by what is given.
func (g *GenerationArguments) options(lm languageModel, tok *tokenizers.Tokenizer) (generation.Options, error) {
	opt, err := generation.Saved(g.ModelNameOrPath)
	if err != nil {
		return opt, err
	}
	if opt.MaxNewTokens == 0 {
		opt.MaxNewTokens = 120
	}
	give(&opt.MaxNewTokens, g.MaxNewTokens)
	give(&opt.Temperature, g.Temperature)
	give(&opt.TopK, g.TopK)
	give(&opt.TopP, g.TopP)
	give(&opt.MinP, g.MinP)
	give(&opt.RepetitionPenalty, g.RepetitionPenalty)
	give(&opt.NoRepeatNGram, g.NoRepeatNGram)
	opt.Seed = g.Seed
	opt.EOS = append(opt.EOS, lm.EndTokens()...)
	if id, ok := tok.TokenID("<|endoftext|>"); ok {
		opt.EOS = append(opt.EOS, int(id))
	}
	if len(g.Stop) > 0 {
		opt.Stop = generation.StopStrings(tok, g.Stop...)
	}
	return opt, nil
}

func give[T any](setting, given *T) {
	if given != nil {
		*setting = *given
	}
}

// languageModel is a saved model that generates text.
type languageModel interface {
	models.Configured
	models.Generator
	EndTokens() []int // those that end a text
}

func main() { os.Exit(program.Run(generate)) }

// generate is the program. Unlike a training it ends when nobody reads what it writes any more.
func generate(ctx context.Context, p *program.Process) error {
	g := &GenerationArguments{Seed: 42}
	if _, err := p.Parse(args.Bind(p.Flags(), g)); err != nil {
		return err
	}
	saved, err := models.OpenPretrained[languageModel](tensor.CPU(), g.ModelNameOrPath,
		"a model that generates text, such as GPT2LMHeadModel")
	if err != nil {
		return err
	}
	w := &writer{model: saved.Model, tok: saved.Tokenizer, out: os.Stdout}
	if w.opt, err = g.options(saved.Model, saved.Tokenizer); err != nil {
		return err
	}
	w.stops = g.Stop
	if len(g.Prompt) < 2 {
		err = w.stream(ctx, strings.Join(g.Prompt, ""))
	} else {
		err = w.batch(ctx, g.Prompt)
	}
	if errors.Is(err, syscall.EPIPE) {
		return nil // who reads has read enough
	}
	return err
}

// writer writes texts of a model.
type writer struct {
	model languageModel
	tok   *tokenizers.Tokenizer
	opt   generation.Options
	stops []string // that end a text
	out   io.Writer
	held  string // text that may be the beginning of one of them
}

// show prints what comes of a text, up to the first of the stops.
func (w *writer) show(piece string, last bool) error {
	w.held += piece
	text := generation.CutStop(w.held, w.stops...)
	if len(text) == len(w.held) && !last {
		longest := 1
		for _, s := range w.stops {
			longest = max(longest, len(s))
		}
		n := max(0, len(text)-longest+1)
		for n > 0 && n < len(text) && !utf8.RuneStart(text[n]) {
			n--
		}
		text, w.held = text[:n], text[n:]
	} else {
		w.held = ""
	}
	_, err := io.WriteString(w.out, text)
	return err
}

// encode gives the ids that transformers gives the model for a prompt.
func (w *writer) encode(prompt string) (list []int, err error) {
	ids, err := w.tok.EncodeWithSpecial(prompt)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		list = append(list, int(id))
	}
	if len(list) == 0 {
		list = w.opt.EOS[:min(1, len(w.opt.EOS))]
	}
	return list, nil
}

func (w *writer) ctx() *nn.Ctx { return nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, false) }

// stream prints the prompt and what follows, token by token.
func (w *writer) stream(ctx context.Context, prompt string) error {
	ids, err := w.encode(prompt)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w.out, prompt); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	text := w.tok.NewStream()
	opt := w.opt
	opt.OnToken = func(id int) {
		if slices.Contains(opt.EOS, id) {
			return
		}
		piece, err := text.Next(int32(id))
		if err == nil {
			err = w.show(piece, false)
		}
		if err != nil {
			stop(err)
		}
	}
	_, err = generation.Generate(ctx, w.ctx(), w.model, ids, opt)
	if last := w.show(text.Flush(), true); err == nil {
		err = last
	}
	if _, nl := fmt.Fprintln(w.out); err == nil {
		err = nl
	}
	return err
}

// batch continues several prompts together, and prints them one behind the other.
func (w *writer) batch(ctx context.Context, prompts []string) error {
	all := make([][]int, len(prompts))
	for i, prompt := range prompts {
		var err error
		if all[i], err = w.encode(prompt); err != nil {
			return err
		}
	}
	texts, err := generation.Batch(ctx, w.ctx(), w.model, all, w.opt)
	if err != nil {
		return err
	}
	for i, ids := range texts {
		var list []int32
		for _, id := range ids {
			if !slices.Contains(w.opt.EOS, id) {
				list = append(list, int32(id))
			}
		}
		text, err := w.tok.DecodeText(list)
		if err != nil {
			return err
		}
		text = strings.ToValidUTF8(generation.CutStop(text, w.stops...), "\uFFFD")
		if _, err := fmt.Fprintf(w.out, "%d of %d: %s%s\n", i+1, len(texts), prompts[i], text); err != nil {
			return err
		}
	}
	return nil
}
