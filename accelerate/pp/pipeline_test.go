// SPDX-License-Identifier: Apache-2.0

package pp_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// settings are what a run of steps is like.
type settings struct {
	layers        int
	width         int // 0: 16
	tied          bool
	recompute     bool
	lower         tensor.DType
	dtype         tensor.DType // of the parameters
	deterministic int
	steps         int
	micro         int
	logits        bool       // compute them as a whole
	clip          bool       // alone clips gradients
	on            ranks      // nil: goroutines
	forward       pp.Forward // nil: forward
	pretrained    string     // a folder; "": weights by a seed

	// of a pipeline whose stages are trained by several ranks
	window   int // micro-batches
	job      func(*strategy.Job, nn.Module)
	strategy func(strategy.Job) (strategy.Strategy, error)
	wrap     func(strategy.Job, strategy.Strategy) strategy.Strategy
	table    func(*schedule.Schedule) // changes the lowered schedule
	ended    chan struct{}
}

// ranks runs body on ranks, each with its group.
type ranks func(n int, opts comm.Options, body func(g *comm.Group) error) error

const (
	rows, length = 2, 6
	vocabulary   = 29
)

func (s settings) model(in *nn.Init) *gpt2.Model {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, length, 16, s.layers, 2
	cfg.NEmbd, cfg.TieWordEmbeddings = cmp.Or(s.width, cfg.NEmbd), s.tied
	if s.dtype != tensor.Invalid {
		in = in.As(s.dtype)
	}
	m, err := gpt2.New(in, cfg)
	if err != nil {
		panic(err)
	}
	return m
}

// batches are those of a step: micro-batches of different lengths.
func (s settings) batches(c *tensor.Ctx, step int) (list []*data.Batch) {
	for i := range s.micro {
		n := length - i%3
		ids := make([]int64, rows*n)
		for j := range ids {
			ids[j] = int64((step*31 + i*17 + j*j*7 + j) % vocabulary)
		}
		t := tensor.FromSlice(c.NoGrad(), ids, rows, n)
		tensors := map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t}
		list = append(list, &data.Batch{Tensors: tensors, Size: rows, Count: float64(rows * (n - 1)),
			Position: int64((step*s.micro + i) * rows), MicroBatch: i})
	}
	return list
}

func (s settings) context(m *gpt2.Model) func(*tensor.Ctx, *nn.Tree, *data.Batch, bool) *nn.Ctx {
	return func(c *tensor.Ctx, tree *nn.Tree, b *data.Batch, training bool) *nn.Ctx {
		d := nn.NewCtx(c.WithRandom(5, b.Position).Autocast(s.lower), tree, training)
		if !s.logits {
			d = d.WithLossOnly()
		}
		if s.recompute {
			d = d.WithRecompute(m.RecomputeUnits())
		}
		return d
	}
}

const scale = 0.0125

// bits are those of the losses, gradients and weights of steps, by name.
type bits map[string][]byte

// adamW makes an optimizer.
func adamW(c *tensor.Ctx, params []tensor.Named) *optim.Optimizer {
	group := &optim.Group{LR: 1e-2, WeightDecay: 0.01}
	group.Params = params
	return optim.DefaultAdamW().New(c, []*optim.Group{group})
}

// alone runs the steps in one process.
func (s settings) alone(t *testing.T) bits {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	m := s.model(nn.NewInit(dev, 7))
	c, tree, out := tensor.NewCtx(dev), nn.Walk(m), bits{}
	opt := adamW(c, tree.Parameters())
	sum := accumulation.New(c.NoGrad(), tree.Parameters(), max(s.micro, s.window), s.deterministic)
	for step := range s.steps {
		sum.Reset()
		for i, b := range s.batches(c, step) {
			s.context(m)(c, tree, b, true).Scope(func(c *nn.Ctx) []*tensor.Tensor {
				loss := m.Forward(c, b).Loss
				out[fmt.Sprintf("step %d loss %d", step, i)] = fmt.Append(nil, tensor.Item(c.Ctx, loss))
				sum.Begin(i)
				tensor.Backward(c.Ctx, []*tensor.Tensor{loss},
					[]*tensor.Tensor{tensor.Full(c.NoGrad(), loss.DType(), scale, loss.Shape()...)}, nil)
				return nil
			})
		}
		sum.Finish()
		if s.clip {
			norm := optim.GradNorm(c, tree.Parameters())
			out[fmt.Sprintf("step %d norm", step)] = fmt.Append(nil, norm)
			opt.ScaleGrads(optim.ClipFactor(norm, norm/2))
		}
		for _, p := range tree.Parameters() {
			out[fmt.Sprintf("step %d %s", step, p.Name)] = tensor.ReadBytes(c.NoGrad(), p.Grad())
		}
		opt.Step(c)
		for _, p := range tree.Parameters() {
			p.DropLowered()
			out[fmt.Sprintf("step %d weights %s", step, p.Name)] = tensor.ReadBytes(c.NoGrad(), p.Tensor)
		}
	}
	return out
}

func forward(c *nn.Ctx, m pp.Model, b *data.Batch) (pp.Output, error) {
	out := m.(models.Model).Forward(c, b)
	return pp.Output{Hidden: out.Hidden, Loss: out.Loss, Count: b.Count}, nil
}

// rank is one rank of a pipeline.
type rank struct {
	*pp.Pipeline
	c   *tensor.Ctx
	dev *tensor.Device
}

// deferred makes the model of a rank, whose parameters have no memory yet, or loads it.
func (s settings) deferred(dev *tensor.Device) (*gpt2.Model, error) {
	if s.pretrained == "" {
		return s.model(nn.NewInit(dev, 7).Deferred()), nil
	}
	m, err := models.LoadPretrained(dev, s.pretrained)
	if err != nil {
		return nil, err
	}
	return m.(*gpt2.Model), nil
}

// rank makes one. The schedule's whole step has s.micro micro-batches, or whole.
func (s settings) rank(g *comm.Group, name string, whole int) (*rank, error) {
	sched, err := schedule.Load(name, schedule.Shape{Ranks: g.Size(), MicroBatches: max(whole, s.micro)})
	if err == nil && s.table != nil {
		if sched, err = sched.Lower(); err == nil {
			s.table(sched)
		}
	}
	if err != nil {
		return nil, err
	}
	dev := tensor.NewCPU(1)
	m, err := s.deferred(dev)
	if err != nil {
		return nil, err
	}
	costs, err := pp.Measure(m, forward, m.ExampleBatch(tensor.NewCtx(tensor.CPU()), 1, 0))
	if err != nil {
		return nil, err
	}
	split, err := pp.Partition(costs, sched.Stages())
	if err != nil {
		return nil, err
	}
	stages, err := pp.Stages(m.Parts(), split)
	if err != nil {
		return nil, err
	}
	run := s.forward
	if run == nil {
		run = forward
	}
	r := &rank{c: tensor.NewCtx(dev), dev: dev}
	job := strategy.Job{Ctx: r.c, Tree: nn.Walk(m), Exchange: strategy.Exchange{DeterministicRanks: s.deterministic},
		Layout: samplers.WindowLayout{AccumulationSteps: max(whole, s.micro), WorldSize: 1}}
	if s.job != nil {
		s.job(&job, m)
	}
	r.Pipeline, err = pp.New(pp.Config{Job: job, Strategy: s.strategy, Model: m, Group: g, Schedule: sched,
		Stages: stages, Forward: run, Context: s.context(m), LogsTail: g.Rank() == 0 && job.Log != nil})
	return r, err
}

// pipeline runs the steps on ranks.
func (s settings) pipeline(t *testing.T, ranks int, name string, whole int) bits {
	var mu sync.Mutex
	out := bits{}
	put := func(step int, what string, b []byte) {
		mu.Lock()
		defer mu.Unlock()
		key := fmt.Sprintf("step %d %s", step, what)
		if old, ok := out[key]; ok && string(old) != string(b) { // a tied one, on two ranks
			b = nil
		}
		out[key] = b
	}
	run := s.on
	if run == nil {
		run = local.Run
	}
	require.NoError(t, run(ranks, comm.Options{}, func(g *comm.Group) error {
		r, err := s.rank(g, name, whole)
		if err != nil {
			return err
		}
		opt := adamW(r.c, r.Params())
		for step := range s.steps {
			losses, err := r.Step(context.Background(), s.batches(r.c, step), scale)
			if err != nil {
				return err
			}
			for i, loss := range losses {
				put(step, fmt.Sprintf("loss %d", i), fmt.Append(nil, loss.Sum))
			}
			for _, p := range r.Params() {
				if p.Grad() == nil {
					return fmt.Errorf("%s has no gradient", p.Name)
				}
				put(step, p.Name, tensor.ReadBytes(r.c.NoGrad(), p.Grad()))
			}
			opt.Step(r.c)
			for _, p := range r.Params() {
				put(step, "weights "+p.Name, tensor.ReadBytes(r.c.NoGrad(), p.Tensor))
			}
		}
		return r.Close(true)
	}))
	return out
}

func (s settings) same(t *testing.T, ranks int, name string, whole int) {
	t.Helper()
	want, got := s.alone(t), s.pipeline(t, ranks, name, whole)
	require.Len(t, got, len(want))
	require.Greater(t, len(want), 20)
	for key, b := range want {
		require.Equal(t, b, got[key], "%s on %d ranks, %+v: %s", name, ranks, s, key)
	}
}

// Every schedule on 2 and 4 ranks, with as many micro-batches as ranks and more, has the bits of one process, dropout
// and tied weights included. The other settings take turns.
func TestBitsOfOneProcess(t *testing.T) {
	i := 0
	for _, ranks := range []int{2, 4} {
		for _, name := range schedule.Names() {
			for _, times := range []int{1, 2, 4} {
				s := settings{layers: 2, tied: i%3 != 2, recompute: i%2 == 1, deterministic: 1 + i%4, steps: 1,
					micro: times * ranks, logits: i%5 == 4}
				if ranks == 4 {
					s.layers = 6
				}
				if i/2%2 == 1 {
					s.lower = tensor.BFloat16
				}
				i++
				if name == "dualpipev" && times == 1 {
					continue
				}
				s.same(t, ranks, name, 0)
			}
		}
	}
}

// Weight gradients in descending order have other bits, so the comparison above can fail.
func TestDescendingBackwardPassesDiffer(t *testing.T) {
	s := settings{layers: 2, tied: true, deterministic: 1, steps: 1, micro: 4}
	want := s.alone(t)
	dev := tensor.NewCPU(1)
	defer dev.Close()
	m := s.model(nn.NewInit(dev, 7))
	c, tree := tensor.NewCtx(dev), nn.Walk(m)
	for i := s.micro - 1; i >= 0; i-- {
		b := s.batches(c, 0)[i]
		s.context(m)(c, tree, b, true).Scope(func(c *nn.Ctx) []*tensor.Tensor {
			loss := m.Forward(c, b).Loss
			tensor.Backward(c.Ctx, []*tensor.Tensor{loss},
				[]*tensor.Tensor{tensor.Full(c.NoGrad(), loss.DType(), scale, loss.Shape()...)}, nil)
			return nil
		})
	}
	differ := 0
	for _, p := range tree.Parameters() {
		if string(want["step 0 "+p.Name]) != string(tensor.ReadBytes(c.NoGrad(), p.Grad())) {
			differ++
		}
	}
	require.Greater(t, differ, len(tree.Parameters())/2)
}

// Evaluations have the losses of one process, without dropout.
func TestEvaluate(t *testing.T) {
	s := settings{layers: 2, tied: true, deterministic: 1, micro: 5}
	dev := tensor.NewCPU(1)
	defer dev.Close()
	m := s.model(nn.NewInit(dev, 7))
	c := tensor.NewCtx(dev).NoGrad()
	var want []pp.Loss
	for _, b := range s.batches(c, 0) {
		loss := m.Forward(s.context(m)(c, nn.Walk(m), b, false), b).Loss
		want = append(want, pp.Loss{Sum: tensor.Item(c, loss), Count: b.Count})
	}
	for _, name := range []string{"1f1b", "looped_bfs", "zbv"} {
		require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
			r, err := s.rank(g, name, 8)
			if err != nil {
				return err
			}
			got, err := r.Evaluate(context.Background(), s.batches(r.c, 0))
			if err == nil && got != nil {
				require.Equal(t, want, got, name)
			}
			return errors.Join(err, r.Close(true))
		}))
	}
}

// A step of so few micro-batches that the schedule has no order of its own for them is logged once, on the rank
// that logs it.
func TestAStepThatAScheduleCannotTakeIsLogged(t *testing.T) {
	for name, lines := range map[string]int{"dualpipev": 1, "interleaved_1f1b": 1, "1f1b": 0} {
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, nil))
		s := settings{layers: 2, deterministic: 4, steps: 3, micro: 3,
			job: func(j *strategy.Job, _ nn.Module) { j.Log = log }}
		s.pipeline(t, 2, name, 4)
		require.Equal(t, lines, strings.Count(text.String(), "\n"), text.String())
		require.Equal(t, lines, strings.Count(text.String(), "micro_batches=3 why=\"schedule "+name), text.String())
	}
}

// Steps leave nothing behind but gradients, also those whose window is shorter than the schedule's, and evaluations.
func TestStepsAndMemory(t *testing.T) {
	for i, name := range schedule.Names() {
		s := settings{layers: 2, tied: true, deterministic: 4, steps: 3, micro: 3}
		if i%2 == 1 {
			s.lower = tensor.BFloat16
		}
		s.same(t, 2, name, 4)
		s.micro = 4
		require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
			r, err := s.rank(g, name, 0)
			if err != nil {
				return err
			}
			held := int64(0)
			for _, p := range r.Params() {
				held += int64(2 * p.Bytes())
			}
			batches := s.batches(r.c, 0)
			for _, b := range batches {
				held += int64(b.Tensors[data.InputIDs].Bytes())
			}
			for step := range 3 {
				if _, err := r.Step(context.Background(), batches, scale); err != nil {
					return err
				}
				if n := r.dev.MemStats().InUse; n != held {
					return fmt.Errorf("%s, step %d, rank %d has %d bytes: want %d", name, step, g.Rank(), n, held)
				}
				if _, err := r.Evaluate(context.Background(), batches); err != nil {
					return err
				}
				if n := r.dev.MemStats().InUse; n != held {
					return fmt.Errorf("%s, evaluation on rank %d: %d bytes are held: want %d", name, g.Rank(), n, held)
				}
			}
			return r.Close(true)
		}))
	}
}
