// SPDX-License-Identifier: Apache-2.0

// Generate shows how a saved language model writes text: it loads the model with its tokenizer, gives it the ids that
// transformers would, and prints token by token what it draws.
//
//	go run ./examples/generate --model_name_or_path out/clm --prompt "func New"
//
// Several prompts are continued together. With --adapter a LoRA adapter is added to the model that it was trained on,
// and with --merge the sum is saved as an ordinary model, which transformers reads too:
//
//	go run ./examples/generate --adapter out/tuned --merge out/merged
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/examples/internal/adapters"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/examples/internal/sampling"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all" // the architectures that it can load
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

// GenerationArguments are the program's settings beside those of sampling.
type GenerationArguments struct {
	ModelNameOrPath string   `json:"model_name_or_path" path:"true" usage:"folder of a saved model with its tokenizer.json, a GGUF file, or a model of the Hub, as org/name"`
	Returns         int      `json:"num_return_sequences" usage:"texts for each prompt"`
	Adapter         string   `json:"adapter" path:"true" usage:"folder of a LoRA adapter of the model, Lockstep's or PEFT's"`
	Merge           string   `json:"merge" path:"true" usage:"folder in which to save the model with its adapter merged, instead of generating text"`
	Prompt          []string `json:"prompt" usage:"beginning of the text; repeatable, for several texts; empty: the model begins"`
}

// Check reports all faults at once.
func (g *GenerationArguments) Check(c *args.Checker) {
	c.Require(g.ModelNameOrPath != "" || g.Adapter != "", "model_name_or_path", g.ModelNameOrPath,
		"the folder of a saved model, as examples/clm writes to its output_dir")
	c.Require(g.Returns >= 0, "num_return_sequences", g.Returns, "at least 1, or 0 for the model's setting")
}

func main() { os.Exit(program.Run(generate)) }

// generate is the program. Unlike a training it ends when nobody reads what it writes any more.
func generate(ctx context.Context, p *program.Process) error {
	g, how, h := &GenerationArguments{}, &sampling.SamplingArguments{Seed: 42}, downloads.Defaults()
	on := language.NewDevice()
	loader := args.Bind(p.Flags(), g, how, h, on)
	loader.Know(downloads.Aliases()...)
	if _, err := p.Parse(loader); err != nil {
		return err
	}
	if err := adapters.Find(ctx, p, h, &g.ModelNameOrPath, &g.Adapter, ""); err != nil {
		return err
	}
	dtype, dev := models.WithDType(tensor.Float32), tensor.CPU()
	var err error
	if g.Merge != "" {
		dtype = models.WithSavedDType() // a merged model has the same bits whatever devices there are
	} else if dev, err = on.Open(); err != nil {
		return err
	}
	saved, err := language.OpenOn(dev, g.ModelNameOrPath, dtype, models.Mapped())
	if err == nil {
		err = adapters.Add(saved.Model, g.ModelNameOrPath, g.Adapter)
	}
	if err != nil {
		return err
	}
	if g.Merge != "" {
		return adapters.Save(p, saved, g.Adapter, g.Merge)
	}
	w := &writer{on: dev, model: saved.Model, tok: saved.Tokenizer, out: os.Stdout}
	ends := saved.Model.EndTokens()
	if id, ok := saved.Tokenizer.TokenID("<|endoftext|>"); ok {
		ends = append(ends, int(id))
	}
	if w.opt, err = how.Options(g.ModelNameOrPath, saved.Tokenizer, ends...); err != nil {
		return err
	}
	w.opt.MaxNewTokens = cmp.Or(w.opt.MaxNewTokens, 120)
	w.stops = how.Stop
	w.opt.NumReturnSequences = max(1, cmp.Or(g.Returns, w.opt.NumReturnSequences))
	prompts := g.Prompt
	if len(prompts) == 0 {
		prompts = []string{""}
	}
	if len(prompts)*w.opt.NumReturnSequences == 1 {
		err = w.stream(ctx, prompts[0])
	} else {
		err = w.batch(ctx, prompts)
	}
	if errors.Is(err, syscall.EPIPE) {
		return nil // who reads has read enough
	}
	return err
}

// writer writes texts of a model.
type writer struct {
	on    *tensor.Device // where the model is
	model language.Model
	tok   *tokenizers.Tokenizer
	opt   generation.Options
	stops []string // that end a text
	out   io.Writer
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

func (w *writer) ctx() *nn.Ctx { return nn.NewCtx(tensor.NewCtx(w.on), nil, false) }

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
	text := generation.NewTextStream(w.tok.NewStream(), w.opt.EOS, w.stops...)
	opt := w.opt
	opt.OnToken = func(id int) {
		piece, err := text.Next(id)
		if err == nil {
			_, err = io.WriteString(w.out, piece)
		}
		if err != nil {
			stop(err)
		}
	}
	_, err = generation.Generate(ctx, w.ctx(), w.model, ids, opt)
	if _, last := io.WriteString(w.out, text.Flush()); err == nil {
		err = last
	}
	if _, nl := fmt.Fprintln(w.out); err == nil {
		err = nl
	}
	return err
}

// batch continues several prompts together, and prints them one after the other.
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
		prompt := prompts[i/w.opt.NumReturnSequences]
		if _, err := fmt.Fprintf(w.out, "%d of %d: %s%s\n", i+1, len(texts), prompt, text); err != nil {
			return err
		}
	}
	return nil
}
