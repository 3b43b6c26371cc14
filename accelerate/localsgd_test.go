// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// localSteps trains on the ranks of a job and returns the weights after each step, by rank. Rank r of n has part r of
// the 8 micro-batches of a step, and a job of one rank has the part that it is given.
func localSteps(t *testing.T, n, steps int, set func(a *args.TrainingArguments), part,
	parts int) [][]map[string]string {
	t.Helper()
	out := make([][]map[string]string, n)
	ranks := accelerators(t, n, func(_ int, a *args.TrainingArguments) { set(a) })
	errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
		m := newNet(acc.Device(), 1)
		if err := acc.Prepare(t.Context(), m, adamW); err != nil {
			return err
		}
		own, first := 8/parts, part
		if n > 1 {
			first = acc.Rank()
		}
		for s := range steps {
			var batches []*data.Batch
			for i := range own {
				batches = append(batches, batch(acc.Ctx(), 8*s+own*first+i, s%2 == 0))
			}
			if _, err := acc.Accumulate(t.Context(), batches, m.loss); err != nil {
				return err
			}
			clip(t, acc, 0.5)
			require.NoError(t, acc.Step(t.Context()))
			out[acc.Rank()] = append(out[acc.Rank()], weights(acc, m))
		}
		return nil
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	return out
}

// After local_sgd_steps steps every rank has the bits of the mean of what each gets alone; until then it has its own.
func TestLocalSGDAveragesWhatRanksGetAlone(t *testing.T) {
	const every = 3
	for _, n := range []int{2, 4} {
		got := localSteps(t, n, 2*every, func(a *args.TrainingArguments) { a.LocalSGDSteps = every }, 0, n)
		var alone [][]map[string]string
		for r := range n {
			alone = append(alone, localSteps(t, 1, every, func(*args.TrainingArguments) {}, r, n)[0])
		}
		c := tensor.NewCtx(tensor.CPU()).NoGrad()
		for s := range every - 1 {
			for r := range n {
				require.Equal(t, alone[r][s], got[r][s], "rank %d after step %d", r, s+1)
				require.NotEqual(t, got[r][s], got[(r+1)%n][s], "ranks %d and %d after step %d", r, r+1, s+1)
			}
		}
		for name := range got[0][every-1] {
			sums := make([][]float32, n)
			for r := range n {
				text := []byte(alone[r][every-1][name])
				sums[r] = tensor.ToSlice[float32](c, tensor.FromBytes(c, text, tensor.Float32, len(text)/4))
			}
			for ; len(sums) > 1; sums = sums[:len(sums)/2] { // the tree
				for i := range len(sums) / 2 {
					a, b := sums[2*i], sums[2*i+1]
					for j := range a {
						a[j] += b[j]
					}
					sums[i] = a
				}
			}
			for r := range n {
				text := []byte(got[r][every-1][name])
				for j, v := range tensor.ToSlice[float32](c, tensor.FromBytes(c, text, tensor.Float32, len(text)/4)) {
					require.Equal(t, math.Float32bits(sums[0][j]/float32(n)), math.Float32bits(v), "%s[%d]", name, j)
				}
			}
		}
		for r := range n {
			require.Equal(t, got[0][2*every-1], got[r][2*every-1], "rank %d after the second average", r)
			require.NotEqual(t, got[r][every], got[(r+1)%n][every], "they step on their own again")
		}
	}
}

// Post-local SGD begins with exchanged gradients: the bits are those of data parallelism until then.
func TestPostLocalSGD(t *testing.T) {
	const start, every, steps = 2, 2, 6
	exact := localSteps(t, 2, steps, func(*args.TrainingArguments) {}, 0, 2)
	got := localSteps(t, 2, steps, func(a *args.TrainingArguments) {
		a.LocalSGDSteps, a.StartLocalSGDIter = every, start
	}, 0, 2)
	for s := range steps {
		same := s < start || (s+1-start)%every == 0
		require.Equal(t, same, equalWeights(got[0][s], got[1][s]), "ranks after step %d", s+1)
		require.Equal(t, s < start, equalWeights(exact[0][s], got[0][s]), "after step %d", s+1)
	}
}

// A gradient that is not finite on one rank is none on all: all leave the step out.
func TestLocalSGDSkipsOnAllRanks(t *testing.T) {
	ranks := accelerators(t, 2, func(_ int, a *args.TrainingArguments) { a.LocalSGDSteps = 2 })
	errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
		m := newNet(acc.Device(), 1)
		if err := acc.Prepare(t.Context(), m, adamW); err != nil {
			return err
		}
		b := batch(acc.Ctx(), acc.Rank(), true)
		_, err := acc.Accumulate(t.Context(), []*data.Batch{b}, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
			loss := m.loss(c, b)
			if acc.Rank() == 1 {
				loss = tensor.Mul(c.Ctx, loss, tensor.Full(c.Ctx, tensor.Float32, math.Inf(1), loss.Shape()...))
			}
			return loss
		})
		require.True(t, math.IsNaN(clip(t, acc, 1)), "rank %d", acc.Rank())
		return err
	})
	require.Equal(t, []error{nil, nil}, errs)
}

// Unequal numbers of steps and gradients leave all ranks with the same parameters and optimizer state.
func TestAverageState(t *testing.T) {
	var out [2]map[string]string
	ranks := accelerators(t, 2, func(_ int, a *args.TrainingArguments) { a.LocalSGDSteps = 100 })
	errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
		m := newNet(acc.Device(), 1)
		if err := acc.Prepare(t.Context(), m, adamW); err != nil {
			return err
		}
		for s := range 3 {
			var batches []*data.Batch
			if s == 0 || acc.Rank() == 1 { // rank 0 has run out of data
				batches = append(batches, batch(acc.Ctx(), 2*s+acc.Rank(), true))
			}
			if _, err := acc.Accumulate(t.Context(), batches, m.loss); err != nil {
				return err
			}
			clip(t, acc, 0)
			require.NoError(t, acc.Step(t.Context()))
		}
		if err := acc.AverageState(t.Context()); err != nil {
			return err
		}
		all, state := weights(acc, m), acc.Optimizer().State()
		for name, x := range state.Tensors {
			all[name] = string(tensor.ReadBytes(acc.Ctx(), x))
		}
		for _, n := range state.Steps {
			require.EqualValues(t, 3, n)
		}
		out[acc.Rank()] = all
		return nil
	})
	require.Equal(t, []error{nil, nil}, errs)
	require.Greater(t, len(out[0]), len(weights(ranks[0], newNet(ranks[0].Device(), 1))))
	require.True(t, equalWeights(out[0], out[1]))
}

func TestLocalSGDRefuses(t *testing.T) {
	for want, opt := range map[string]accelerate.Option{
		"accelerate: local_sgd_steps 2 with a model that is sharded (full_shard): want 0": accelerate.WithSharding(
			accelerate.Sharding{Strategy: shard.Full}),
		"accelerate: local_sgd_steps 2 with ddp_comm_hook bf16: want no hook": accelerate.WithCommHook(
			ddp.BF16Compress),
	} {
		a := rankArgs(2)
		a.LocalSGDSteps = 2
		err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
			return acc.Prepare(t.Context(), newNet(acc.Device(), 1), nil)
		}, accelerate.WithLogger(quiet), opt)
		require.ErrorContains(t, err, want)
	}
}
