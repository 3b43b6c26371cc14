// SPDX-License-Identifier: Apache-2.0

// Generation compares how fast Lockstep and transformers continue texts greedily, with a model of SmolLM2-135M's shape
// in float32 and random weights: the decoding of one text and of eight together, and a prompt of 512 tokens. Decoding
// is what further tokens take beyond the first. The sides alternate: ours, theirs, ours, theirs …. Ours also runs eight
// texts of eight goroutines by generation.Engine.
//
//	PYTHON=$PWD/venv/bin/python go run -C bench ./generation --threads 2
//
// The peer is peer.py under the Python that the environment variable PYTHON names; without it, ours runs alone.
//
// With --gguf the model is that of a GGUF file, computed in --dtype, and the peer is llama.cpp: llama.mjs under node,
// with the node-llama-cpp that --llama names. Then one text is decoded.
//
//	npm install node-llama-cpp@3.22.1
//	go run -C bench ./generation --gguf ../m-f32.gguf --llama ../node_modules/node-llama-cpp/dist/index.js
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/bench/internal/peer"
	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// bench is what is measured.
type bench struct {
	hidden, inner, layers, heads, kv, vocabulary int
	threads, rounds, tokens, prompt              int

	dir, python string
	gguf, llama string // a model's file, and llama.cpp for node
	dtype       string // of the weights of gguf
	out         io.Writer
	dev         *tensor.Device
	model       *transformer.Model
	c           *nn.Ctx
}

// work is one measurement.
type work struct {
	name               string
	texts, prompt, new int
	engine             bool // ours alone
}

func main() {
	log.SetFlags(0)
	b := bench{hidden: 576, inner: 1536, layers: 30, heads: 9, kv: 3, vocabulary: 49152, out: os.Stdout,
		python: os.Getenv("PYTHON")}
	pflag.IntVar(&b.threads, "threads", 2, "threads of each side")
	pflag.IntVar(&b.rounds, "rounds", 5, "runs of each side")
	pflag.IntVar(&b.tokens, "tokens", 32, "new tokens of each text, more than 1")
	pflag.IntVar(&b.prompt, "prompt", 512, "tokens of the long prompt")
	pflag.StringVar(&b.dir, "dir", "generation", "the folder that holds peer.py")
	pflag.StringVar(&b.gguf, "gguf", "", "a GGUF file; else a model of random weights")
	pflag.StringVar(&b.dtype, "dtype", "float32", "of the file's weights here: float32, bfloat16, float16 or q8_0")
	pflag.StringVar(&b.llama, "llama", "", "index.js of node-llama-cpp, for --gguf")
	pflag.Parse()
	if err := errors.Join(kernels.Init(), b.run(context.Background())); err != nil {
		log.Fatal(err)
	}
}

func (b *bench) run(ctx context.Context) error {
	b.dev = tensor.NewCPU(b.threads)
	defer b.dev.Close()
	err := b.load()
	if err != nil {
		return err
	}
	b.c = nn.NewCtx(tensor.NewCtx(b.dev), nn.Walk(b.model), false)
	fmt.Fprintf(b.out, "%d parameters, %d threads, kernels %s\n", nn.NumParameters(b.model), b.threads,
		kernels.Active())
	p, err := b.start()
	if err != nil {
		return err
	}
	defer p.Stop()
	one := work{"decode", 1, 16, b.tokens, false}
	if b.gguf != "" {
		_, err := b.compare(ctx, one, p)
		return err
	}
	rate := map[string]float64{}
	for _, w := range []work{one, {"decode, 8 texts", 8, 16, b.tokens, false},
		{"decode, 8 callers", 8, 16, b.tokens, true}, {"prompt", 1, b.prompt, 1, false}} {
		if rate[w.name], err = b.compare(ctx, w, p); err != nil {
			return err
		}
	}
	for _, name := range []string{"decode, 8 texts", "decode, 8 callers"} {
		fmt.Fprintf(b.out, "RATIO %s / decode %d %.2f\n", name, b.threads, rate[name]/rate["decode"])
	}
	return nil
}

// load makes the model.
func (b *bench) load() error {
	if b.gguf != "" {
		opt := models.Quantized()
		if b.dtype != "q8_0" {
			dt, err := dtype.Parse(b.dtype)
			if err != nil {
				return err
			}
			opt = models.WithDType(dt)
		}
		p, err := models.OpenPretrained[*transformer.Model](b.dev, b.gguf, "a decoder", opt)
		if err == nil {
			b.model, b.vocabulary = p.Model, p.Model.Cfg.VocabSize
		}
		return err
	}
	cfg, err := transformer.DefaultConfig("llama")
	if err != nil {
		return err
	}
	cfg.HiddenSize, cfg.IntermediateSize, cfg.NumHiddenLayers = b.hidden, b.inner, b.layers
	cfg.NumAttentionHeads, cfg.NumKeyValueHeads, cfg.HeadDim = b.heads, b.kv, b.hidden/b.heads
	cfg.VocabSize, cfg.MaxPositions, cfg.TieWordEmbeddings, cfg.EosTokenID = b.vocabulary, 2048, true, nil
	b.model, err = transformer.New(nn.NewInit(b.dev, 1), cfg)
	return err
}

// compare measures both sides alternately, and gives our tokens per second.
func (b *bench) compare(ctx context.Context, w work, p *peer.Peer) (float64, error) {
	count := float64(w.texts * (w.new - 1))
	if w.new == 1 {
		count = float64(w.texts * w.prompt)
	}
	ourSide := func(w work) (float64, error) { return b.ours(ctx, w) }
	theirSide := func(w work) (float64, error) { return p.Ask(w.texts, w.prompt, w.new) }
	var ours, theirs []float64
	for round := range b.rounds + 1 { // the first warms up
		took, err := beyondFirst(ourSide, w)
		if err != nil {
			return 0, err
		}
		other := 0.0
		if p != nil && !w.engine {
			if other, err = beyondFirst(theirSide, w); err != nil {
				return 0, err
			}
		}
		if round == 0 {
			continue
		}
		ours = append(ours, count/took)
		if other > 0 {
			theirs = append(theirs, count/other)
		}
	}
	fmt.Fprintf(b.out, "%-18s %8.1f tokens/s", w.name, stats.Median(ours))
	if len(theirs) > 0 {
		fmt.Fprintf(b.out, ", the peer %8.1f\nRATIO %s %d %.2f", stats.Median(theirs), w.name, b.threads,
			stats.Median(stats.Ratios(ours, theirs)))
	}
	fmt.Fprintln(b.out)
	return stats.Median(ours), nil
}

// beyondFirst is how long a side takes for the tokens beyond the first, or for the first one if there are no others.
func beyondFirst(run func(work) (float64, error), w work) (float64, error) {
	all, err := run(w)
	if err != nil || w.new == 1 {
		return all, err
	}
	w.new = 1
	first, err := run(w)
	return all - first, err
}

// ours is how many seconds our side takes.
func (b *bench) ours(ctx context.Context, w work) (float64, error) {
	prompts := make([][]int, w.texts)
	for i := range prompts {
		for j := range w.prompt {
			prompts[i] = append(prompts[i], (i*w.prompt+j)%b.vocabulary)
		}
	}
	opt := generation.Options{MaxNewTokens: w.new}
	if !w.engine {
		start := time.Now()
		_, err := generation.Batch(ctx, b.c, b.model, prompts, opt)
		return time.Since(start).Seconds(), err
	}
	e := generation.NewEngine(b.dev, b.model, generation.EngineConfig{})
	defer e.Close()
	faults := make([]error, w.texts)
	start := time.Now()
	var all sync.WaitGroup
	for i, prompt := range prompts {
		all.Go(func() { _, faults[i] = e.Generate(ctx, prompt, opt) })
	}
	all.Wait()
	return time.Since(start).Seconds(), errors.Join(faults...)
}

// command runs the peer; nil: there is none.
func (b *bench) command() *exec.Cmd {
	switch {
	case b.gguf != "" && b.llama != "":
		return exec.Command("node", b.dir+"/llama.mjs", b.llama, b.gguf, strconv.Itoa(b.threads))
	case b.gguf != "" || b.python == "":
		return nil
	}
	argv := []string{b.dir + "/peer.py"}
	for _, n := range []int{b.hidden, b.inner, b.layers, b.heads, b.kv, b.vocabulary, b.threads} {
		argv = append(argv, strconv.Itoa(n))
	}
	return exec.Command(b.python, argv...)
}

// start starts the peer; nil: there is none.
func (b *bench) start() (*peer.Peer, error) {
	cmd := b.command()
	if cmd == nil {
		return nil, nil
	}
	cmd.Env = append(os.Environ(), fmt.Sprintf("OMP_NUM_THREADS=%d", b.threads))
	return peer.Start(cmd, b.out)
}
