// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Samples that fill up batches are there once, in the order of their indices, on any number
// of ranks, also where a rank has none.
func TestGatherForMetrics(t *testing.T) {
	rowsOf := func(c *tensor.Ctx, indices []int64) *tensor.Tensor {
		var v []float32
		for _, i := range indices {
			v = append(v, float32(i), -float32(i)/3)
		}
		return tensor.FromSlice(c.NoGrad(), v, len(indices), 1, 2)
	}
	for ranks, indices := range map[int][][]int64{
		1: {{3, 1, 2, 0, 4, 3}},
		3: {{0, 1, 2}, {3, 4, 0}, nil}, // the last batch was filled up from the front
		4: {nil, {4, 2}, {0, 4, 4}, {3, 1}},
	} {
		errs := job(t, accelerators(t, ranks, func(_ int, a *args.TrainingArguments) { a.GlobalTrainBatchSize = 0 }),
			func(acc *accelerate.Accelerator) error {
				mine := indices[acc.Rank()]
				var rows *tensor.Tensor
				if len(mine) > 0 {
					rows = rowsOf(acc.Ctx(), mine)
				}
				all, order, err := acc.GatherForMetrics(t.Context(), mine, rows)
				if err != nil {
					return err
				}
				require.Equal(t, []int64{0, 1, 2, 3, 4}, order)
				require.Equal(t, []int{5, 1, 2}, all.Shape())
				require.Equal(t, tensor.ReadBytes(acc.Ctx(), rowsOf(acc.Ctx(), order)),
					tensor.ReadBytes(acc.Ctx(), all))
				all, order, err = acc.GatherForMetrics(t.Context(), nil, nil)
				require.Nil(t, all)
				require.Nil(t, order)
				return err
			})
		for _, err := range errs {
			require.NoError(t, err)
		}
	}
}

func TestGatherForMetricsKeepsDTypes(t *testing.T) {
	for _, dt := range dtype.All() {
		errs := job(t, accelerators(t, 2, nil), func(acc *accelerate.Accelerator) error {
			one := tensor.Full(acc.Ctx().NoGrad(), dt, 1, 1)
			all, _, err := acc.GatherForMetrics(t.Context(), []int64{int64(acc.Rank())}, one)
			require.NoError(t, err)
			require.Equal(t, dt, all.DType())
			mem := tensor.ReadBytes(acc.Ctx(), one)
			require.Equal(t, append(mem, mem...), tensor.ReadBytes(acc.Ctx(), all))
			return nil
		})
		require.Equal(t, []error{nil, nil}, errs)
	}
}

func TestGatherForMetricsFaults(t *testing.T) {
	gather := func(indices []int64, shape ...int) func(acc *accelerate.Accelerator) error {
		return func(acc *accelerate.Accelerator) error {
			_, _, err := acc.GatherForMetrics(t.Context(), indices,
				tensor.Ones(acc.Ctx().NoGrad(), tensor.Float32, shape...))
			return err
		}
	}
	for want, one := range map[string]func(acc *accelerate.Accelerator) error{
		"accelerate: gathering rows of float32[2] and, from rank 1, of float32[3]: " +
			"want the same shape and dtype": gather([]int64{7}, 1, 3),
		"accelerate: gathering 2 indices with a tensor of shape [1 2]: " +
			"want one row (dim 0) for each index": gather([]int64{7, 8}, 1, 2),
		"accelerate: gathering 1 indices with a tensor of shape []: " +
			"want one row (dim 0) for each index": gather([]int64{7}),
	} {
		errs := job(t, accelerators(t, 2, nil), func(acc *accelerate.Accelerator) error {
			if acc.Rank() == 1 {
				return one(acc)
			}
			return gather([]int64{1}, 1, 2)(acc)
		})
		for _, err := range errs {
			require.ErrorContains(t, err, want)
		}
	}
}

func TestGatherObjects(t *testing.T) {
	errs := job(t, accelerators(t, 2, nil), func(acc *accelerate.Accelerator) error {
		all, err := accelerate.GatherObjects(t.Context(), acc, map[string]int{"rank": acc.Rank()})
		require.Equal(t, []map[string]int{{"rank": 0}, {"rank": 1}}, all)
		if err != nil {
			return err
		}
		replicas, err := accelerate.GatherObjects(t.Context(), acc.ReplicaRanks(), acc.Rank())
		require.Equal(t, []int{0, 1}, replicas)
		shards, alone := accelerate.GatherObjects(t.Context(), acc.ShardRanks(), acc.Rank())
		require.Equal(t, []int{acc.Rank()}, shards)
		return errors.Join(err, alone)
	})
	require.Equal(t, []error{nil, nil}, errs)
	acc, err := accelerate.New(args.Default(""))
	require.NoError(t, err)
	all, err := accelerate.GatherObjects(t.Context(), acc, "alone")
	require.NoError(t, err)
	require.Equal(t, []string{"alone"}, all)
}

// The first ranks get one more where the list does not divide; padding repeats the last.
func TestSplitBetweenProcesses(t *testing.T) {
	split := func(n, ranks int, pad bool) (parts [][]int) {
		list := make([]int, n)
		for i := range list {
			list[i] = i
		}
		accs, err := accelerate.Replicas(args.Default(""), ranks)
		require.NoError(t, err)
		for _, acc := range accs {
			parts = append(parts, accelerate.SplitBetweenProcesses(acc, list, pad))
		}
		return parts
	}
	require.Equal(t, [][]int{{0, 1, 2}, {3, 4}, {5, 6}}, split(7, 3, false))
	require.Equal(t, [][]int{{0, 1, 2}, {3, 4, 6}, {5, 6, 6}}, split(7, 3, true))
	require.Equal(t, [][]int{{0, 1}, {2, 3}, {4, 5}}, split(6, 3, true))
	require.Equal(t, [][]int{{0}, {1}, {}}, split(2, 3, false))
	require.Equal(t, [][]int{{0}, {1}, {1}}, split(2, 3, true))
	require.Equal(t, [][]int{{}, {}}, split(0, 2, true))
	require.Equal(t, [][]int{{0, 1, 2}}, split(3, 1, true))
}

// Rank 0 goes first; where it fails nobody else tries.
func TestMainProcessFirst(t *testing.T) {
	for _, failing := range []int{-1, 0, 2} {
		for _, local := range []bool{false, true} { // the ranks of one host
			firstOf(t, failing, local)
		}
	}
	acc, err := accelerate.New(args.Default(""))
	require.NoError(t, err)
	require.EqualError(t, acc.MainProcessFirst(t.Context(), func() error { return fmt.Errorf("alone") }), "alone")
}

func firstOf(t *testing.T, failing int, local bool) {
	var mu sync.Mutex
	var order []int
	gone := errors.New("the disk is full")
	errs := job(t, accelerators(t, 4, nil), func(acc *accelerate.Accelerator) error {
		first := acc.MainProcessFirst
		if local {
			first = acc.LocalMainProcessFirst
		}
		return first(t.Context(), func() error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, acc.Rank())
			if acc.Rank() == failing {
				return gone
			}
			return nil
		})
	})
	require.Equal(t, 0, order[0])
	for rank, err := range errs {
		switch {
		case rank == failing:
			require.ErrorIs(t, err, gone)
		case failing == 0:
			require.EqualError(t, err, "accelerate: rank 0, which runs first, failed: the disk is full")
		default:
			require.NoError(t, err)
		}
	}
	require.Len(t, order, map[int]int{-1: 4, 0: 1, 2: 4}[failing])
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	accs, err := accelerate.Replicas(args.Default(""), 3)
	require.NoError(t, err)
	for _, acc := range accs {
		_, err := acc.Print(&out, "rank", acc.Rank(), "of", acc.WorldSize())
		require.NoError(t, err)
	}
	require.Equal(t, "rank 0 of 3\n", out.String())
}

// Tensors of all ranks are joined in rank order, whatever their dim 0, and combined element by element.
func TestGatherAndReduceTensors(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		for _, err := range job(t, accelerators(t, n, func(_ int, a *args.TrainingArguments) {
			a.GlobalTrainBatchSize = 0
		}), func(acc *accelerate.Accelerator) error {
			c, rank := acc.Ctx().NoGrad(), acc.Rank()
			var mine, want []float32
			for i := range 2 * rank { // rank 0 has no row
				mine = append(mine, float32(10*rank+i))
			}
			for r := range n {
				for i := range 2 * r {
					want = append(want, float32(10*r+i))
				}
			}
			all, err := acc.GatherTensor(t.Context(), tensor.FromSlice(c, mine, rank, 2))
			if err != nil {
				return err
			}
			if n == 1 {
				require.Nil(t, all)
			} else {
				require.Equal(t, []int{len(want) / 2, 2}, all.Shape())
				require.Equal(t, want, tensor.ToSlice[float32](c, all))
			}
			ranks, err := acc.GatherTensor(t.Context(), tensor.Reshape(c, tensor.FromSlice(c, []int64{int64(rank)}, 1)))
			if err != nil {
				return err
			}
			require.Equal(t, []int64{0, 1, 2}[:n], tensor.ToSlice[int64](c, ranks))

			x := tensor.FromSlice(c, []float64{1, float64(rank)}, 1, 2)
			sum, err := acc.ReduceTensor(t.Context(), x, comm.Sum)
			if err != nil {
				return err
			}
			require.Equal(t, []int{1, 2}, sum.Shape())
			require.Equal(t, []float64{float64(n), float64(n * (n - 1) / 2)}, tensor.ToSlice[float64](c, sum))
			most, err := acc.ReduceTensor(t.Context(), x, comm.Max)
			if err != nil {
				return err
			}
			require.Equal(t, []float64{1, float64(n - 1)}, tensor.ToSlice[float64](c, most))
			require.Equal(t, []float64{1, float64(rank)}, tensor.ToSlice[float64](c, x), "the own one stays")
			return nil
		}) {
			require.NoError(t, err)
		}
	}
}

// The elements of gradients are limited, on any number of ranks alike.
func TestClipGradValue(t *testing.T) {
	var want map[string]string
	for _, ranks := range []int{1, 2} {
		err := accelerate.Run(t.Context(), rankArgs(ranks), func(acc *accelerate.Accelerator) error {
			m := netOf(nn.NewInit(acc.Device(), 1))
			if err := acc.Prepare(t.Context(), m, adamW); err != nil {
				return err
			}
			own, c := 8/acc.WorldSize(), acc.Ctx().NoGrad()
			var batches []*data.Batch
			for i := range own {
				batches = append(batches, batch(acc.Ctx(), own*acc.Rank()+i, true))
			}
			if _, err := acc.Accumulate(t.Context(), batches, m.loss); err != nil {
				return err
			}
			limited, limit, all := map[string][]float32{}, float32(0.01), 0
			for _, p := range acc.Params() {
				before := tensor.ToSlice[float32](c, p.Grad())
				for i, g := range before {
					if before[i] = min(max(g, -limit), limit); before[i] != g {
						all++
					}
				}
				limited[p.Name] = before
			}
			require.NotZero(t, all)
			if err := acc.ClipGradValue(t.Context(), float64(limit)); err != nil {
				return err
			}
			for _, p := range acc.Params() {
				require.Equal(t, limited[p.Name], tensor.ToSlice[float32](c, p.Grad()))
			}
			require.NoError(t, acc.Step(t.Context()))
			if acc.IsMain() && want == nil {
				want = weights(acc, m)
			}
			if acc.IsMain() {
				require.Equal(t, want, weights(acc, m), "%d ranks", ranks)
			}
			return nil
		}, accelerate.WithLogger(quiet))
		require.NoError(t, err)
	}
}

// Under fp16 the limit is that of the gradients without their scale. What overflowed stays, and the step is left out.
func TestClipGradValueOfFP16(t *testing.T) {
	a := rankArgs(1)
	a.FP16 = true
	acc, err := accelerate.New(a, accelerate.WithLogger(quiet))
	require.NoError(t, err)
	m := netOf(nn.NewInit(acc.Device(), 1))
	require.NoError(t, acc.Prepare(t.Context(), m, adamW))
	c, first := acc.Ctx().NoGrad(), acc.Params()[0]
	step := func() []float32 {
		_, err := acc.Accumulate(t.Context(), []*data.Batch{batch(acc.Ctx(), 0, true)}, m.loss)
		require.NoError(t, err)
		return tensor.ToSlice[float32](c, first.Grad())
	}
	acc.Scaler().Scale = 8
	const scale = float32(8)
	want := step()
	for i, g := range want {
		want[i] = min(max(g, -0.01*scale), 0.01*scale)
	}
	require.NoError(t, acc.ClipGradValue(t.Context(), 0.01))
	require.InDeltaSlice(t, want, tensor.ToSlice[float32](c, first.Grad()), 1e-3)

	before := weights(acc, m)
	over := step()
	over[0] = float32(math.Inf(1))
	tensor.CopyInto(c, first.Grad(), tensor.FromSlice(c, over, first.Shape()...))
	require.NoError(t, acc.ClipGradValue(t.Context(), 0.01))
	require.Equal(t, over, tensor.ToSlice[float32](c, first.Grad()))
	require.NoError(t, acc.Step(t.Context()))
	require.Equal(t, before, weights(acc, m))
	require.Equal(t, scale/2, float32(acc.Scaler().Scale))
}

// Gradients are limited before their norm is measured, and by something.
func TestClipGradValueRefused(t *testing.T) {
	acc, err := accelerate.New(rankArgs(1), accelerate.WithLogger(quiet))
	require.NoError(t, err)
	require.EqualError(t, acc.ClipGradValue(t.Context(), 1),
		"accelerate: ClipGradValue before Prepare: want a prepared model")
	m := netOf(nn.NewInit(acc.Device(), 1))
	require.NoError(t, acc.Prepare(t.Context(), m, adamW))
	_, err = acc.Accumulate(t.Context(), []*data.Batch{batch(acc.Ctx(), 0, true)}, m.loss)
	require.NoError(t, err)
	require.EqualError(t, acc.ClipGradValue(t.Context(), 0), "accelerate: ClipGradValue by 0: want a limit above 0")
	clip(t, acc, 1)
	require.ErrorContains(t, acc.ClipGradValue(t.Context(), 1), "ClipGradValue after ClipGradNorm")
}
