// SPDX-License-Identifier: Apache-2.0

// Package strategytest is the test suite of strategies: it trains a small model with a strategy on several ranks,
// without package accelerate, and compares every step with one rank. Start with [Run], in a test of the strategy's
// package.
package strategytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// The windows of the training: so many micro-batches each, and in the last one fewer, so that ranks have none. The
// optimizers leave one out.
const (
	windows      = 5
	microBatches = 8
	ofLastWindow = 5
	skipped      = 2
)

// scale is what gradients are multiplied by, as those of a loss function are that counts in its own way.
const scale = 1.0 / 3

// Run trains by a factory's strategies on goroutine ranks, as many as each of ranks says, 2 and 4 if there is none. It
// compares norms, parameters and what is sharded with one rank.
func Run(t *testing.T, f strategy.Factory, ranks ...int) {
	want := train(t, 1, strategy.Factory{New: func(j strategy.Job) (strategy.Strategy, error) {
		return strategy.NewSingle(j), nil
	}})
	if ranks == nil {
		ranks = []int{2, 4}
	}
	for _, n := range ranks {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			got := train(t, n, f)
			for r := range n {
				require.Equal(t, want[0].norms, got[r].norms, "norms of rank %d", r)
				require.Equal(t, want[0].params, got[r].params, "parameters of rank %d", r)
			}
			checkShards(t, got)
		})
	}
}

// result is what a rank has after the training.
type result struct {
	norms   []float64
	params  map[string][]byte // whole
	sharded bool
	trained int             // elements that its optimizer updates
	owned   map[string]part // by Shards.Placement and Trained, before the parameters became whole
	placed  map[string]part // by Shards.Placed
}

// part is what a rank has of a parameter.
type part struct {
	at   tensor.Placement
	data []byte
}

// checkShards compares what the ranks owned with what they have now.
func checkShards(t *testing.T, got []result) {
	trained, whole := 0, 0
	for _, r := range got {
		require.Equal(t, got[0].sharded, r.sharded)
		trained += r.trained
	}
	for _, raw := range got[0].params {
		whole += len(raw) / tensor.Float32.Size()
	}
	if !got[0].sharded {
		require.Equal(t, len(got)*whole, trained, "without Shards every rank updates all parameters")
		return
	}
	require.Equal(t, whole, trained, "elements that the ranks update, together: want each once")
	for what, of := range map[string]func(r result) map[string]part{
		"what the ranks update":  func(r result) map[string]part { return r.owned },
		"what Shards.Placed has": func(r result) map[string]part { return r.placed },
	} {
		whole := map[string][]byte{}
		for _, r := range got {
			for name, p := range of(r) {
				all := tensor.WholePlacement(name, p.at.Shape...)
				if whole[name] == nil {
					whole[name] = make([]byte, all.Numel()*tensor.Float32.Size())
				}
				placement.Copy(whole[name], all, p.data, p.at, tensor.Float32.Size())
			}
		}
		require.Equal(t, got[0].params, whole, what)
	}
}

// train runs the training on n ranks.
func train(t *testing.T, n int, f strategy.Factory) []result {
	opts := comm.Options{Timeout: 30 * time.Second, Log: slog.New(slog.DiscardHandler)}
	results, errs := make([]result, n), make([]error, n)
	err := local.Run(n, opts, func(g *comm.Group) error {
		r := &rank{g: g, out: &results[g.Rank()]}
		if g.Size() == 1 {
			r.g = nil
		}
		errs[g.Rank()] = r.run(t.Context(), f, samplers.WindowLayout{BatchSize: 1, AccumulationSteps: microBatches / n,
			WorldSize: n, Rank: g.Rank(), Interleaved: f.Interleaved})
		return errs[g.Rank()]
	})
	require.NoError(t, errors.Join(append(errs, err)...))
	return results
}

// rank trains: what the accelerator does, without it.
type rank struct {
	g      *comm.Group
	job    strategy.Job
	model  *model
	s      strategy.Strategy
	sends  bool
	opt    *optim.Optimizer
	window int
	out    *result
}

func (r *rank) run(ctx context.Context, f strategy.Factory, l samplers.WindowLayout) (err error) {
	c := tensor.NewCtx(tensor.CPU())
	r.model = newModel(c.Device())
	tree := nn.Walk(r.model)
	r.job = strategy.Job{Ctx: c, Tree: tree, Model: r.model, Held: tree.Parameters(), Params: tree.Parameters(),
		Layout: l,
		Units:  []nn.Module{r.model.First, r.model.Second}, Peers: strategy.Peers{Data: r.g, Loss: r.g, Replicas: r.g},
		Main: l.Rank == 0, Log: slog.New(slog.DiscardHandler),
		Exchange: strategy.Exchange{DeterministicRanks: microBatches}}
	if f.Sharded {
		r.job.Peers.Shards, r.job.Peers.Replicas = r.g, nil
	}
	if r.s, err = f.New(r.job); err != nil {
		return err
	}
	for i, p := range r.job.Params {
		defer p.AfterGrad(func(*tensor.Ctx, *tensor.Tensor) {
			if r.sends {
				r.s.Ready(i)
			}
		})()
	}
	r.opt = optim.DefaultAdamW().New(c, []*optim.Group{{Params: r.s.Trained(), LR: 0.01}})
	if err := r.giveUp(ctx); err != nil {
		return err
	}
	for r.window = range windows {
		if err := r.step(ctx); err != nil {
			return err
		}
	}
	return r.finish(ctx)
}

// giveUp begins a window and forgets it.
func (r *rank) giveUp(ctx context.Context) error {
	if err := r.s.Open(ctx); err != nil {
		return err
	}
	r.s.Reset()
	if err := r.pass(r.job.Layout.MicroBatch(0), false); err != nil {
		return err
	}
	r.s.Reset()
	return r.meet(ctx)
}

// meet waits for all ranks.
func (r *rank) meet(ctx context.Context) error {
	if r.g == nil {
		return nil
	}
	return r.g.Barrier().Wait(ctx)
}

// step is an optimizer step.
func (r *rank) step(ctx context.Context) error {
	if err := r.s.Open(ctx); err != nil {
		return err
	}
	r.s.Reset()
	for i, own := range r.own() {
		if err := r.pass(own, i == len(r.own())-1); err != nil {
			return err
		}
	}
	if err := r.s.Finish(ctx); err != nil {
		return err
	}
	for _, p := range r.summed() {
		if g := p.Grad(); g != nil {
			tensor.ScaleInto(r.job.Ctx.NoGrad(), g, scale)
		}
	}
	norm, err := r.norm(ctx)
	if err != nil {
		return err
	}
	r.out.norms = append(r.out.norms, norm)
	changed := r.window != skipped
	if changed {
		r.opt.ScaleGrads(optim.ClipFactor(norm, 0.5))
		r.opt.Step(r.job.Ctx)
		r.opt.ScaleGrads(1)
	}
	if r.s.Local() { // the accelerator may leave the call out
		return nil
	}
	return r.s.Stepped(ctx, changed)
}

// norm is measured here where the strategy says that it may be.
func (r *rank) norm(ctx context.Context) (float64, error) {
	if r.s.Local() {
		return optim.GradNorm(r.job.Ctx, r.s.Trained()), nil
	}
	return r.s.Norm(ctx)
}

// summed have the window's gradients when they are complete: see strategy.Strategy.
func (r *rank) summed() []tensor.Named {
	s := r.s.Shards()
	if s != nil && slices.ContainsFunc(r.job.Params, func(p tensor.Named) bool { return s.Cut(p.Name) }) {
		return r.s.Trained()
	}
	return r.job.Params
}

// own are this rank's micro-batches of the window. Where ranks compute together, one without repeats its last.
func (r *rank) own() (list []int) {
	l, n := r.job.Layout, microBatches
	if r.window == windows-1 {
		n = ofLastWindow
	}
	p := r.s.Parameters()
	for i := range l.AccumulationSteps {
		switch own := l.MicroBatch(i); {
		case own < n:
			list = append(list, own)
		case p != nil && p.Gathers() && l.MicroBatch(i)-l.Rank < n:
			list = append(list, -1)
		}
	}
	return list
}

// pass runs a micro-batch, −1 for one that counts nowhere.
func (r *rank) pass(microBatch int, last bool) error {
	return tensor.Try(func() {
		nn.NewCtx(r.job.Ctx, r.job.Tree, true).Scope(func(c *nn.Ctx) []*tensor.Tensor {
			loss := r.model.loss(c, uint64(microBatches*r.window+microBatch))
			r.sends = r.s.Begin(microBatch, last)
			var opts []tensor.BackwardOption
			if r.sends {
				opts = append(opts, tensor.Reaching(func(reached func(*tensor.Tensor) bool) {
					for i, p := range r.job.Params {
						if !reached(p.Tensor) {
							r.s.Ready(i)
						}
					}
				}))
			}
			tensor.Backward(c.Ctx, []*tensor.Tensor{loss}, nil, nil, opts...)
			r.s.End()
			r.sends = false
			return nil
		})
	})
}

// finish ends the strategy and notes what there is.
func (r *rank) finish(ctx context.Context) error {
	for _, p := range r.s.Trained() {
		r.out.trained += p.Numel()
	}
	if shards := r.s.Shards(); shards != nil {
		r.out.sharded, r.out.owned, r.out.placed = true, map[string]part{}, map[string]part{}
		for _, p := range shards.Placed() {
			r.out.placed[p.Name] = part{p.Placement, tensor.ReadBytes(r.job.Ctx, p.Tensor)}
		}
		mine := map[string]*tensor.Tensor{}
		for _, p := range r.s.Trained() {
			mine[p.Name] = p.Tensor
		}
		for _, p := range r.job.Params {
			at, ok := shards.Placement(p.Name)
			if own := mine[p.Name]; !ok || own == nil && at.Numel() > 0 || own != nil && own.Numel() != at.Numel() {
				return fmt.Errorf("the placement of %s is %v, %v: want what Trained has of it", p.Name, at, ok)
			}
			if own := mine[p.Name]; own != nil {
				r.out.owned[p.Name] = part{at, tensor.ReadBytes(r.job.Ctx, own)}
			}
		}
	}
	r.s.Reset()
	if err := r.meet(ctx); err != nil {
		return err
	}
	if err := r.s.Close(true); err != nil {
		return err
	}
	r.out.params = map[string][]byte{}
	for _, p := range r.job.Params {
		r.out.params[p.Name] = tensor.ReadBytes(r.job.Ctx, p.Tensor)
	}
	return nil
}

// model is two layers that are large enough to be cut, and one that every other micro-batch uses.
type model struct {
	First  *nn.Linear `nn:"first"`
	Second *nn.Linear `nn:"second"`
	Extra  *nn.Linear `nn:"extra"`
}

func newModel(dev *tensor.Device) *model {
	in := nn.NewInit(dev, 7)
	return &model{First: nn.NewLinear(in.Sub("first"), nn.LinearConfig{In: 8, Out: 1024}),
		Second: nn.NewLinear(in.Sub("second"), nn.LinearConfig{In: 1024, Out: 8}),
		Extra:  nn.NewLinear(in.Sub("extra"), nn.LinearConfig{In: 8, Out: 3})}
}

// loss is the sum of the squared outputs for samples that follow from a number.
func (m *model) loss(c *nn.Ctx, number uint64) *tensor.Tensor {
	r := rand.New(rand.NewPCG(number, 5))
	x := make([]float32, 2*8)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		y := m.Second.Forward(c, tensor.Tanh(c.Ctx, m.First.Forward(c, x)))
		loss := tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)
		if number%2 == 1 {
			z := m.Extra.Forward(c, y)
			loss = tensor.Add(c.Ctx, loss, tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, z, z), nil, false))
		}
		return loss
	}, tensor.FromSlice(c.Ctx.NoGrad(), x, 2, 8))
}
