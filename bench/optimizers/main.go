// SPDX-License-Identifier: Apache-2.0

// Optimizers times steps of optimizers over the parameters of GPT-2, by turns with those of float32 AdamW, and prints
// the medians and the fastest steps, their ratios, and the size of the state beside AdamW's: of all of it, and of what
// is stored in 8 bits.
//
//	go run -C bench ./optimizers --optim adamw_bnb_8bit,lion_8bit --threads 2
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

func main() {
	log.SetFlags(0)
	b := bench{cfg: gpt2.DefaultConfig()}
	pflag.IntVar(&b.cfg.NLayer, "n_layer", b.cfg.NLayer, "layers")
	pflag.IntVar(&b.cfg.NEmbd, "n_embd", b.cfg.NEmbd, "width")
	pflag.IntVar(&b.cfg.VocabSize, "vocab_size", b.cfg.VocabSize, "tokens of the vocabulary")
	pflag.StringSliceVar(&b.names, "optim", []string{"adamw_bnb_8bit"}, "optimizers")
	pflag.IntVar(&b.rounds, "rounds", 15, "timed steps of each, after one other")
	pflag.IntVar(&b.threads, "threads", runtime.NumCPU(), "threads of the device")
	pflag.Parse()
	b.cfg.NHead = max(1, b.cfg.NEmbd/64)
	if err := b.run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

type bench struct {
	cfg             gpt2.Config
	names           []string
	rounds, threads int
}

func (b bench) run(w io.Writer) error {
	dev := tensor.NewCPU(b.threads)
	defer dev.Close()
	m, err := gpt2.New(nn.NewInit(dev, 1), b.cfg)
	if err != nil {
		return err
	}
	var list []*contender
	for _, name := range append([]string{"adamw_torch"}, b.names...) {
		k, err := newContender(dev, m, name)
		if err != nil {
			return err
		}
		list = append(list, k)
	}
	giveGradients(dev, m)
	for round := range 1 + b.rounds {
		for _, k := range list {
			k.step(round > 0)
		}
	}
	fmt.Fprintf(w, "parameters %d, %d threads\n", nn.NumParameters(m), b.threads)
	for _, k := range list {
		fmt.Fprintln(w, k.report(list[0]))
	}
	return nil
}

// contender is an optimizer that takes steps.
type contender struct {
	name  string
	c     *tensor.Ctx
	opt   *optim.Optimizer
	times []float64
}

func newContender(dev *tensor.Device, m nn.Module, name string) (*contender, error) {
	cfg, err := optim.ByName(name, nil, nil)
	if err != nil {
		return nil, err
	}
	c, decays := tensor.NewCtx(dev).NoGrad(), nn.DecayNames(m)
	groups := []*optim.Group{{LR: 1e-5, WeightDecay: 0.1, Embeddings: nn.Walk(m).Embeddings()}, {LR: 1e-5}}
	for _, p := range nn.NamedParameters(m) {
		g := groups[1]
		if decays[p.Name] {
			g = groups[0]
		}
		g.Params = append(g.Params, p)
	}
	return &contender{name: name, c: c, opt: cfg.New(c, groups)}, nil
}

func giveGradients(dev *tensor.Device, m nn.Module) {
	c := tensor.NewCtx(dev).NoGrad()
	for i, p := range nn.NamedParameters(m) {
		p.SwapGrad(tensor.Normal(c, p.GradDType(), uint64(i), 0, 0.01, p.Shape()...), true)
	}
	c.Sync()
}

// step takes a step with a factor of gradients, as clipping has it.
func (k *contender) step(timed bool) {
	k.opt.ScaleGrads(0.9)
	start := time.Now()
	k.opt.Step(k.c)
	k.c.Sync()
	if timed {
		k.times = append(k.times, time.Since(start).Seconds())
	}
}

func (k *contender) report(base *contender) string {
	stored, whole := k.sizes()
	all, plain := 0, 0
	for _, s := range k.opt.State().Tensors {
		all += s.Bytes()
	}
	for _, s := range base.opt.State().Tensors {
		plain += s.Bytes()
	}
	text := fmt.Sprintf("%-16s %7.1f ms a step, %.2f of %s's; the fastest %.1f ms, %.2f; state %.3f", k.name,
		1e3*stats.Median(k.times), stats.Median(stats.Ratios(k.times, base.times)), base.name,
		1e3*slices.Min(k.times), slices.Min(k.times)/slices.Min(base.times), float64(all)/float64(plain))
	if whole > 0 {
		text += fmt.Sprintf(", %.3f of what would be float32", float64(stored)/float64(whole))
	}
	return text
}

// sizes are the bytes of states that are stored in 8 bits with their scales, and what they would be in float32.
func (k *contender) sizes() (stored, whole int) {
	tensors := k.opt.State().Tensors
	for name, codes := range tensors {
		if of, ok := strings.CutSuffix(name, "_8bit"); ok {
			stored += codes.Bytes() + tensors[of+"_absmax"].Bytes()
			whole += 4 * codes.Numel()
		}
	}
	return stored, whole
}
