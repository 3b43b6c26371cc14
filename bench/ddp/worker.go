// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/bench/internal/workers"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

// warmUps are the steps before the timed ones: buckets are rebuilt after the first.
const warmUps = 3

// work is a worker's life: it trains as its settings say, waits for the others once it has warmed up, and reports what
// each of its ranks did.
func work(s settings) ([]report, error) {
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.DDPBucketCapMB, a.DDPCommHook, a.DDPTimeout, a.BF16 = s.Batch, s.BucketMB,
		args.CommHook(s.Hook), 60, s.BF16
	ranks := 1
	engine, strategy := engineOf(s.Contender)
	switch engine {
	case "shm", "tcp":
		a.DDPBackend = args.Backend(engine)
	case "goroutines":
		a.NumReplicas, ranks = s.Ranks, s.Ranks
	}
	hook, err := ddp.HookByName(s.Hook, nil)
	if err != nil {
		return nil, err
	}
	j := &job{settings: s, hook: &groups{Hook: hook}, reports: make([]report, ranks)}
	if connected(s.Contender) {
		j.first = s.Rank
	}
	strategy, shared := strings.CutSuffix(strategy, "_shared")
	sharding := accelerate.WithSharding(accelerate.Sharding{Strategy: strategies[strategy], Gather: !shared})
	opts := []accelerate.Option{sharding, accelerate.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))),
		accelerate.WithTracer(j.rec.add), accelerate.WithCommHook(j.hook)}
	if ranks == 1 {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		opts = append(opts, accelerate.WithDevice(dev))
	}
	return j.reports, accelerate.Run(context.Background(), a, j.train, opts...)
}

// job is what a worker's ranks share.
type job struct {
	settings
	rec     recorder
	hook    *groups
	reports []report
	first   int // the rank of reports[0]
}

// train runs one rank's steps.
func (j *job) train(acc *accelerate.Accelerator) error {
	ctx := context.Background()
	t, err := newTraining(acc, j.settings)
	if err != nil {
		return err
	}
	for range warmUps {
		if err := t.step(ctx); err != nil {
			return err
		}
	}
	if acc.Rank() == j.first {
		if err := workers.Await(); err != nil {
			return err
		}
	}
	if err := acc.Barrier(ctx); err != nil {
		return err
	}
	r := &j.reports[acc.Rank()-j.first]
	used := workers.CPUSeconds()
	for range j.Steps {
		j.rec.begin(acc.Rank())
		start := time.Now()
		if err := t.step(ctx); err != nil {
			return err
		}
		r.Seconds = append(r.Seconds, time.Since(start).Seconds())
	}
	r.CPU = (workers.CPUSeconds() - used) / float64(j.Steps*len(j.reports))
	if err := acc.Barrier(ctx); err != nil {
		return err
	}
	r.PSS, r.Peak = workers.Memory()
	r.State = t.state
	r.Idle, r.Go = idleMemory(acc.Device()), goMemory()
	if err := acc.Barrier(ctx); err != nil { // pages that a rank gave back would count in full here
		return err
	}
	r.Spans = j.rec.of(acc.Rank())
	if acc.WorldSize() == 1 || strings.Contains(j.Contender, ":") {
		return nil
	}
	f, err := measure(ctx, acc, j.hook.of(acc.Rank()), t.bytes())
	if acc.Rank() == 0 {
		r.Fit = f
	}
	return err
}

// idleMemory is what a device has taken from the system and no tensor uses: free blocks that the next step takes, what
// lies between blocks, and scratch memory of kernels.
func idleMemory(dev *tensor.Device) int64 {
	s := dev.MemStats()
	return s.Reserved - s.InUse
}

// goMemory is what Go's runtime holds: heap, stacks and its own.
func goMemory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}

// training is a model with its optimizer and one made-up batch.
type training struct {
	acc   *accelerate.Accelerator
	m     *gpt2.Model
	batch *data.Batch
	state int64 // bytes of parameters, gradients and the optimizer's state
}

func newTraining(acc *accelerate.Accelerator, s settings) (*training, error) {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = s.Layers, s.Width, s.Heads, s.Vocabulary, s.Block
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	m, err := gpt2.New(nn.NewInit(acc.Device(), 1), cfg)
	if err != nil {
		return nil, err
	}
	newOptimizer := func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		return optim.DefaultAdamW().New(c, []*optim.Group{{LR: 1e-4, WeightDecay: 0.01, Params: params}}), nil
	}
	if err := acc.Prepare(context.Background(), m, newOptimizer, m.RecomputeUnits()...); err != nil {
		return nil, err
	}
	ids := make([]int32, s.Batch*s.Block)
	for i := range ids {
		ids[i] = int32((i + acc.Rank()) * 7919 % s.Vocabulary)
	}
	t := tensor.FromSlice(acc.Ctx().NoGrad(), ids, s.Batch, s.Block)
	return &training{acc: acc, m: m,
		batch: &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t},
			Count: float64(s.Batch * (s.Block - 1)), Size: s.Batch}}, nil
}

// step is one optimizer step, to its end on the device.
func (t *training) step(ctx context.Context) error {
	_, err := t.acc.Accumulate(ctx, []*data.Batch{t.batch}, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
		return t.m.Forward(c, b).Loss
	})
	if err != nil {
		return err
	}
	t.state = t.acc.Device().MemStats().InUse + t.acc.DataRanks().Allocated()
	if _, err := t.acc.ClipGradNorm(ctx, 1); err != nil {
		return err
	}
	if err := t.acc.Step(ctx); err != nil {
		return err
	}
	t.acc.Ctx().Sync()
	return nil
}

// bytes is the size of all gradients.
func (t *training) bytes() (n int) {
	for _, p := range t.acc.Params() {
		n += p.Bytes()
	}
	return n
}

// recorder keeps the spans of each rank's last step.
type recorder struct {
	mu   sync.Mutex
	last []span
}

// begin forgets the rank's step before.
func (r *recorder) begin(rank int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.last[:0]
	for _, s := range r.last {
		if s.Rank != rank {
			kept = append(kept, s)
		}
	}
	r.last = kept
}

func (r *recorder) add(s trace.Span) {
	if call := s.Detail; s.Name == "collective" { // of a sharded model
		switch {
		case strings.Contains(call, " gradients "):
			s.Name = "bucket"
		case strings.Contains(call, " gather "):
			s.Name = "gather"
		}
		_, s.Detail, _ = strings.Cut(call, " ")
	}
	if kindOf(s.Name) == nil {
		return // not drawn
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = append(r.last, span(s))
}

// of returns a rank's spans.
func (r *recorder) of(rank int) (list []span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.last {
		if s.Rank == rank {
			list = append(list, s)
		}
	}
	return list
}
