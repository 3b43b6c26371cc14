// SPDX-License-Identifier: Apache-2.0

// Chat talks to a saved chat model in the terminal: it renders the conversation by the model's chat template, and
// prints the answer as it comes. The model is the one that examples/finetune saved, unless a flag names another.
//
//	go run ./examples/chat
//	go run ./examples/chat --model_name_or_path MODEL --system "Be brief."
//	go run ./examples/chat --serve :8080
//	go run ./examples/chat --adapter out/tuned
//	echo "Who is Ada 0?" | go run ./examples/chat
//
// With --serve it answers OpenAI's /v1/chat/completions in place of the terminal: see package models/serve.
//
// Ctrl-C stops an answer; Ctrl-D, or Ctrl-C twice, ends the program. /help lists its commands.
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/examples/internal/sampling"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/program"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

func main() { os.Exit(program.Run(talk)) }

// talk is the program.
func talk(ctx context.Context, p *program.Process) error {
	return talkOver(ctx, p, os.Stdin, os.Stdout)
}

// talkOver is talk with a person, or a pipe, at in and out.
func talkOver(ctx context.Context, p *program.Process, in, out *os.File) error {
	a, how, h, on := defaults(), newSampling(), downloads.Defaults(), language.NewDevice()
	loader := args.Bind(p.Flags(), a, how, h, on)
	loader.Know(downloads.Aliases()...)
	if _, err := p.Parse(loader); err != nil {
		return err
	}
	if err := find(ctx, p, a, h); err != nil {
		return err
	}
	dev, err := on.Open()
	if err != nil {
		return err
	}
	c, err := open(a, how, dev)
	if err != nil {
		return err
	}
	c.engine = generation.NewEngine(dev, c.base.Model, a.engine())
	defer c.engine.Close()
	if a.Serve != "" {
		return answerRequests(ctx, p, a, c)
	}
	s := &session{conversation: c, process: p, in: newInput(in, out, p.Stderr), out: out}
	defer s.in.close()
	return s.run(ctx)
}

func newSampling() *sampling.SamplingArguments { return &sampling.SamplingArguments{Seed: 42} }
