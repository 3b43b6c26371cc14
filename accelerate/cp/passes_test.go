// SPDX-License-Identifier: Apache-2.0

package cp_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

const (
	rows       = 2
	vocabulary = 29
)

// run is a training run.
type run struct {
	chunks    int
	method    *cp.Method
	model     func(in *nn.Init) models.Model // nil: GPT-2
	length    int                            // 0: 24
	layers    int                            // of GPT-2; 0: 2
	steps     int                            // 0: 2
	attention float64                        // dropout of attention weights
	noDropout bool
	recompute bool
	lower     tensor.DType
	mask      bool // padding at the end of a row
	segments  bool // texts share rows
	// ranks have neighbouring chunks
	contiguous bool
}

func (r run) tokens() int { return cmp.Or(r.length, 24) }

func (r run) newModel(in *nn.Init) models.Model {
	if r.model != nil {
		return r.model(in)
	}
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, r.tokens(), 16,
		cmp.Or(r.layers, 2), 4
	cfg.AttnPdrop = r.attention
	if r.noDropout {
		cfg.ResidPdrop, cfg.EmbdPdrop = 0, 0
	}
	m, err := gpt2.New(in, cfg)
	if err != nil {
		panic(err)
	}
	return m
}

// batch is that of a step. The labels are ragged: the second row has a label only at every seventh place.
func (r run) batch(c *tensor.Ctx, step int) *data.Batch {
	n := r.tokens()
	ids, labels, mask := make([]int64, rows*n), make([]int64, rows*n), make([]int64, rows*n)
	count := 0.0
	for i := range ids {
		ids[i] = int64((step*31 + i*i*7 + i) % vocabulary)
		labels[i], mask[i] = ids[i], 1
		if i > n && i%7 != 0 || r.mask && i > 2*n-5 {
			labels[i] = tensor.IgnoreIndex
		}
		if r.mask && i > 2*n-5 {
			mask[i] = 0
		}
		if i%n > 0 && labels[i] >= 0 {
			count++
		}
	}
	tensors := map[string]*tensor.Tensor{data.InputIDs: tensor.FromSlice(c, ids, rows, n),
		data.Labels: tensor.FromSlice(c, labels, rows, n)}
	if r.mask {
		tensors[data.AttentionMask] = tensor.FromSlice(c, mask, rows, n)
	}
	if r.segments { // three texts in the first row, two in the second
		segments, positions := make([]int64, rows*n), make([]int64, rows*n)
		for i := range segments {
			length := n / (3 - i/n)
			segments[i], positions[i] = int64(i%n/length), int64(i%n%length)
		}
		tensors[data.SegmentIDs] = tensor.FromSlice(c, segments, rows, n)
		tensors[data.PositionIDs] = tensor.FromSlice(c, positions, rows, n)
	}
	return &data.Batch{Tensors: tensors, Size: rows, Count: count, Position: int64(step * rows)}
}

func (r run) context(c *tensor.Ctx, m models.Model, tree *nn.Tree, b *data.Batch) *nn.Ctx {
	d := nn.NewCtx(c.WithRandom(5, b.Position).Autocast(r.lower), tree, true).WithLossOnly()
	if r.recompute {
		d = d.WithRecompute(m.(interface{ RecomputeUnits() []nn.Module }).RecomputeUnits())
	}
	return d
}

// bits are those of a run, by name: losses, norms, gradients, weights and moments.
type bits map[string][]byte

// train trains on one rank of a group, or alone.
func (r run) train(g *comm.Group) (out bits, sums []cp.Sum, blocks int64, err error) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
	tree := nn.Walk(m)
	group := &optim.Group{LR: 1e-2, WeightDecay: 0.01}
	group.Params = tree.Parameters()
	opt := optim.DefaultAdamW().New(c, []*optim.Group{group})
	passes, err := cp.New(cp.Config{Group: g, Chunks: r.chunks, Method: r.method, Params: tree.Parameters()})
	if err != nil {
		return nil, nil, 0, err
	}
	if r.contiguous {
		passes.Contiguous()
	}
	out = bits{}
	forward := func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
		return cp.Output{Loss: m.Forward(c, b).Loss, Count: b.Count}, nil
	}
	for step := range cmp.Or(r.steps, 2) {
		b := r.batch(c.NoGrad(), step)
		_, err := r.context(c, m, tree, b).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
			sum, err := passes.ForwardBackward(context.Background(), c, b, forward, 1/b.Count, cp.Accumulate)
			sums = append(sums, sum)
			return nil, err
		})
		if err != nil {
			return nil, nil, 0, err
		}
		norm := optim.GradNorm(c, tree.Parameters())
		out[fmt.Sprintf("step %d loss", step)] = fmt.Append(nil, sums[step])
		out[fmt.Sprintf("step %d norm", step)] = fmt.Append(nil, norm)
		for _, p := range tree.Parameters() {
			out[fmt.Sprintf("step %d gradient of %s", step, p.Name)] = tensor.ReadBytes(c.NoGrad(), p.Grad())
		}
		opt.ScaleGrads(optim.ClipFactor(norm, norm/2))
		opt.Step(c)
		for _, p := range tree.Parameters() {
			p.DropLowered()
			p.ZeroGrad()
			out[fmt.Sprintf("step %d weights %s", step, p.Name)] = tensor.ReadBytes(c.NoGrad(), p.Tensor)
		}
		b.Free()
	}
	for name, s := range opt.State().Tensors {
		out["state "+name] = tensor.ReadBytes(c.NoGrad(), s)
	}
	return out, sums, passes.KeyBlocks(), nil
}

// on trains on goroutines, which must agree. work is the key blocks of each rank.
func (r run) on(t *testing.T, ranks int) (out bits, sums []cp.Sum, work []int64) {
	t.Helper()
	if ranks == 1 {
		out, sums, blocks, err := r.train(nil)
		require.NoError(t, err)
		return out, sums, []int64{blocks}
	}
	var mu sync.Mutex
	work = make([]int64, ranks)
	require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
		own, s, blocks, err := r.train(g)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		work[g.Rank()] = blocks
		if out == nil {
			out, sums = own, s
		}
		for key, b := range own {
			if string(out[key]) != string(b) {
				return fmt.Errorf("ranks differ in %s", key)
			}
		}
		return nil
	}))
	return out, sums, work
}

// same demands the bits of one process with the same chunks.
func (r run) same(t *testing.T, ranks ...int) {
	t.Helper()
	want, _, _ := r.on(t, 1)
	require.Greater(t, len(want), 50)
	for _, n := range ranks {
		got, _, _ := r.on(t, n)
		require.Len(t, got, len(want))
		for key, b := range want {
			require.Equal(t, b, got[key], "%v on %d ranks: %s", r.method, n, key)
		}
	}
}

// For the same number of chunks, 2 and 4 ranks have the bits of one process: losses, norms, gradients, weights and
// moments of 20 steps of AdamW with clipping and dropout.
func TestBitsOfOneProcess(t *testing.T) {
	for _, method := range []*cp.Method{cp.Gather, cp.Ulysses} {
		t.Run(method.String(), func(t *testing.T) {
			run{chunks: 8, method: method, steps: 20}.same(t, 2, 4)
		})
	}
}

// Gathered keys and Ulysses have the same bits.
func TestMethodsAgree(t *testing.T) {
	want, _, _ := run{chunks: 4, attention: 0.2, recompute: true}.on(t, 2)
	got, _, _ := run{chunks: 4, attention: 0.2, method: cp.Ulysses}.on(t, 2)
	require.Equal(t, want, got)
}

// Another number of chunks has other bits: the comparison sees the order of sums.
func TestChunksAreInTheBits(t *testing.T) {
	four, _, _ := run{chunks: 4, noDropout: true}.on(t, 2)
	eight, _, _ := run{chunks: 8, noDropout: true}.on(t, 2)
	differ := 0
	for key, b := range four {
		if !strings.HasPrefix(key, "step 0 gradient") {
			continue
		}
		if string(b) != string(eight[key]) {
			differ++
		}
	}
	require.Greater(t, differ, 10)
}

// A few settings of batches and contexts, some of which change what attention gets.
func TestBitsWithSettings(t *testing.T) {
	for name, r := range map[string]run{
		"recomputation":     {recompute: true},
		"ragged length":     {length: 21},
		"padded rows":       {mask: true},
		"segments":          {segments: true, length: 21, mask: true},
		"ulysses segments":  {segments: true, method: cp.Ulysses, recompute: true},
		"attention dropout": {attention: 0.2},
		"ulysses dropout":   {attention: 0.2, method: cp.Ulysses, recompute: true},
		"bf16":              {lower: tensor.BFloat16},
		"ulysses bf16":      {lower: tensor.BFloat16, method: cp.Ulysses, recompute: true, length: 19, mask: true},
	} {
		t.Run(name, func(t *testing.T) {
			r.chunks = 4
			r.same(t, 2)
		})
	}
}
