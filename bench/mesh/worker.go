// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"path/filepath"
	"runtime"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/bench/internal/workers"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

// deterministicRanks is the default of the trainer's argument.
const deterministicRanks = 8

// warmUps are the steps before the timed ones: in the second one the optimizer's state and the sums of gradients are
// all there for the first time.
const warmUps = 2

// work is a worker's life: it trains as its settings say, waits for the others once it has warmed up, and reports.
func work(s settings) ([]report, error) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	start := s.pipeline
	if whole(s.Contender) {
		start = s.whole
	}
	t, err := start(dev)
	if err != nil {
		return nil, err
	}
	for range warmUps {
		if _, err := t.step(); err != nil {
			return nil, err
		}
	}
	if err := workers.Await(); err != nil {
		return nil, err
	}
	if err := t.ready(); err != nil {
		return nil, err
	}
	var r report
	used := workers.CPUSeconds()
	for range s.Steps {
		start := time.Now()
		loss, err := t.step()
		if err != nil {
			return nil, err
		}
		r.Seconds, r.Loss = append(r.Seconds, time.Since(start).Seconds()), loss
	}
	r.CPU = (workers.CPUSeconds() - used) / float64(s.Steps)
	stats := dev.MemStats()
	r.Memory, r.Tensors, r.Peak, r.Kept = workers.MemoryShares(), stats.InUse, stats.Peak, stats.Reserved-stats.InUse
	runtime.KeepAlive(t.step) // and all that it holds
	if err := t.finish(&r); err != nil {
		return nil, err
	}
	return []report{r}, t.close()
}

// trainer runs steps.
type trainer struct {
	step  func() (loss float64, err error) // 0 on ranks without the last stage
	ready func() error                     // waits for the other ranks
	// finish adds what a pipeline has recorded since ready to a report.
	finish func(*report) error
	close  func() error
}

// batches are the micro-batches of a step, of made-up tokens.
func (s *settings) batches(c *tensor.Ctx) (list []*data.Batch) {
	n := s.Batch * s.Block
	for i := range s.MicroBatches {
		ids := make([]int32, n)
		for j := range ids {
			ids[j] = int32((i*n + j) * 7919 % s.Vocabulary)
		}
		t := tensor.FromSlice(c.NoGrad(), ids, s.Batch, s.Block)
		list = append(list, &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t},
			Count: float64(s.Batch * (s.Block - 1)), Size: s.Batch, MicroBatch: i})
	}
	return list
}

// scale makes the sums of a step's loss terms their mean.
func (s *settings) scale() float64 { return 1 / float64(s.MicroBatches*s.Batch*(s.Block-1)) }

func adamW(c *tensor.Ctx, params []tensor.Named) *optim.Optimizer {
	return optim.DefaultAdamW().New(c, []*optim.Group{{LR: 1e-4, WeightDecay: 0.01, Params: params}})
}

// whole trains all layers in this process, with the others if they are divided.
func (s *settings) whole(dev *tensor.Device) (trainer, error) {
	m, err := s.model(nn.NewInit(dev, 1))
	if err != nil {
		return trainer{}, err
	}
	c, tree := tensor.NewCtx(dev), nn.Walk(m)
	if method := methodOf(s.Contender); method != nil {
		return s.tokens(c, m, method)
	}
	ready, end := func() error { return nil }, func() error { return nil }
	finish := func(*report) error { return nil }
	if s.Contender != one {
		d, g, err := s.divide(c, m)
		if err != nil {
			return trainer{}, err
		}
		if tree = d.Tree(); g != nil {
			end = g.Close
			ready, finish = s.watch(c, g)
		}
	}
	params := tree.Parameters()
	opt, sum := adamW(c, params), accumulation.New(c.NoGrad(), params, s.MicroBatches, deterministicRanks)
	batches := s.batches(c)
	step := func() (loss float64, err error) {
		sum.Reset()
		for i, b := range batches {
			contextOf(c, tree, b, true).Scope(func(c *nn.Ctx) []*tensor.Tensor {
				out := m.Forward(c, b).Loss
				loss += tensor.Item(c.Ctx, out)
				sum.Begin(i)
				seed := tensor.Full(c.NoGrad(), out.DType(), s.scale(), out.Shape()...)
				tensor.Backward(c.Ctx, []*tensor.Tensor{out}, []*tensor.Tensor{seed}, nil)
				return nil
			})
		}
		sum.Finish()
		opt.Step(c)
		c.Sync()
		return loss * s.scale(), nil
	}
	return trainer{step, ready, finish, end}, nil
}

// watch makes functions that wait for the other ranks, and that say what calls and kernels did since.
func (s *settings) watch(c *tensor.Ctx, g *comm.Group) (ready func() error, finish func(*report) error) {
	var kernels []tensor.KernelSpan
	var began time.Time
	ready = func() error {
		if s.Watch {
			c.Trace(context.Background(), func(k tensor.KernelSpan) { kernels = append(kernels, k) })
		}
		err := g.Barrier().Wait(context.Background())
		began = time.Now()
		return err
	}
	finish = func(r *report) error {
		if !s.Watch {
			return nil
		}
		for _, call := range g.Flight().Entries {
			if call.State != comm.Finished || call.StartedAt.Before(began) {
				continue
			}
			r.Calls += call.EndedAt.Sub(call.StartedAt).Seconds() / float64(s.Steps)
			for _, k := range kernels {
				from, to := k.Start, k.End
				if from.Before(call.StartedAt) {
					from = call.StartedAt
				}
				if to.After(call.EndedAt) {
					to = call.EndedAt
				}
				r.Hidden += max(0, to.Sub(from).Seconds()) / float64(s.Steps)
			}
		}
		return nil
	}
	return ready, finish
}

// tokens trains in this process on some tokens of each sequence.
func (s *settings) tokens(c *tensor.Ctx, m *gpt2.Model, method *cp.Method) (trainer, error) {
	g, err := s.join()
	if err != nil {
		return trainer{}, err
	}
	tree := nn.Walk(m)
	params := tree.Parameters()
	passes, err := cp.New(cp.Config{Group: g, Method: method, Params: params})
	if err != nil {
		return trainer{}, err
	}
	opt, batches := adamW(c, params), s.batches(c)
	step := func() (loss float64, err error) {
		opt.ZeroGrad()
		for _, b := range batches {
			_, err := contextOf(c, tree, b, true).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
				sum, err := passes.ForwardBackward(context.Background(), c, b,
					func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
						return cp.Output{Loss: m.Forward(c, b).Loss, Count: b.Count}, nil
					}, s.scale(), cp.Accumulate)
				loss += sum.Loss
				return nil, err
			})
			if err != nil {
				return 0, err
			}
		}
		opt.Step(c)
		c.Sync()
		return loss * s.scale(), nil
	}
	ready, finish := s.watch(c, g)
	return trainer{step, ready, finish, g.Close}, nil
}

// divide divides the matrices of a model among the ranks, or the sums of one.
func (s *settings) divide(c *tensor.Ctx, m *gpt2.Model) (*tp.Division, *comm.Group, error) {
	plan, err := tp.ParsePlan(m.TPPlan())
	if err != nil {
		return nil, nil, err
	}
	var g *comm.Group
	if s.Contender == divided {
		if g, err = s.join(); err != nil {
			return nil, nil, err
		}
	}
	d, err := tp.Divide(c, m, tp.Config{Group: g, Plan: plan, Parts: s.Parts})
	return d, g, err
}

// join makes this process a rank.
func (s *settings) join() (*comm.Group, error) {
	place, err := rendezvous.FromEnv()
	if err != nil {
		return nil, err
	}
	if s.Link {
		return tcp.Join(context.Background(), place, comm.Options{})
	}
	return shm.Join(context.Background(), place, comm.Options{})
}

// contextOf is the context of a forward pass.
func contextOf(c *tensor.Ctx, tree *nn.Tree, b *data.Batch, training bool) *nn.Ctx {
	return nn.NewCtx(c.WithRandom(1, b.Position), tree, training).WithLossOnly()
}

func forward(c *nn.Ctx, m pp.Model, b *data.Batch) (pp.Output, error) {
	out := m.(models.Model).Forward(c, b)
	return pp.Output{Hidden: out.Hidden, Loss: out.Loss, Count: b.Count}, nil
}

// pipeline trains this rank's stages.
func (s *settings) pipeline(dev *tensor.Device) (trainer, error) {
	ctx := context.Background()
	g, err := s.join()
	if err != nil {
		return trainer{}, err
	}
	of, err := s.schedule(s.Contender)
	if err != nil {
		return trainer{}, err
	}
	m, err := s.model(nn.NewInit(dev, 1).Deferred())
	if err != nil {
		return trainer{}, err
	}
	stages, err := pp.Stages(m.Parts(), s.Split)
	if err != nil {
		return trainer{}, err
	}
	c := tensor.NewCtx(dev)
	listeners := &trace.Listeners{}
	job := strategy.Job{Ctx: c, Trace: listeners, Tree: nn.Walk(m),
		Exchange: strategy.Exchange{DeterministicRanks: deterministicRanks},
		Layout:   samplers.WindowLayout{AccumulationSteps: s.MicroBatches, WorldSize: 1}}
	p, err := pp.New(pp.Config{Job: job, Model: m, Group: g, Schedule: of, Stages: stages, Forward: forward,
		Context: contextOf})
	if err != nil {
		return trainer{}, err
	}
	opt, batches := adamW(c, p.Params()), s.batches(c)
	step := func() (loss float64, err error) {
		losses, err := p.Step(ctx, batches, s.scale())
		if err != nil {
			return 0, err
		}
		for _, l := range losses {
			loss += l.Sum
		}
		opt.Step(c)
		c.Sync()
		return loss * s.scale(), nil
	}
	ready := func() error {
		listeners.Listen(func(trace.Span) {})
		return g.Barrier().Wait(ctx)
	}
	finish := func(r *report) error {
		line, err := p.Timeline(ctx)
		if err != nil || line == nil {
			return err
		}
		if r.Idle, r.Predicted = line.Measured.Idle(), line.Predicted.Idle(); s.Timeline == "" {
			return nil
		}
		return line.Write(filepath.Join(s.Timeline, s.Contender))
	}
	end := func() error {
		if err := p.Close(true); err != nil {
			return err
		}
		return g.Close()
	}
	return trainer{step, ready, finish, end}, nil
}
