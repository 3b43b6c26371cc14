// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// preparedNet is an accelerator of one rank with a model.
func preparedNet(t *testing.T) (*accelerate.Accelerator, *net) {
	acc, err := accelerate.New(rankArgs(1))
	require.NoError(t, err)
	m := newNet(acc.Device(), 1)
	require.NoError(t, acc.Prepare(t.Context(), m, adamW))
	return acc, m
}

// The methods of a pending step come in their order, in their window; all else changes nothing.
func TestPendingStepInOrder(t *testing.T) {
	clip := func(s *accelerate.PendingStep) error { return s.Clip(t.Context(), 1) }
	step := func(s *accelerate.PendingStep) error { return s.Step(t.Context()) }
	read := func(s *accelerate.PendingStep) error {
		_, err := s.Read(t.Context())
		return err
	}
	type calls []func(*accelerate.PendingStep) error
	for _, c := range []struct {
		calls calls
		want  string
	}{
		{calls{read}, "PendingStep.Read before Clip: want Clip, Step and Read in this order"},
		{calls{clip, clip}, "PendingStep.Clip after Clip"},
		{calls{step, step}, "PendingStep.Step after Step"},
		{calls{step, clip}, "PendingStep.Clip after Step"},
		{calls{clip, read, step, read, read}, ""},
		{calls{step, read}, ""},
	} {
		acc, m := preparedNet(t)
		s, err := startWindow(t, acc, m, 1)
		require.NoError(t, err)
		last := len(c.calls) - 1
		for _, call := range c.calls[:last] {
			require.NoError(t, call(s))
		}
		before := weights(acc, m)
		if err := c.calls[last](s); c.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.want)
		}
		require.Equal(t, before, weights(acc, m))
		s.Free()
	}
	for name, end := range map[string]func(*accelerate.Accelerator, *net, *accelerate.PendingStep){
		"next window": func(acc *accelerate.Accelerator, m *net, _ *accelerate.PendingStep) {
			_, err := startWindow(t, acc, m, 1)
			require.NoError(t, err)
		},
		"ZeroGrad": func(acc *accelerate.Accelerator, _ *net, _ *accelerate.PendingStep) { acc.ZeroGrad() },
		"Free":     func(_ *accelerate.Accelerator, _ *net, s *accelerate.PendingStep) { s.Free() },
		"Prepare": func(acc *accelerate.Accelerator, m *net, _ *accelerate.PendingStep) {
			require.NoError(t, acc.Prepare(t.Context(), m, adamW))
		},
	} {
		acc, m := preparedNet(t)
		s, err := startWindow(t, acc, m, 1)
		require.NoError(t, err)
		require.NoError(t, clip(s))
		end(acc, m, s)
		require.ErrorContains(t, step(s), "PendingStep.Step after its window", name)
		require.ErrorContains(t, read(s), "PendingStep.Read after its window", name)
	}
}

// A window that nothing can be made of is an error.
func TestBadWindows(t *testing.T) {
	acc, m := preparedNet(t)
	for _, n := range []float64{-4, math.NaN(), math.Inf(1)} {
		_, err := startWindow(t, acc, m, n)
		require.ErrorContains(t, err, "rank 0, micro-batch 0: the loss counts")
		b := batch(acc.Ctx(), 0, true)
		b.Count = n
		_, err = acc.Accumulate(t.Context(), []*data.Batch{b}, m.loss)
		require.ErrorContains(t, err, "rank 0, micro-batch 0: the batch counts")
	}
	one := []*data.Batch{batch(acc.Ctx(), 0, true)}
	_, err := acc.Accumulate(t.Context(), one, func(*nn.Ctx, *data.Batch) *tensor.Tensor { return nil })
	require.ErrorContains(t, err, "the loss function returned no loss")
	_, err = acc.RunWindow(t.Context(), one, accelerate.WindowOptions{})
	require.ErrorContains(t, err, "WindowOptions.Loss is nil")
	_, err = acc.Accumulate(t.Context(), []*data.Batch{nil}, m.loss)
	require.ErrorContains(t, err, "micro-batch 0: the batch is nil")
	raw, err := accelerate.New(rankArgs(1))
	require.NoError(t, err)
	_, err = raw.Accumulate(t.Context(), one, m.loss)
	require.ErrorContains(t, err, "a window before Prepare")
}

// Sharding that cannot be is an error, not data parallelism.
func TestShardingThatCannotBe(t *testing.T) {
	full := accelerate.Sharding{Strategy: shard.Full, Gather: true}
	foreign := full
	foreign.Modules = []nn.Module{newNet(tensor.CPU(), 1).First}
	for name, c := range map[string]struct {
		set  func(*args.TrainingArguments)
		opts []accelerate.Option
		want string
	}{
		"zero_stage 3, all replicas": {
			set:  func(a *args.TrainingArguments) { a.ZeroStage, a.DPReplicateSize = 3, 2 },
			want: "mesh dp_replicate=2 has no ranks to spread the model over"},
		"the program's mesh": {opts: []accelerate.Option{accelerate.WithMesh(comm.Mesh{DPReplicate: 2}),
			accelerate.WithSharding(full)}, want: "mesh dp_replicate=2 has no ranks to spread the model over"},
		"unknown": {opts: []accelerate.Option{accelerate.WithSharding(accelerate.Sharding{Strategy: "nope"})},
			want: `no strategy is called "nope"`},
		"another model's module": {opts: []accelerate.Option{accelerate.WithSharding(foreign)},
			want: "a unit of type *nn.Linear is not a module of the model"},
		"nil module": {opts: []accelerate.Option{accelerate.WithSharding(accelerate.Sharding{Strategy: shard.Full,
			Modules: []nn.Module{nil}})}, want: "a unit of type <nil> is not a module of the model"},
	} {
		t.Run(name, func(t *testing.T) {
			a := rankArgs(2)
			if c.set != nil {
				c.set(a)
			}
			err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
				return acc.Prepare(t.Context(), newNet(acc.Device(), 1), adamW)
			}, append(c.opts, accelerate.WithLogger(quiet))...)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// A strategy that cannot be used, and panics when it is closed, does so in the caller, where all ranks ended.
func TestStrategyThatPanics(t *testing.T) {
	none := func(strategy.Job) (strategy.Strategy, error) { return (*ddp.Strategy)(nil), nil }
	require.Panics(t, func() {
		_ = accelerate.Run(t.Context(), rankArgs(2), func(acc *accelerate.Accelerator) error {
			return acc.Prepare(t.Context(), newNet(acc.Device(), 1), adamW)
		}, accelerate.WithLogger(quiet), accelerate.WithStrategy(strategy.Factory{New: none}))
	})
}

// A model that is prepared trains by the arguments of that time.
func TestSetArgumentsWaitsForPrepare(t *testing.T) {
	acc, m := preparedNet(t)
	a := rankArgs(1)
	a.BF16 = true
	acc.SetArguments(a)
	require.Equal(t, tensor.Invalid, acc.TrainCtx(0).Lower())
	require.NoError(t, acc.Prepare(t.Context(), m, adamW))
	require.Equal(t, tensor.BFloat16, acc.TrainCtx(0).Lower())
}

// What belongs to another model is an error at Prepare.
func TestPrepareWithPartsOfAnotherModel(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		err := accelerate.Run(t.Context(), rankArgs(ranks), func(acc *accelerate.Accelerator) error {
			other := newNet(acc.Device(), 1)
			wrong := func(c *tensor.Ctx, _ []tensor.Named) (*optim.Optimizer, error) {
				return adamW(c, nn.Walk(other).Parameters())
			}
			return acc.Prepare(t.Context(), newNet(acc.Device(), 1), wrong)
		}, accelerate.WithLogger(quiet))
		require.ErrorContains(t, err, "which this rank does not train")
	}
	a := rankArgs(1)
	a.GradientCheckpointing = true
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	err = acc.Prepare(t.Context(), newNet(acc.Device(), 1), adamW, newNet(acc.Device(), 1).First)
	require.ErrorContains(t, err, "a unit of type *nn.Linear is not a module of the model")
}
