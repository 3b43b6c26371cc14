// SPDX-License-Identifier: Apache-2.0

// Generate shows how a saved language model writes text: it loads the model with its tokenizer, gives it the ids that
// transformers would, and prints token by token what it draws.
//
//	go run ./examples/generate --model_name_or_path out/clm --prompt "func New"
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all" // the architectures that it can load
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// GenerationArguments are the program's settings.
type GenerationArguments struct {
	ModelNameOrPath string  `json:"model_name_or_path" path:"true" usage:"folder of a saved model with its tokenizer.json"`
	Prompt          string  `json:"prompt" usage:"what the text begins with; empty lets the model begin"`
	MaxNewTokens    int     `json:"max_new_tokens" usage:"length of the text in tokens"`
	Temperature     float64 `json:"temperature" usage:"0 takes the likeliest token, 1 samples from the model"`
	TopK            int     `json:"top_k" usage:"sample from the k likeliest tokens; 0 for all"`
	TopP            float64 `json:"top_p" usage:"sample from the likeliest tokens that make up so much probability; 0 for all"`
	// RepetitionPenalty is transformers'.
	RepetitionPenalty float64 `json:"repetition_penalty" usage:"above 1 tokens that are there already become less likely"`
	Seed              uint64  `json:"seed" usage:"seed of the draws"`
}

// Check reports all faults at once.
func (g *GenerationArguments) Check(c *args.Checker) {
	c.Require(g.ModelNameOrPath != "", "model_name_or_path", g.ModelNameOrPath,
		"the folder of a saved model, as examples/clm writes to its output_dir")
	c.Require(g.MaxNewTokens >= 1, "max_new_tokens", g.MaxNewTokens, "at least 1")
	c.Require(g.Temperature >= 0, "temperature", g.Temperature, "at least 0")
	c.Require(g.TopK >= 0, "top_k", g.TopK, "at least 0")
	c.Require(g.TopP >= 0 && g.TopP <= 1, "top_p", g.TopP, "a probability in [0, 1]")
	c.Require(g.RepetitionPenalty > 0, "repetition_penalty", g.RepetitionPenalty, "a number above 0")
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
	g := &GenerationArguments{Prompt: "func (r *Reader) Read(", MaxNewTokens: 120, Temperature: 0.6, TopP: 0.9,
		RepetitionPenalty: 1.1, Seed: 42}
	if _, err := p.Parse(args.Bind(p.Flags(), g)); err != nil {
		return err
	}
	saved, err := models.OpenPretrained[languageModel](tensor.CPU(), g.ModelNameOrPath,
		"a model that generates text, such as GPT2LMHeadModel")
	if err != nil {
		return err
	}
	if err := g.write(ctx, saved.Model, saved.Tokenizer, os.Stdout); !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil // who reads has read enough
}

// write prints the prompt and what follows, token by token.
func (g *GenerationArguments) write(ctx context.Context, lm languageModel, tok *tokenizers.Tokenizer,
	w io.Writer) error {
	var prompt []int
	eos := slices.Clone(lm.EndTokens())
	if id, ok := tok.TokenID("<|endoftext|>"); ok {
		eos = append(eos, int(id))
	}
	ids, err := tok.EncodeWithSpecial(g.Prompt) // the ids that transformers gives the model for the prompt
	if err != nil {
		return err
	}
	for _, id := range ids {
		prompt = append(prompt, int(id))
	}
	if len(prompt) == 0 {
		prompt = eos[:min(1, len(eos))]
	}
	if _, err := io.WriteString(w, g.Prompt); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	text := tok.NewStream()
	show := func(piece string, err error) {
		if err == nil {
			_, err = io.WriteString(w, piece)
		}
		if err != nil {
			stop(err)
		}
	}
	_, err = generation.Generate(ctx, nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, false), lm, prompt,
		generation.Options{
			MaxNewTokens: g.MaxNewTokens, Temperature: g.Temperature, TopK: g.TopK, TopP: g.TopP,
			RepetitionPenalty: g.RepetitionPenalty, EOS: eos, Seed: g.Seed,
			OnToken: func(id int) {
				if !slices.Contains(eos, id) {
					show(text.Next(int32(id)))
				}
			},
		})
	show(text.Flush(), nil)
	if _, nl := fmt.Fprintln(w); err == nil {
		err = nl
	}
	return err
}
