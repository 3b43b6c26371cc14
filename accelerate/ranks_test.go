// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// patience is how long a job may take on a busy machine: half of the time after which ranks give up an exchange.
const patience = 30 * time.Second

// net is a model with dropout and two layers; the third is used by batches that say so.
type net struct {
	Drop   *nn.Dropout `nn:"drop"`
	First  *nn.Linear  `nn:"first"`
	Second *nn.Linear  `nn:"second"`
	Extra  *nn.Linear  `nn:"extra"`
}

func newNet(dev *tensor.Device, seed uint64) *net {
	return netOf(nn.NewInit(dev, seed))
}

func netOf(in *nn.Init) *net {
	return &net{
		Drop: &nn.Dropout{P: 0.2}, First: nn.NewLinear(in.Sub("first"), nn.LinearConfig{In: 4, Out: 8}),
		Second: nn.NewLinear(in.Sub("second"), nn.LinearConfig{In: 8, Out: 1}),
		Extra:  nn.NewLinear(in.Sub("extra"), nn.LinearConfig{In: 8, Out: 1}),
	}
}

func (m *net) Forward(c *nn.Ctx, x *tensor.Tensor, extra bool) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		h := tensor.Tanh(c.Ctx, m.First.Forward(c, m.Drop.Forward(c, x)))
		if extra {
			return tensor.Add(c.Ctx, m.Second.Forward(c, h), m.Extra.Forward(c, h))
		}
		return m.Second.Forward(c, h)
	}, x)
}

// loss is the sum of the squared outputs.
func (m *net) loss(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
	_, extra := b.Tensors["extra"]
	y := m.Forward(c, tensor.Cast(c.Ctx, b.Tensors[data.Inputs], m.First.Weight.DType()), extra)
	y = tensor.Cast(c.Ctx, y, tensor.Float32)
	return tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)
}

// batch makes the micro-batch at a place of the training stream: 1 to 3 samples of many sizes.
func batch(c *tensor.Ctx, place int, extra bool) *data.Batch {
	r := rand.New(rand.NewPCG(uint64(place), 3))
	n := 1 + place%3
	x := make([]float32, 4*n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * []float64{1e-3, 1, 10}[r.IntN(3)])
	}
	b := &data.Batch{Tensors: map[string]*tensor.Tensor{data.Inputs: tensor.FromSlice(c.NoGrad(), x, n, 4)},
		Count: float64(n), Size: n, Position: int64(3 * place)}
	if extra {
		b.Tensors["extra"] = b.Tensors[data.Inputs]
	}
	return b
}

// adamW is the optimizer of all of a model's parameters that are trained.
func adamW(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
	return optim.DefaultAdamW().New(c, []*optim.Group{{LR: 1e-2, Params: params}}), nil
}

// sgd is an accelerate.OptimizerFunc of plain SGD.
func sgd(lr float64) accelerate.OptimizerFunc {
	return func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		return optim.SGD{}.New(c, []*optim.Group{{LR: lr, Params: params}}), nil
	}
}

// clip is ClipGradNorm without an error.
func clip(t *testing.T, acc *accelerate.Accelerator, maxNorm float64) float64 {
	t.Helper()
	norm, err := acc.ClipGradNorm(t.Context(), maxNorm)
	require.NoError(t, err)
	return norm
}

// weights are the bytes of all parameters.
func weights(acc *accelerate.Accelerator, m nn.Module) map[string]string {
	out := map[string]string{}
	for _, p := range nn.NamedParameters(m) {
		out[p.Name] = string(tensor.ReadBytes(acc.Ctx(), p.Tensor))
	}
	return out
}

// grads are the bytes of all gradients.
func grads(acc *accelerate.Accelerator) map[string]string {
	out := map[string]string{}
	for _, p := range acc.Params() {
		out[p.Name] = string(tensor.ReadBytes(acc.Ctx(), p.Grad()))
	}
	return out
}

// rankArgs are windows of 8 micro-batches on any number of ranks.
func rankArgs(ranks int) *args.TrainingArguments {
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas, a.DDPTimeout = 1, 8, ranks, 60
	return a
}

// accelerators are the ranks of a group, with the arguments that set gives each.
func accelerators(t *testing.T, n int, set func(rank int, a *args.TrainingArguments),
	opts ...accelerate.Option) []*accelerate.Accelerator {
	t.Helper()
	list := make([]*accelerate.Accelerator, n)
	for r, g := range local.New(n, comm.Options{Timeout: time.Minute, Log: quiet}) {
		a := rankArgs(n)
		if set != nil {
			set(r, a)
		}
		var err error
		usual := []accelerate.Option{accelerate.WithGroup(g), accelerate.WithLogger(quiet)}
		list[r], err = accelerate.New(a, append(usual, opts...)...)
		require.NoError(t, err)
	}
	return list
}

// job runs body on all ranks, as a program would, and returns what each rank said; it fails
// if that takes longer than patience. A rank that fails aborts the others.
func job(t *testing.T, ranks []*accelerate.Accelerator, body func(acc *accelerate.Accelerator) error) []error {
	t.Helper()
	errs := make([]error, len(ranks))
	var all sync.WaitGroup
	for i, acc := range ranks {
		all.Go(func() {
			if errs[i] = body(acc); errs[i] != nil {
				acc.Abort(errs[i])
			}
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		require.FailNow(t, "the ranks wait for each other")
	}
	for _, acc := range ranks {
		require.NoError(t, acc.Close())
	}
	return errs
}

// train runs steps windows in which rank r owns its contiguous part of 8 micro-batches, of
// which only those that here lists exist, and returns weights and losses.
func train(t *testing.T, acc *accelerate.Accelerator, steps int, here, extra func(place int) bool) (map[string]string,
	[]accelerate.WindowLoss, error) {
	return trainNet(t, acc, tensor.Float32, steps, here, extra)
}

// trainNet is train of a net whose parameters are of a dtype.
func trainNet(t *testing.T, acc *accelerate.Accelerator, dt tensor.DType, steps int, here,
	extra func(place int) bool) (map[string]string, []accelerate.WindowLoss, error) {
	m := netOf(nn.NewInit(acc.Device(), uint64(1+acc.Rank())).As(dt)) // ranks begin unequal
	if err := acc.Prepare(t.Context(), m, adamW); err != nil {
		return nil, nil, err
	}
	var losses []accelerate.WindowLoss
	own := 8 / acc.DataRanks().WorldSize()
	for s := range steps {
		var batches []*data.Batch
		for i := range own {
			if place := 8*s + own*acc.DataRanks().Rank() + i; here(place) {
				batches = append(batches, batch(acc.Ctx(), place, extra(place)))
			}
		}
		l, err := acc.Accumulate(t.Context(), batches, m.loss)
		if err != nil {
			return nil, nil, err
		}
		losses = append(losses, l)
		clip(t, acc, 0.5)
		require.NoError(t, acc.Step(t.Context()))
	}
	return weights(acc, m), losses, nil
}

func everywhere(int) bool { return true }

func nowhere(int) bool { return false }

// Each bucket is on its way before the backward pass has come to the first layer.
func TestReductionUnderBackward(t *testing.T) {
	groups := local.New(2, comm.Options{Timeout: time.Minute, Log: quiet})
	var ranks []*accelerate.Accelerator
	for _, g := range groups {
		acc, err := accelerate.New(rankArgs(2), accelerate.WithGroup(g), accelerate.WithLogger(quiet))
		require.NoError(t, err)
		ranks = append(ranks, acc)
	}
	errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
		// 1 MiB and more in each layer: a bucket for each.
		in := nn.NewInit(acc.Device(), 1)
		layers := [3]*nn.Linear{nn.NewLinear(in.Sub("0"), nn.LinearConfig{In: 512, Out: 520}),
			nn.NewLinear(in.Sub("1"), nn.LinearConfig{In: 520, Out: 6600}),
			nn.NewLinear(in.Sub("2"), nn.LinearConfig{In: 6600, Out: 1})}
		m := &layered{Layers: layers[:]}
		group := groups[acc.Rank()]
		sent := func() (n int) {
			for _, e := range group.Flight().Entries {
				if e.Op == comm.AllReduce && e.DType == tensor.Float32 {
					n++
				}
			}
			return n
		}
		if err := acc.Prepare(t.Context(), m, adamW); err != nil {
			return err
		}
		before, last := -1, -1
		defer m.Layers[0].Weight.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { before = sent() })()
		for _, p := range acc.Params() {
			defer p.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { last = sent() })()
		}
		x := &data.Batch{Tensors: map[string]*tensor.Tensor{
			data.Inputs: tensor.Ones(acc.Ctx().NoGrad(), tensor.Float32, 2, 512)}, Count: 2, Size: 2}
		for range 2 {
			at := sent()
			if _, err := acc.Accumulate(t.Context(), []*data.Batch{x}, m.loss); err != nil {
				return err
			}
			require.Greater(t, before, at, "when the first layer's gradient came")
			require.Less(t, last, sent(), "hooks see a gradient before other ranks do")
		}
		return nil
	})
	require.Equal(t, []error{nil, nil}, errs)
}

// layered is a chain of linear layers.
type layered struct {
	Layers []*nn.Linear `nn:"layers"`
}

func (m *layered) loss(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
	x := b.Tensors[data.Inputs]
	for _, l := range m.Layers {
		x = l.Forward(c, x)
	}
	return tensor.Sum(c.Ctx, x, nil, false)
}

// A tracer sees each step's passes and buckets.
func TestTracer(t *testing.T) {
	var mu sync.Mutex
	seen := map[int][]trace.Span{}
	tracer := accelerate.WithTracer(func(s trace.Span) {
		mu.Lock()
		defer mu.Unlock()
		seen[s.Rank] = append(seen[s.Rank], s)
	})
	begin := time.Now()
	errs := job(t, accelerators(t, 2, nil, tracer), func(acc *accelerate.Accelerator) error {
		_, _, err := train(t, acc, 2, everywhere, nowhere)
		return err
	})
	require.Equal(t, []error{nil, nil}, errs)
	for rank := range 2 {
		count := map[string]int{}
		for _, s := range seen[rank] {
			require.Equal(t, rank, s.Rank)
			require.False(t, s.Start.Before(begin) || s.End.Before(s.Start), "%+v", s)
			if s.Name == "bucket" {
				require.Positive(t, s.Bytes)
				require.False(t, s.Start.Before(s.Queued))
			}
			count[s.Name]++
		}
		require.Positive(t, count["collective"], "counts, losses and control are agreed on")
		delete(count, "collective")
		require.Equal(t, map[string]int{"forward": 8, "backward": 8, "bucket": 2, "wait": 2, "clip": 2, "optimizer": 2},
			count)
	}
}

// bf16 compression is off by default, says so when it is on, and is near the exact sum.
func TestCommHook(t *testing.T) {
	run := func(hook args.CommHook) (map[string]string, string) {
		var out map[string]string
		var text bytes.Buffer
		a := rankArgs(2)
		a.DDPCommHook = hook
		err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
			m := newNet(acc.Device(), 1)
			if err := acc.Prepare(t.Context(), m, adamW); err != nil {
				return err
			}
			_, err := acc.Accumulate(t.Context(), []*data.Batch{batch(acc.Ctx(), acc.Rank(), true)}, m.loss)
			if acc.IsMain() {
				out = grads(acc)
			}
			return err
		}, accelerate.WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		require.NoError(t, err)
		return out, text.String()
	}
	exact, said := run(args.Default("").DDPCommHook)
	require.Empty(t, said)
	lossy, said := run(args.CommHookBF16)
	require.Contains(t, said,
		`level=WARN msg="gradients are not summed exactly: results depend on the number of ranks" ddp_comm_hook=bf16`)
	require.NotEqual(t, exact, lossy)
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	for _, name := range []string{"first.weight", "second.bias"} {
		n := len(exact[name]) / 4
		x := tensor.ToSlice[float32](c, tensor.FromBytes(c, []byte(exact[name]), tensor.Float32, n))
		y := tensor.ToSlice[float32](c, tensor.FromBytes(c, []byte(lossy[name]), tensor.Float32, n))
		var scale float64
		for _, v := range x {
			scale = max(scale, float64(max(v, -v)))
		}
		require.InDeltaSlice(t, x, y, scale/64, name)
	}
	a := rankArgs(2)
	a.DDPCommHook = "fp8"
	err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		m := newNet(acc.Device(), 1)
		return acc.Prepare(t.Context(), m, adamW)
	}, accelerate.WithLogger(quiet))
	require.EqualError(t, err, "accelerate: ddp_comm_hook: ddp: unknown communication hook \"fp8\": want one of bf16, "+
		"fp16, int8, no, power_sgd, top_k")
}

// Parameters that are not trained must agree too: they are part of what all ranks compute.
func TestFrozenParametersTakeRankZerosValues(t *testing.T) {
	ranks := accelerators(t, 2, nil)
	out := make([]map[string]string, 2)
	errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
		m := newNet(acc.Device(), uint64(acc.Rank()))
		m.First.Weight.SetRequiresGrad(false)
		err := acc.Prepare(t.Context(), m, adamW)
		out[acc.Rank()] = weights(acc, m)
		return err
	})
	require.Equal(t, []error{nil, nil}, errs)
	require.Equal(t, out[0], out[1])
}

// What ranks may differ in at the start is one and the same error on every rank, soon.
func TestRanksThatDiffer(t *testing.T) {
	for _, k := range []struct {
		name string
		args func(a *args.TrainingArguments)
		rank func(acc *accelerate.Accelerator)
		net  func(dev *tensor.Device) *net
		want string
	}{
		{name: "shape", net: func(dev *tensor.Device) *net {
			m := newNet(dev, 1)
			m.Extra = nn.NewLinear(nn.NewInit(dev, 1), nn.LinearConfig{In: 8, Out: 2})
			return m
		}, want: "ddp: the models of ranks 0 and 2 differ: parameter 4 is extra.weight float32[1 8] on rank 0 and " +
			"extra.weight float32[2 8] on rank 2"},
		{name: "frozen", net: func(dev *tensor.Device) *net {
			m := newNet(dev, 1)
			m.Extra.Bias.SetRequiresGrad(false)
			return m
		}, want: "ddp: the models of ranks 0 and 2 differ: parameter 5 is extra.bias float32[1] on rank 0 and " +
			"extra.bias float32[1] (frozen) on rank 2"},
		{name: "learning rate", args: func(a *args.TrainingArguments) { a.LearningRate = 1e-3 },
			want: "accelerate: learning_rate is 5e-05 on rank 0 and 0.001 on rank 2: want the same value on all ranks"},
		{name: "buckets", args: func(a *args.TrainingArguments) { a.DDPBucketCapMB = 3 },
			want: "accelerate: ddp_bucket_cap_mb is 0 on rank 0 and 3 on rank 2: want the same value on all ranks"},
		{name: "mesh", args: func(a *args.TrainingArguments) { a.DPShardSize = 3 },
			want: "accelerate: dp_shard_size is 0 on rank 0 and 3 on rank 2: want the same value on all ranks"},
		{name: "recomputation", args: func(a *args.TrainingArguments) { a.GradientCheckpointing = true },
			want: "accelerate: gradient_checkpointing is false on rank 0 and true on rank 2: want the same value"},
		{name: "dropout", net: func(dev *tensor.Device) *net {
			m := newNet(dev, 1)
			m.Drop.P = 0.3
			return m
		}, want: "accelerate: rank 2's model has drop.p 0.3: want 0.2, as rank 0's has"},
		{name: "adapter", net: func(dev *tensor.Device) *net {
			m := newNet(dev, 1)
			m.First.Scale = map[string]float64{"default": 2}
			return m
		}, want: "accelerate: rank 2's model has first.scale of adapter default 2: want none, as rank 0's"},
		{name: "compression", args: func(a *args.TrainingArguments) { a.DDPCommHook = args.CommHookBF16 },
			want: "accelerate: the communication hook is no on rank 0 and bf16 on rank 2: want the same on all ranks"},
		{name: "kernels", rank: func(acc *accelerate.Accelerator) { accelerate.SetKernels(acc, "abacus") },
			want: "kernels, rank 2 with abacus: set LOCKSTEP_KERNELS to the same variant on all ranks"},
	} {
		t.Run(k.name, func(t *testing.T) {
			ranks := accelerators(t, 3, func(rank int, a *args.TrainingArguments) {
				a.GlobalTrainBatchSize = 6
				if rank == 2 && k.args != nil {
					k.args(a)
				}
			})
			if k.rank != nil {
				k.rank(ranks[2])
			}
			errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
				m := newNet(acc.Device(), 1)
				if acc.Rank() == 2 && k.net != nil {
					m = k.net(acc.Device())
				}
				return acc.Prepare(t.Context(), m, adamW, m.First)
			})
			for _, err := range errs {
				require.ErrorContains(t, err, k.want)
				require.Equal(t, errs[0].Error(), err.Error())
			}
		})
	}
}

// Ranks whose models have the same parameters and other configurations do not begin, whatever divides them.
func TestConfigurationsOfModelsDiffer(t *testing.T) {
	for axis, set := range map[string]func(a *args.TrainingArguments){
		"dp": func(*args.TrainingArguments) {}, "fsdp": func(a *args.TrainingArguments) { a.ZeroStage = 3 },
		"tp": func(a *args.TrainingArguments) { a.TPSize = 2 }, "cp": func(a *args.TrainingArguments) { a.CPSize = 2 },
		"pp": func(a *args.TrainingArguments) { a.PPSize = 2 },
	} {
		for want, change := range map[string]func(c *gpt2.Config){
			"rank 1's model has resid_pdrop 0.3: want 0.1, as rank 0's has": func(c *gpt2.Config) {
				c.ResidPdrop = 0.3
			},
			"rank 1's model has layer_norm_epsilon 0.5: want 0.00001, as rank 0's has": func(c *gpt2.Config) {
				c.LayerNormEpsilon = 0.5
			},
		} {
			for rank, err := range onDevices(t, 2, set, staged, func(acc *accelerate.Accelerator, m *gpt2.Model) error {
				cfg := m.Cfg
				if acc.Rank() == 1 {
					change(&cfg)
				}
				m, err := gpt2.New(nn.NewInit(acc.Device(), 1), cfg)
				if err != nil {
					return err
				}
				return acc.Prepare(t.Context(), m, adamW)
			}, withStages) {
				require.ErrorContains(t, err, want, "%s, rank %d", axis, rank)
			}
		}
	}
}

// A setting on which no sum and no call depends may differ.
func TestRanksMayDifferInWhatDoesNotMatter(t *testing.T) {
	errs := job(t, accelerators(t, 2, func(rank int, a *args.TrainingArguments) {
		a.DataloaderNumWorkers, a.RunName = rank, fmt.Sprint(rank)
	}), func(acc *accelerate.Accelerator) error {
		_, _, err := train(t, acc, 1, everywhere, nowhere)
		return err
	})
	require.Equal(t, []error{nil, nil}, errs)
}

// A layer that one rank's batches do not use gets the others' gradients; one that no batch
// uses has none, and the optimizer leaves it alone.
func TestUnusedParameter(t *testing.T) {
	for name, uses := range map[string]func(place int) bool{"by one rank": func(place int) bool {
		return place >= 6
	}, "by none": nowhere} {
		t.Run(name, func(t *testing.T) {
			errs := job(t, accelerators(t, 4, nil), func(acc *accelerate.Accelerator) error {
				m := newNet(acc.Device(), 1)
				if err := acc.Prepare(t.Context(), m, adamW); err != nil {
					return err
				}
				before := weights(acc, m)
				var batches []*data.Batch
				for i := range 2 {
					place := 2*acc.Rank() + i
					batches = append(batches, batch(acc.Ctx(), place, uses(place)))
				}
				if _, err := acc.Accumulate(t.Context(), batches, m.loss); err != nil {
					return err
				}
				require.Equal(t, uses(7), m.Extra.Weight.Grad() != nil)
				require.NotNil(t, m.Second.Weight.Grad())
				require.NoError(t, acc.Step(t.Context()))
				require.Equal(t, !uses(7), before["extra.weight"] == weights(acc, m)["extra.weight"])
				return nil
			})
			require.Equal(t, make([]error, 4), errs)
		})
	}
}

// The bucket of a layer that no batch uses does not wait for the end of the backward pass.
func TestUnusedParameterHoldsNothingBack(t *testing.T) {
	var mu sync.Mutex
	var spans []trace.Span
	tracer := accelerate.WithTracer(func(s trace.Span) {
		mu.Lock()
		defer mu.Unlock()
		spans = append(spans, s)
	})
	errs := job(t, accelerators(t, 2, nil, tracer), func(acc *accelerate.Accelerator) error {
		_, _, err := train(t, acc, 1, everywhere, nowhere)
		return err
	})
	require.Equal(t, make([]error, 2), errs)
	for rank := range 2 {
		var backward, bucket trace.Span
		for _, s := range spans {
			switch {
			case s.Rank == rank && s.Name == "backward":
				backward = s // the last
			case s.Rank == rank && s.Name == "bucket":
				bucket = s
			}
		}
		require.False(t, bucket.Queued.After(backward.End), "all gradients lie in one bucket, sent in the pass")
	}
}

// Without ddp_find_unused_parameters a layer that a rank's batches do not use is an error on
// every rank; a rank without batches takes no part and is none.
func TestUnusedParameterIsRefused(t *testing.T) {
	refuse := func(_ int, a *args.TrainingArguments) { a.DDPFindUnusedParameters = false }
	for name, c := range map[string]struct {
		here, uses func(place int) bool
		fails      bool
	}{
		"on one rank": {everywhere, func(place int) bool { return place >= 2 }, true},
		"on all":      {everywhere, nowhere, true},
		"idle rank":   {func(place int) bool { return place >= 4 }, everywhere, false},
	} {
		t.Run(name, func(t *testing.T) {
			errs := job(t, accelerators(t, 4, refuse), func(acc *accelerate.Accelerator) error {
				_, _, err := train(t, acc, 1, c.here, c.uses)
				return err
			})
			for _, err := range errs {
				if !c.fails {
					require.NoError(t, err)
					continue
				}
				require.ErrorContains(t, err,
					"2 of 6 parameters had no gradient in a step: extra.weight, extra.bias: want a loss that uses "+
						"every parameter, or ddp_find_unused_parameters on")
			}
		})
	}
}

// A static graph changes no bit, and a broken promise is an error on every rank.
func TestStaticGraph(t *testing.T) {
	static := func(on bool) func(int, *args.TrainingArguments) {
		return func(_ int, a *args.TrainingArguments) { a.DDPStaticGraph = on }
	}
	const steps = 3
	half := func(place int) bool { return place%8 >= 4 }          // rank 1's batches alone use it
	tail := func(place int) bool { return place < 8*(steps-1)+4 } // rank 1 has none in the last step
	end := map[bool][]map[string]string{}
	for _, on := range []bool{false, true} {
		end[on] = make([]map[string]string, 2)
		errs := job(t, accelerators(t, 2, static(on)), func(acc *accelerate.Accelerator) (err error) {
			end[on][acc.Rank()], _, err = train(t, acc, steps, everywhere, half)
			return err
		})
		require.Equal(t, make([]error, 2), errs)
	}
	require.Equal(t, end[false], end[true])

	errs := job(t, accelerators(t, 2, static(true)), func(acc *accelerate.Accelerator) error {
		_, _, err := train(t, acc, steps, tail, everywhere)
		return err
	})
	require.Equal(t, make([]error, 2), errs, "a rank without batches breaks no promise")

	for want, uses := range map[string]func(place int) bool{
		"has a gradient and had none": func(place int) bool { return place >= 12 },
		"has no gradient and had one": func(place int) bool { return place < 12 },
	} {
		errs := job(t, accelerators(t, 2, static(true)), func(acc *accelerate.Accelerator) error {
			_, _, err := train(t, acc, steps, everywhere, uses)
			return err
		})
		require.ErrorContains(t, errs[1], "parameter extra.weight "+want+" in the first step")
		require.Error(t, errs[0])
	}
}
