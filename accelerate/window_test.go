// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A training loop without the Trainer has the same bits on 1, 2, 4 and 8 ranks: with dropout, clipping,
// ragged batches, tails, and a layer that only some micro-batches use; on a device that is
// not host memory too.
func TestAccumulateHasTheSameBitsOnAnyNumberOfRanks(t *testing.T) {
	tail := func(place int) bool { return place < 21 } // the third window ends early: some ranks have nothing
	some := func(place int) bool { return place%5 == 3 }
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		t.Run(dt.String(), func(t *testing.T) { sameBits(t, dt, tail, some) })
	}
}

// sameBits trains a net with parameters of a dtype on several numbers of ranks.
func sameBits(t *testing.T, dt tensor.DType, here, extra func(place int) bool) {
	run := func(ranks int, opts ...accelerate.Option) (w map[string]string, l []accelerate.WindowLoss) {
		out := make([]map[string]string, ranks)
		err := accelerate.Run(t.Context(), rankArgs(ranks), func(acc *accelerate.Accelerator) error {
			w, losses, err := trainNet(t, acc, dt, 3, here, extra)
			out[acc.Rank()] = w
			if acc.IsMain() {
				l = losses
			}
			return err
		}, append(opts, accelerate.WithLogger(quiet))...)
		require.NoError(t, err)
		for _, other := range out {
			require.Equal(t, out[0], other)
		}
		return out[0], l
	}
	want, losses := run(1)
	require.Len(t, losses, 3)
	for _, ranks := range []int{2, 4, 8} {
		w, l := run(ranks)
		require.Equal(t, losses, l, "%d ranks", ranks)
		require.Equal(t, want, w, "%d ranks", ranks)
	}
	dev := joint.Device[*tensor.Device](deferred.New(1))
	defer dev.Close()
	w, _ := run(2, accelerate.WithDevice(dev))
	require.Equal(t, want, w)
}

// ddp_reduction_order fast gives other bits than the tree, the same on all ranks, and says so.
func TestReductionOrder(t *testing.T) {
	run := func(order args.ReductionOrder) (map[string]string, string) {
		a := rankArgs(8)
		a.DDPReductionOrder = order
		var log bytes.Buffer
		out := make([]map[string]string, 8)
		err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) (err error) {
			out[acc.Rank()], _, err = train(t, acc, 3, everywhere, everywhere)
			return err
		}, accelerate.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		for _, other := range out {
			require.Equal(t, out[0], other)
		}
		return out[0], log.String()
	}
	tree, quietly := run(args.OrderTree)
	fast, said := run(args.OrderFast)
	require.NotEqual(t, tree, fast)
	require.NotContains(t, quietly, "added in any order")
	require.Contains(t, said, "gradients are added in any order: results depend on the number of ranks")
}

// NoSync exchanges nothing, also not in a pass that says it is the last, and changes no sum.
func TestNoSync(t *testing.T) {
	gradients := func(noSync int) map[string]string {
		var out map[string]string
		ranks := accelerators(t, 2, nil)
		errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
			m := newNet(acc.Device(), 1)
			if err := acc.Prepare(t.Context(), m, adamW); err != nil {
				return err
			}
			for i := range 4 {
				microBatch := 4*acc.Rank() + i
				pass := func() error {
					acc.TrainCtx(0).Scope(func(c *nn.Ctx) []*tensor.Tensor {
						acc.Backward(c, m.loss(c, batch(c.Ctx, microBatch, true)), 8, microBatch, i == 3 || i < noSync)
						return nil
					})
					return nil
				}
				if i < noSync {
					if err := acc.NoSync(func() error { return acc.NoSync(pass) }); err != nil {
						return err
					}
				} else if err := pass(); err != nil {
					return err
				}
			}
			if err := acc.Reduce(t.Context()); err != nil {
				return err
			}
			if acc.IsMain() {
				out = grads(acc)
			}
			return nil
		})
		require.Equal(t, []error{nil, nil}, errs)
		return out
	}
	want := gradients(0)
	require.Equal(t, want, gradients(3))
	require.Equal(t, want, gradients(4), "all of them: Reduce exchanges")
}

func TestReduceInsideNoSync(t *testing.T) {
	acc, _ := prepared(t, args.Default(""))
	err := acc.NoSync(func() error { return acc.Reduce(t.Context()) })
	require.EqualError(t, err, "accelerate: Reduce inside NoSync: want it after NoSync, where the gradients are "+
		"exchanged")
	require.NoError(t, acc.Reduce(t.Context()))
}

func TestOneLastBackward(t *testing.T) {
	a := args.Default("")
	a.GradientAccumulationSteps = 4
	acc, m := prepared(t, a)
	pass := func(microBatch int, last bool) error {
		return tensor.Try(func() {
			c := acc.TrainCtx(0)
			acc.Backward(c, tensor.Sum(c.Ctx, m.Linear.Weight.Tensor, nil, false), 1, microBatch, last)
		})
	}
	require.NoError(t, pass(0, false))
	require.NoError(t, pass(1, true))
	require.EqualError(t, pass(2, true), "accelerate.Backward: micro-batch 2 comes after the rank's last of the "+
		"window: want last in one backward pass alone, and Reduce behind it")
	require.NoError(t, acc.Reduce(t.Context()))
	acc.ZeroGrad()
	require.NoError(t, pass(0, true))
	acc.ZeroGrad()
	require.NoError(t, pass(0, true))
}

// A window that is broken off before its last pass leaves the gradients' places as they were.
func TestBrokenOffWindow(t *testing.T) {
	run := func(breakOff bool) map[string]string {
		var out map[string]string
		errs := job(t, accelerators(t, 2, nil), func(acc *accelerate.Accelerator) error {
			m := newNet(acc.Device(), 1)
			if err := acc.Prepare(t.Context(), m, adamW); err != nil {
				return err
			}
			for s := range 4 {
				if breakOff {
					for i := range 3 {
						acc.TrainCtx(0).Scope(func(c *nn.Ctx) []*tensor.Tensor {
							acc.Backward(c, m.loss(c, batch(c.Ctx, 100+i, i == 1)), 8, 4*acc.Rank()+i, false)
							return nil
						})
					}
				}
				var batches []*data.Batch
				for i := range 4 {
					batches = append(batches, batch(acc.Ctx(), 8*s+4*acc.Rank()+i, false))
				}
				if _, err := acc.Accumulate(t.Context(), batches, m.loss); err != nil {
					return err
				}
				require.NoError(t, acc.Step(t.Context()))
			}
			if acc.IsMain() {
				out = weights(acc, m)
			}
			return nil
		})
		require.Equal(t, []error{nil, nil}, errs)
		return out
	}
	require.Equal(t, run(false), run(true))
}

// Nothing points into the buckets once a rank is closed: their memory may be gone.
func TestCloseTakesGradientsOutOfTheBuckets(t *testing.T) {
	errs := job(t, accelerators(t, 2, nil), func(acc *accelerate.Accelerator) error {
		if _, _, err := train(t, acc, 2, everywhere, nowhere); err != nil {
			return err
		}
		if err := acc.Close(); err != nil {
			return err
		}
		acc.ZeroGrad()
		for _, p := range acc.Params() {
			require.Nil(t, p.SwapGrad(nil, false), p.Name)
		}
		return nil
	})
	require.Equal(t, []error{nil, nil}, errs)
}

// Ranks with unequal numbers of batches: Join takes all of them to the end of the longest;
// every batch counts once.
func TestJoin(t *testing.T) {
	steps := []int{3, 1, 0, 2} // windows of each rank
	var mu sync.Mutex
	counts := map[int][]float64{}
	final := map[string]int{}
	errs := job(t, accelerators(t, 4, nil), func(acc *accelerate.Accelerator) error {
		m := newNet(acc.Device(), 1)
		if err := acc.Prepare(t.Context(), m, adamW); err != nil {
			return err
		}
		for s := 0; ; s++ {
			have := s < steps[acc.Rank()]
			more, err := acc.Join(t.Context(), have)
			if err != nil || !more {
				mu.Lock()
				defer mu.Unlock()
				final[weights(acc, m)["first.weight"]]++
				return err
			}
			var batches []*data.Batch
			if have {
				batches = append(batches, batch(acc.Ctx(), 4*s+acc.Rank(), false))
			}
			l, err := acc.Accumulate(t.Context(), batches, m.loss)
			if err != nil {
				return err
			}
			mu.Lock()
			counts[acc.Rank()] = append(counts[acc.Rank()], l.Count)
			mu.Unlock()
			require.NoError(t, acc.Step(t.Context()))
		}
	})
	require.Equal(t, make([]error, 4), errs)
	size := func(place int) float64 { return float64(1 + place%3) }
	want := []float64{size(0) + size(1) + size(3), size(4) + size(7), size(8)}
	require.Equal(t, map[int][]float64{0: want, 1: want, 2: want, 3: want}, counts)
	require.Len(t, final, 1, "all ranks end with the same weights")
}

// Without Join a rank that leaves its loop early is an error on those that go on.
func TestRankThatLeavesEarly(t *testing.T) {
	ranks := accelerators(t, 3, func(_ int, a *args.TrainingArguments) { a.GlobalTrainBatchSize = 6 })
	errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
		m := newNet(acc.Device(), 1)
		if err := acc.Prepare(t.Context(), m, adamW); err != nil {
			return err
		}
		for s := range 3 {
			if acc.Rank() == 1 && s == 1 {
				return acc.Close()
			}
			if _, err := acc.Accumulate(t.Context(), []*data.Batch{batch(acc.Ctx(), s, false)}, m.loss); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, errs[1])
	for _, rank := range []int{0, 2} {
		var lost *comm.RankLostError
		require.ErrorAs(t, errs[rank], &lost)
		require.Equal(t, 1, lost.Rank)
		require.Contains(t, lost.Error(), "rank 1 is lost: it closed the group")
	}
}

// A rank's own fault ends all of them, with its name.
func TestAccumulateFaults(t *testing.T) {
	for want, wrong := range map[string]func(b *data.Batch) []*data.Batch{
		"accelerate: 5 micro-batches for one step of rank 1: want at most 4 (gradient_accumulation_steps)": func(
			b *data.Batch) []*data.Batch {
			return []*data.Batch{b, b, b, b, b}
		},
		"accelerate: rank 1, micro-batch 4: tensor.Linear(float32[2 3], float32[8 4])": func(
			b *data.Batch) []*data.Batch {
			c := tensor.NewCtx(tensor.CPU())
			b.Tensors[data.Inputs] = tensor.Ones(c, tensor.Float32, 2, 3)
			return []*data.Batch{b}
		},
	} {
		errs := job(t, accelerators(t, 2, nil), func(acc *accelerate.Accelerator) error {
			m := newNet(acc.Device(), 1)
			if err := acc.Prepare(t.Context(), m, adamW); err != nil {
				return err
			}
			batches := []*data.Batch{batch(acc.Ctx(), acc.Rank(), false)}
			if acc.Rank() == 1 {
				batches = wrong(batches[0])
			}
			_, err := acc.Accumulate(t.Context(), batches, m.loss)
			return err
		})
		var abort *comm.AbortError
		require.ErrorAs(t, errs[0], &abort)
		require.Equal(t, 1, abort.Rank)
		for _, err := range errs {
			require.ErrorContains(t, err, want)
		}
	}
}

// The field's worked example: f = w·x, squared error, w = 1, rate 0.1, samples (1,2) (2,4)
// (3,6) (4,8) on two ranks. The ranks' gradient sums, −10 and −50, averaged over the ranks
// give w = 4.0; the mean over all samples gives 2.5, what one process gets; the given
// gradients −10 and −14, averaged, give 2.2.
func TestWorkedExample(t *testing.T) {
	square := func(c *nn.Ctx, w *tensor.Tensor, x float64) *tensor.Tensor {
		e := tensor.Affine(c.Ctx, w, x, -2*x) // w·x − 2x
		return tensor.Mul(c.Ctx, e, e)
	}
	given := func(c *nn.Ctx, w *tensor.Tensor, g float64) *tensor.Tensor { return tensor.Affine(c.Ctx, w, g, 0) }
	for _, k := range []struct {
		name    string
		loss    func(c *nn.Ctx, w *tensor.Tensor, x float64) *tensor.Tensor
		samples [][]float64 // of each rank
		count   float64     // that all loss sums are divided by
		sums    []float64   // the ranks' gradients, times count
		want    float64
	}{
		{"sums averaged over ranks", square, [][]float64{{1, 2}, {3, 4}}, 2, []float64{-10, -50}, 4.0},
		{"mean over samples", square, [][]float64{{1, 2}, {3, 4}}, 4, []float64{-10, -50}, 2.5},
		{"mean over samples, one process", square, [][]float64{{1, 2, 3, 4}}, 4, []float64{-60}, 2.5},
		{"given gradients", given, [][]float64{{-10}, {-14}}, 2, []float64{-10, -14}, 2.2},
	} {
		t.Run(k.name, func(t *testing.T) {
			errs := job(t, accelerators(t, len(k.samples), nil), func(acc *accelerate.Accelerator) error {
				m := &scalar{W: nn.NewInit(acc.Device(), 1).Full("w", 1)}
				if err := acc.Prepare(t.Context(), m, sgd(0.1)); err != nil {
					return err
				}
				layout, err := acc.Layout()
				if err != nil {
					return err
				}
				local := 0.0
				acc.TrainCtx(0).Scope(func(c *nn.Ctx) []*tensor.Tensor {
					var sum *tensor.Tensor
					for _, x := range k.samples[acc.Rank()] {
						if l := k.loss(c, m.W.Tensor, x); sum == nil {
							sum = l
						} else {
							sum = tensor.Add(c.Ctx, sum, l)
						}
					}
					local = tensor.Item(c.Ctx,
						tensor.Backward(c.Ctx, []*tensor.Tensor{sum}, nil, []*tensor.Tensor{m.W.Tensor},
							tensor.RetainGraph())[0])
					acc.Backward(c, sum, k.count, acc.Rank()*layout.AccumulationSteps, true)
					return nil
				})
				require.Equal(t, k.sums[acc.Rank()], local)
				if err := acc.Reduce(t.Context()); err != nil {
					return err
				}
				require.NoError(t, acc.Step(t.Context()))
				require.InDelta(t, k.want, tensor.Item(acc.Ctx(), m.W.Tensor), 1e-6)
				return nil
			})
			for _, err := range errs {
				require.NoError(t, err)
			}
		})
	}
}

// scalar is a model of one number.
type scalar struct {
	W *nn.Parameter `nn:"w"`
}
