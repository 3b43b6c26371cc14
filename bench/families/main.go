// SPDX-License-Identifier: Apache-2.0

// Families compares training steps of model families with transformers': forward pass, backward pass, clipping and
// AdamW in float32, on models of random weights that have the shapes of real ones. The sides alternate: ours, theirs,
// ours, theirs …. Both start from the same settings, not from the same weights.
//
//	PYTHON=$PWD/venv/bin/python go run -C bench ./families --threads 2 qwen3 llama
//
// The peer is peer.py under the Python that the environment variable PYTHON names; without it, ours runs alone.
// MKL_PRELOAD is as for bench/kernels: see bench/peers.sh.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/bench/internal/peer"
	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// families are config.json's of real models, with fewer layers and a smaller vocabulary where two cores would take
// minutes.
var families = map[string]string{
	// Qwen3-0.6B has 28 layers and 151,936 tokens.
	"qwen3": `{"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 6,
		"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32768,
		"max_position_embeddings": 40960, "rope_theta": 1000000, "tie_word_embeddings": true}`,
	// SmolLM2-135M.
	"llama": `{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
		"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
		"rope_theta": 100000, "tie_word_embeddings": true}`,
	// Gemma 3 270M has 18 layers and 262,144 tokens.
	"gemma3_text": `{"model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048,
		"num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
		"vocab_size": 32768, "max_position_embeddings": 32768, "sliding_window": 512, "tie_word_embeddings": true}`,
}

// bench is what is measured.
type bench struct {
	threads, rounds, batch, tokens int
	dir, python, preload           string
	out                            io.Writer
}

func main() {
	log.SetFlags(0)
	names := slices.Sorted(maps.Keys(families))
	b := bench{out: os.Stdout, python: os.Getenv("PYTHON"), preload: os.Getenv("MKL_PRELOAD")}
	pflag.IntVar(&b.threads, "threads", 2, "threads of each side")
	pflag.IntVar(&b.rounds, "rounds", 5, "timed steps of each side")
	pflag.IntVar(&b.batch, "batch", 1, "sequences of a step")
	pflag.IntVar(&b.tokens, "tokens", 512, "tokens of a sequence")
	pflag.StringVar(&b.dir, "dir", "families", "the folder that holds peer.py")
	pflag.Usage = func() {
		fmt.Fprintf(os.Stderr, "Usage: families [FLAGS] [%s]…\n%s", strings.Join(names, "|"),
			pflag.CommandLine.FlagUsages())
	}
	pflag.Parse()
	asked := pflag.Args()
	if len(asked) == 0 {
		asked = names
	}
	err := kernels.Init()
	for _, name := range asked {
		config, ok := families[name]
		if !ok {
			err = errors.Join(err, fmt.Errorf("no family %q: want one of %s", name, strings.Join(names, ", ")))
		}
		if err == nil {
			err = b.compare(name, config)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}

// compare measures a family's step on both sides alternately.
func (b *bench) compare(name, config string) error {
	dev := tensor.NewCPU(b.threads)
	defer dev.Close()
	ours, params, err := b.ours(dev, config)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p, err := b.start(config)
	if err != nil {
		return err
	}
	defer p.Stop()
	fmt.Fprintf(b.out, "%s: %.0f million parameters, %d × %d tokens, %d threads, kernels %s\n", name,
		float64(params)/1e6, b.batch, b.tokens, b.threads, kernels.Active())
	var mine, theirs []float64
	for round := range b.rounds + 2 { // two warm up
		start := time.Now()
		ours()
		took, other := time.Since(start).Seconds(), 0.0
		if p != nil {
			if other, err = p.Ask(); err != nil {
				return err
			}
		}
		if round >= 2 {
			mine, theirs = append(mine, took), append(theirs, other)
		}
	}
	fmt.Fprintf(b.out, "%-12s %8.3f s", name, stats.Median(mine))
	if p != nil {
		fmt.Fprintf(b.out, ", the peer %8.3f s\nRATIO %s %d %.2f", stats.Median(theirs), name, b.threads,
			stats.Median(stats.Ratios(theirs, mine)))
	}
	fmt.Fprintln(b.out)
	return nil
}

// ours makes a model, and gives a function that takes a step.
func (b *bench) ours(dev *tensor.Device, config string) (step func(), params int, err error) {
	cfg, err := transformer.ParseConfig([]byte(config))
	if err != nil {
		return nil, 0, err
	}
	m, err := transformer.New(nn.NewInit(dev, 1), cfg)
	if err != nil {
		return nil, 0, err
	}
	c, tree := tensor.NewCtx(dev), nn.Walk(m)
	opt := optim.DefaultAdamW().New(c, []*optim.Group{{Params: tree.Parameters(), LR: 1e-4, WeightDecay: 0.01}})
	ids := make([]int32, b.batch*b.tokens)
	for i := range ids {
		ids[i] = int32(i * 7919 % cfg.VocabSize)
	}
	t := tensor.FromSlice(c, ids, b.batch, b.tokens)
	batch := &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t},
		Count: float64(b.batch * (b.tokens - 1)), Size: b.batch}
	return func() {
		opt.ZeroGrad()
		nn.NewCtx(c, tree, true).WithLossOnly().Scope(func(c *nn.Ctx) []*tensor.Tensor {
			seed := tensor.Full(c.Ctx, tensor.Float32, 1/batch.Count)
			tensor.Backward(c.Ctx, []*tensor.Tensor{m.Forward(c, batch).Loss}, []*tensor.Tensor{seed}, nil)
			return nil
		})
		norm := optim.GradNorm(c, opt.Params())
		if math.IsNaN(norm) {
			panic("the gradient is not a number")
		}
		opt.ScaleGrads(optim.ClipFactor(norm, 1))
		opt.Step(c)
		c.Sync()
	}, nn.NumParameters(m), nil
}

// start starts the peer; nil: there is none.
func (b *bench) start(config string) (*peer.Peer, error) {
	if b.python == "" {
		return nil, nil
	}
	cmd := exec.Command(b.python, b.dir+"/peer.py", config, strconv.Itoa(b.batch), strconv.Itoa(b.tokens),
		strconv.Itoa(b.threads))
	cmd.Env = append(os.Environ(), fmt.Sprintf("OMP_NUM_THREADS=%d", b.threads), "OMP_WAIT_POLICY=PASSIVE",
		"GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776")
	if b.preload != "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+b.preload)
	}
	return peer.Start(cmd, b.out)
}
