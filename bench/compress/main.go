// SPDX-License-Identifier: Apache-2.0

// Compress measures each way to send fewer bytes between two ranks on a slow link: the bytes that a rank sends in a
// step, the time of a step, and the loss after the same number of steps. It trains a small GPT-2 on made-up text.
//
// It is one rank of a job that bench/compress/run.sh starts, which puts each rank into its own network namespace and
// limits the link between them (tc, on Linux). The bytes are those that the kernel counted on the link, with the
// headers of TCP and IP. Rank 0 prints a line as JSON.
//
//	bench/compress/run.sh > table.md
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// settings are what is measured.
type settings struct {
	layers, width, vocabulary int
	batch, block              int
	warm, steps               int
	hook, options             string
	local, start              int
}

// result is what rank 0 prints.
type result struct {
	Parameters int     `json:"parameters"`
	Seconds    float64 `json:"seconds"` // of a step
	Bytes      float64 `json:"bytes"`   // that rank 0 sent in a step
	Loss       float64 `json:"loss"`    // mean of the last 20 steps
}

func main() {
	var s settings
	pflag.IntVar(&s.layers, "n_layer", 2, "layers")
	pflag.IntVar(&s.width, "n_embd", 256, "width")
	pflag.IntVar(&s.vocabulary, "vocab_size", 64, "tokens of the vocabulary")
	pflag.IntVar(&s.batch, "batch", 4, "samples per step and rank")
	pflag.IntVar(&s.block, "block", 64, "tokens per sample")
	pflag.IntVar(&s.warm, "warm_up", 16, "steps before the timed ones")
	pflag.IntVar(&s.steps, "steps", 16, "timed steps")
	pflag.StringVar(&s.hook, "ddp_comm_hook", "no", "the hook")
	pflag.StringVar(&s.options, "ddp_comm_state_option", "{}", "its settings")
	pflag.IntVar(&s.local, "local_sgd_steps", 0, "steps between two averages; 0: gradients are exchanged")
	pflag.IntVar(&s.start, "start_local_sgd_iter", 0, "steps before local SGD")
	pflag.Parse()
	if err := s.run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run trains and prints.
func (s settings) run(w io.Writer) error {
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.DDPCommHook, a.DDPBackend = s.batch, args.CommHook(s.hook), args.BackendTCP
	a.LocalSGDSteps, a.StartLocalSGDIter, a.DDPTimeout = s.local, s.start, 60
	if err := json.Unmarshal([]byte(s.options), &a.DDPCommStateOption); err != nil {
		return fmt.Errorf("ddp_comm_state_option: %w", err)
	}
	if err := a.Validate(); err != nil {
		return err
	}
	dev := tensor.NewCPU(1)
	defer dev.Close()
	return accelerate.Run(context.Background(), a, func(acc *accelerate.Accelerator) error {
		r, err := s.train(acc)
		if err != nil || !acc.IsMain() {
			return err
		}
		return json.NewEncoder(w).Encode(r)
	}, accelerate.WithDevice(dev), accelerate.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
}

// train runs all steps.
func (s settings) train(acc *accelerate.Accelerator) (r result, err error) {
	ctx := context.Background()
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = s.layers, s.width, 4, s.vocabulary, s.block
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	m, err := gpt2.New(nn.NewInit(acc.Device(), 1), cfg)
	if err != nil {
		return r, err
	}
	r.Parameters = nn.NumParameters(m)
	newOptimizer := func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		return optim.DefaultAdamW().New(c, []*optim.Group{{LR: 1e-3, Params: params}}), nil
	}
	if err := acc.Prepare(ctx, m, newOptimizer); err != nil {
		return r, err
	}
	text := newLanguage(s.vocabulary)
	var before float64
	var began time.Time
	losses := 0
	for step := range s.warm + s.steps {
		if step == s.warm {
			if err := acc.Barrier(ctx); err != nil {
				return r, err
			}
			before, began = sentBytes(), time.Now()
		}
		b := text.batch(acc, s, step)
		loss, err := acc.Accumulate(ctx, []*data.Batch{b}, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
			return m.Forward(c, b).Loss
		})
		if err != nil {
			return r, err
		}
		if _, err := acc.ClipGradNorm(ctx, 1); err != nil {
			return r, err
		}
		if err := acc.Step(ctx); err != nil {
			return r, err
		}
		if s.warm+s.steps-step <= 20 {
			r.Loss += loss.Mean()
			losses++
		}
		b.Free()
	}
	r.Loss /= float64(losses)
	r.Seconds = time.Since(began).Seconds() / float64(s.steps)
	r.Bytes = (sentBytes() - before) / float64(s.steps)
	return r, acc.Barrier(ctx)
}

// language is a made-up one: after two tokens, four may follow, the first of them in half of all cases.
type language struct {
	size int
	next [][4]int32
}

func newLanguage(size int) language {
	r := rand.New(rand.NewPCG(1, 2))
	l := language{size, make([][4]int32, 8*size)}
	for i := range l.next {
		for j := range l.next[i] {
			l.next[i][j] = r.Int32N(int32(size))
		}
	}
	return l
}

// batch is what a rank sees in a step.
func (l language) batch(acc *accelerate.Accelerator, s settings, step int) *data.Batch {
	r := rand.New(rand.NewPCG(uint64(step), uint64(acc.Rank())))
	ids := make([]int32, s.batch*s.block)
	for i := range ids {
		if i%s.block < 2 {
			ids[i] = r.Int32N(int32(l.size))
			continue
		}
		state := int(ids[i-1])*8 + int(ids[i-2])%8
		ids[i] = l.next[state][max(0, r.IntN(6)-2)]
	}
	t := tensor.FromSlice(acc.Ctx().NoGrad(), ids, s.batch, s.block)
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t},
		Count: float64(s.batch * (s.block - 1)), Size: s.batch}
}

// sentBytes is what all links of this network namespace but the loopback have sent, by /proc; 0 where there is none.
func sentBytes() (sum float64) {
	text, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		name, counts, ok := strings.Cut(line, ":")
		fields := strings.Fields(counts)
		if !ok || strings.TrimSpace(name) == "lo" || len(fields) < 9 {
			continue
		}
		if n, err := strconv.ParseFloat(fields[8], 64); err == nil {
			sum += n
		}
	}
	return sum
}
