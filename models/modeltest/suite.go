// SPDX-License-Identifier: Apache-2.0

// Package modeltest is the test suite that every architecture passes. Use it to test your own model: call [Run] from
// its tests with a small configuration. It checks the contract of a model with the trainer and with saved files: that
// all parameters get gradients, that configurations and weights survive saving, and that recomputation, delayed weight
// gradients, copies, stages of a pipeline, a loss without logits, further tokens and a key-value cache change no
// result.
//
// It does not compare a model with transformers; golden files beside the model do.
package modeltest

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Run checks the architecture in subtests. config is the config.json of a small model, whose batches have samples of
// the given length, see models.Example.
func Run(t *testing.T, config string, length int) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, r *rig)
	}{
		{"Config", configuration}, {"Parameters", parameters}, {"SameBits", sameBits}, {"Stages", stages},
		{"LossOnly", lossOnly}, {"LogProbs", logProbs}, {"Saved", saved}, {"Resized", resized},
		{"Memory", memory}, {"Cache", cache}, {"Segments", segments}, {"Precision", precision},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newRig(t, config, length)) })
	}
}

// rig is a model with a batch on its own device.
type rig struct {
	models.Configured
	dev   *tensor.Device
	batch *data.Batch
	delay bool        // steps compute weight gradients in a separate pass
	cut   [][]nn.Part // the stages in which a step runs; nil: it runs the model as a whole
}

func newRig(t *testing.T, config string, length int) *rig {
	r := &rig{dev: tensor.NewCPU(1)}
	t.Cleanup(func() { require.NoError(t, r.dev.Close()) })
	m, err := models.FromConfig(nn.NewInit(r.dev, 1), []byte(config))
	require.NoError(t, err)
	r.Configured = m
	example, ok := m.(models.Example)
	require.True(t, ok, "want an ExampleBatch to test with")
	r.batch = example.ExampleBatch(tensor.NewCtx(r.dev).NoGrad(), 2, length)
	for _, name := range []string{data.Inputs, data.PixelValues} { // zeros would hide what is wrong
		if x := r.batch.Tensors[name]; x != nil {
			r.batch.Tensors[name] = tensor.Normal(tensor.NewCtx(r.dev).NoGrad(), x.DType(), 5, 0, 1, x.Shape()...)
			x.Free() // or what Memory counts depends on the collector
		}
	}
	return r
}

func (r *rig) ctx(m models.Model, training bool) *nn.Ctx {
	return nn.NewCtx(tensor.NewCtx(r.dev).WithRandom(3, 0), nn.Walk(m), training)
}

// step is the loss of a training step, and the bits of loss and gradients.
func (r *rig) step(c *nn.Ctx, m models.Model) (loss float64, bits map[string][]byte) {
	bits = map[string][]byte{}
	var store tensor.WeightGradStore
	var opts []tensor.BackwardOption
	if r.delay {
		opts = append(opts, tensor.DelayWeightGrads(&store))
	}
	c.With(c.WithRandom(3, 0)).Scope(func(c *nn.Ctx) []*tensor.Tensor { // every step draws the same numbers
		out := r.forward(c, m)
		loss = tensor.Item(c.Ctx, out.Loss)
		bits["loss"] = tensor.ReadBytes(c.Ctx, out.Loss)
		tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, nil, nil, opts...)
		return nil
	})
	for store.Len() > 0 {
		store.Pop(c.Ctx)
	}
	for _, p := range nn.NamedParameters(m) {
		if g := p.Grad(); g != nil {
			bits[p.Name] = tensor.ReadBytes(c.Ctx, g)
			p.ZeroGrad()
		}
	}
	return loss, bits
}

// forward runs each stage with its own random stream, as on its own rank.
func (r *rig) forward(c *nn.Ctx, m models.Model) (out models.Output) {
	if r.cut == nil {
		return m.Forward(c, r.batch)
	}
	for _, parts := range r.cut {
		out = m.Forward(c.With(c.WithRandom(3, 0)).WithStage(parts, out.Hidden...), r.batch)
	}
	return out
}

// logits are those of an evaluation.
func (r *rig) logits(m models.Model) (bits []byte) {
	c := r.ctx(m, false)
	c.With(c.NoGrad()).Scope(func(c *nn.Ctx) []*tensor.Tensor {
		bits = tensor.ReadBytes(c.Ctx, m.Forward(c, r.batch).Logits)
		return nil
	})
	return bits
}

// configuration makes the model again from what it says of itself.
func configuration(t *testing.T, r *rig) {
	text, err := models.ConfigJSON(r)
	require.NoError(t, err)
	var head struct {
		ModelType string `json:"model_type"`
	}
	require.NoError(t, json.Unmarshal(text, &head))
	require.Equal(t, r.ModelType(), head.ModelType)
	again, err := models.FromConfig(nn.NewInit(r.dev, 1), text)
	require.NoError(t, err)
	more, err := models.ConfigJSON(again)
	require.NoError(t, err)
	require.Equal(t, string(text), string(more))
	require.Equal(t, r.logits(r.Configured), r.logits(again), "the seed and the paths decide the first weights")
	later, err := models.FromConfig(nn.NewInit(r.dev, 1).Deferred(), text)
	require.NoError(t, err)
	loss, gradients := r.step(r.ctx(again, true), again)
	laterLoss, laterGradients := r.step(r.ctx(later, true), later)
	require.Equal(t, loss, laterLoss, "and do so where weights are made when they are used")
	require.Equal(t, gradients, laterGradients)
	for _, m := range []models.Model{again, later} { // what Memory counts does not depend on the collector
		for _, p := range nn.Walk(m).State() {
			p.Free()
		}
	}
}

// resized gives the model further tokens. What it says of the others stays to the bit.
func resized(t *testing.T, r *rig) {
	m, ok := r.Configured.(models.Resizable)
	if !ok {
		t.Skip("its vocabulary does not grow")
	}
	old, names := m.VocabSize(), parameterNames(m)
	before := r.rows(m)
	require.NoError(t, m.ResizeTokenEmbeddings(old-1, 0))
	require.Equal(t, old, m.VocabSize(), "nothing shrinks")
	require.ErrorContains(t, m.ResizeTokenEmbeddings(0, 0), "want at least 1 token")
	require.ErrorContains(t, m.ResizeTokenEmbeddings(math.MaxInt, 8), "want at most")
	require.NoError(t, m.ResizeTokenEmbeddings(old+2, 8))
	size := (old + 2 + 7) / 8 * 8
	require.Equal(t, size, m.VocabSize())
	require.Equal(t, names, parameterNames(m), "what was tied is tied")
	for i, row := range r.rows(m) {
		require.Equal(t, before[i], row[:len(before[i])], "logits %d", i)
	}
	requireMeanRows(t, tensor.NewCtx(r.dev).NoGrad(), m.(models.Embedded).InputEmbeddings().Weight, old)
	loss, _ := r.step(r.ctx(m, true), m)
	require.False(t, math.IsNaN(loss) || math.IsInf(loss, 0))

	dir := t.TempDir()
	require.NoError(t, models.SavePretrained(dir, r))
	again, err := models.LoadPretrained(r.dev, dir)
	require.NoError(t, err)
	require.Equal(t, size, again.(models.TokenReader).VocabSize())
	require.Equal(t, r.logits(m), r.logits(again))
}

func parameterNames(m models.Model) (names []string) {
	for _, p := range nn.NamedParameters(m) {
		names = append(names, p.Name)
	}
	return names
}

// rows are the bits of the logits, row by row.
func (r *rig) rows(m models.Model) (rows [][]float32) {
	c := r.ctx(m, false)
	c.With(c.NoGrad()).Scope(func(c *nn.Ctx) []*tensor.Tensor {
		logits := m.Forward(c, r.batch).Logits
		for row := range slices.Chunk(tensor.ToSlice[float32](c.Ctx, logits), logits.Size(-1)) {
			rows = append(rows, row)
		}
		return nil
	})
	return rows
}

// requireMeanRows checks the rows that a table [V,C] had not at first.
func requireMeanRows(t *testing.T, c *tensor.Ctx, table *nn.Parameter, old int) {
	width := table.Size(1)
	all := tensor.ToSlice[float32](c, table.Tensor)
	for j := range width {
		sum := 0.0
		for i := range old {
			sum += float64(all[i*width+j])
		}
		for i := old; i < table.Size(0); i++ {
			require.InDelta(t, sum/float64(old), float64(all[i*width+j]), 1e-6, "row %d", i)
		}
	}
}

// parameters asks whether a step reaches all of them, through the context.
func parameters(t *testing.T, r *rig) {
	asked := map[string]bool{}
	c := r.ctx(r.Configured, true).WithParam(func(_ *nn.Ctx, name string, v *tensor.Tensor) *tensor.Tensor {
		asked[name] = true
		return v
	})
	loss, bits := r.step(c, r.Configured)
	require.False(t, math.IsNaN(loss) || math.IsInf(loss, 0), "the loss is %v", loss)
	for _, p := range nn.NamedParameters(r.Configured) {
		require.True(t, asked[p.Name], "%s was not asked for with Ctx.Param", p.Name)
		require.NotNil(t, bits[p.Name], "%s got no gradient", p.Name)
	}
}

// sameBits steps again, with recomputation, with delayed weight gradients, with hooks and as a copy.
func sameBits(t *testing.T, r *rig) {
	c := r.ctx(r.Configured, true)
	_, want := r.step(c, r.Configured)
	same := func(c *nn.Ctx, m models.Model, what string) {
		_, got := r.step(c, m)
		require.Equal(t, want, got, what)
	}
	same(c, r.Configured, "the same again")
	if m, ok := r.Configured.(models.Recomputable); ok {
		require.NotEmpty(t, m.RecomputeUnits())
		again := c.WithRecompute(m.RecomputeUnits())
		same(again, r.Configured, "with recomputation")
		r.delay = true
		same(again, r.Configured, "with recomputation and delayed weight gradients")
	}
	r.delay = true
	same(c, r.Configured, "with delayed weight gradients")
	r.delay = false
	tree, nothing := nn.Walk(r.Configured), func(*tensor.Ctx) {}
	through := func(_ *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor { return ts }
	tree.Modules(func(_ string, m nn.Module) {
		tree.AddHooks(m, &nn.Hooks{PreBackward: nothing, PostBackward: nothing, Inputs: through, Outputs: through})
	})
	same(nn.NewCtx(c.Ctx, tree, true), r.Configured, "with hooks")
	twin, err := nn.Clone(r.Configured, r.dev)
	require.NoError(t, err)
	same(r.ctx(twin, true), twin, "a copy")
}

// stages cuts a Pipelined model in front of each part, and everywhere.
func stages(t *testing.T, r *rig) {
	m, ok := r.Configured.(models.Pipelined)
	if !ok {
		return
	}
	parts := m.Parts()
	of := map[*tensor.Tensor]bool{}
	for _, p := range parts {
		for _, sub := range p {
			for _, q := range nn.NamedParameters(sub) {
				of[q.Tensor] = true
			}
		}
	}
	for _, p := range nn.NamedParameters(m) {
		require.True(t, of[p.Tensor], "%s is in no part", p.Name)
	}
	cuts := [][][]nn.Part{nil}
	for i := range parts {
		cuts[0] = append(cuts[0], parts[i:i+1])
		if i > 0 {
			cuts = append(cuts, [][]nn.Part{parts[:i], parts[i:]})
		}
	}
	c := r.ctx(m, true)
	_, want := r.step(c, m)
	for _, r.cut = range cuts {
		_, got := r.step(c, m)
		require.Equal(t, want, got, "%d stages, the first of %d parts", len(r.cut), len(r.cut[0]))
		if again, ok := r.Configured.(models.Recomputable); ok {
			_, got = r.step(c.WithRecompute(again.RecomputeUnits()), m)
			require.Equal(t, want, got, "with recomputation")
		}
	}
}

// lossOnly leaves out what is not the loss.
func lossOnly(t *testing.T, r *rig) {
	_, want := r.step(r.ctx(r.Configured, true), r.Configured)
	_, got := r.step(r.ctx(r.Configured, true).WithLossOnly(), r.Configured)
	require.Equal(t, want["loss"], got["loss"])
	require.Len(t, got, len(want))
}

// logProbs are those of a language model's labels: their sum is minus the loss.
func logProbs(t *testing.T, r *rig) {
	c := r.ctx(r.Configured, false)
	if _, ok := r.Configured.(models.Generator); !ok {
		require.Nil(t, r.Forward(c.WithLogProbs(), r.batch).LogProbs)
		return
	}
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		out := r.Forward(c.WithLogProbs(), r.batch)
		require.Nil(t, out.Loss)
		require.Equal(t, r.batch.Tensors[data.InputIDs].Shape(), out.LogProbs.Shape())
		require.InEpsilon(t, tensor.Item(c.Ctx, r.Forward(c, r.batch).Loss),
			-tensor.Item(c.Ctx, tensor.Sum(c.Ctx, out.LogProbs, nil, false)), 1e-6)
		return nil
	})
}

// saved writes the model to a folder and loads it.
func saved(t *testing.T, r *rig) {
	dir := t.TempDir()
	config, err := models.ConfigJSON(r.Configured)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, models.ConfigFile), config, 0o600))
	require.NoError(t, models.SaveWeights(r.Configured, dir))
	loaded, err := models.LoadPretrained(r.dev, dir)
	require.NoError(t, err)
	require.Equal(t, r.logits(r.Configured), r.logits(loaded))
}

// memory checks that a step leaves nothing.
func memory(t *testing.T, r *rig) {
	before := r.dev.MemStats().InUse
	for _, r.delay = range []bool{false, true} {
		r.step(r.ctx(r.Configured, true), r.Configured)
		require.Equal(t, before, r.dev.MemStats().InUse)
	}
}

// cache feeds a Generator the tokens of a batch at once and one by one.
func cache(t *testing.T, r *rig) {
	m, ok := r.Configured.(models.Generator)
	if !ok {
		return
	}
	c := r.ctx(m, false)
	c = c.With(c.NoGrad())
	shape := r.batch.Tensors[data.InputIDs].Shape()
	ids := tensor.Reshape(c.Ctx, tensor.Arange(c.Ctx, tensor.Int64, 0, 1, shape[1]), 1, shape[1])
	next := func(n int) (logits []float32) {
		k := m.NewCache(c, 1)
		defer k.Free()
		for at := 0; at < shape[1]; at += n {
			logits = tensor.ToSlice[float32](c.Ctx, m.Next(c, tensor.Slice(c.Ctx, ids, 1, at, at+n), k))
			require.Equal(t, at+n, k.Len())
		}
		return logits
	}
	require.InDeltaSlice(t, next(shape[1]), next(1), 1e-4)
	padded(t, c, m, shape[1]/2)
	joined(t, c, m, shape[1])
}

// segments puts texts behind one another into a row, where each has the logits that it has alone; without segment_ids
// they are others.
func segments(t *testing.T, r *rig) {
	m, ok := r.Configured.(models.Generator)
	if !ok {
		return
	}
	c := r.ctx(m, false)
	c = c.With(c.NoGrad())
	lengths := []int{r.batch.Tensors[data.InputIDs].Size(1) / 2, 1, 2}
	logits := func(drop string, lengths ...int) []float32 {
		var ids, positions, numbers []int64
		for i, n := range lengths {
			for at := range n {
				ids, positions = append(ids, int64(at+n)), append(positions, int64(at))
				numbers = append(numbers, int64(i))
			}
		}
		b := &data.Batch{Size: 1, Tensors: map[string]*tensor.Tensor{}}
		for name, values := range map[string][]int64{data.InputIDs: ids, data.PositionIDs: positions,
			data.SegmentIDs: numbers} {
			if name != drop {
				b.Tensors[name] = tensor.FromSlice(c.Ctx, values, 1, len(values))
			}
		}
		return tensor.ToSlice[float32](c.Ctx, m.Forward(c, b).Logits)
	}
	var alone []float32
	for _, n := range lengths {
		alone = append(alone, logits("", n)...)
	}
	require.InDeltaSlice(t, alone, logits("", lengths...), 1e-5)
	require.NotEqual(t, alone, logits(data.SegmentIDs, lengths...), "texts see each other")
	require.Greater(t, largestDifference(alone, logits(data.SegmentIDs, lengths...)), 1e-4)
}

func largestDifference(x, y []float32) (most float64) {
	for i := range x {
		most = max(most, math.Abs(float64(x[i]-y[i])))
	}
	return most
}

// padded feeds a Generator texts of several lengths, padded on the left, in one batch and each alone. They are short:
// RoPE that depends on the length has that of the longest.
func padded(t *testing.T, c *nn.Ctx, m models.Generator, most int) {
	lengths := []int{most - 1, most/2 + 1, 1}
	text := func(i int) (ids []int64) {
		for at := range lengths[i] + 1 {
			ids = append(ids, int64(at+i))
		}
		return ids
	}
	// Two steps: the last token comes by itself.
	steps := func(k models.Cache, ids []int64, rows int) (logits []float32) {
		defer k.Free()
		all := tensor.FromSlice(c.Ctx, ids, rows, len(ids)/rows)
		for _, part := range []*tensor.Tensor{tensor.Slice(c.Ctx, all, 1, 0, all.Size(1)-1),
			tensor.Slice(c.Ctx, all, 1, all.Size(1)-1, all.Size(1))} {
			logits = append(logits, tensor.ToSlice[float32](c.Ctx, m.Next(c, part, k))...)
		}
		return logits
	}
	var batch []int64
	first := make([]int, len(lengths))
	for i := range lengths {
		first[i] = lengths[0] - lengths[i]
		batch = append(append(batch, make([]int64, first[i])...), text(i)...)
	}
	k := m.NewCache(c, len(lengths))
	k.Pad(first)
	together := steps(k, batch, len(lengths))
	width := len(together) / 2 / len(lengths)
	for i := range lengths {
		alone := steps(m.NewCache(c, 1), text(i), 1)
		for step := range 2 {
			require.InDeltaSlice(t, alone[step*width:][:width], together[(step*len(lengths)+i)*width:][:width], 1e-4,
				"text %d of %v tokens, step %d", i, lengths, step)
		}
	}
}

// joined continues texts together that began one after the other: each has the bits that it has alone, of which also
// those of a prompt that is fed in parts.
func joined(t *testing.T, c *nn.Ctx, m models.Generator, most int) {
	joiner, ok := m.(models.Joiner)
	if !ok {
		return
	}
	lengths := []int{most - 3, 1, most / 2}
	id := func(text, at int) int64 { return int64(at*(text+1)) % int64(most) }
	next := func(k models.Cache, n int, ids ...int64) []float32 {
		return tensor.ToSlice[float32](c.Ctx, m.Next(c, tensor.FromSlice(c.Ctx, ids, n, len(ids)/n), k))
	}
	caches, alone := make([]models.Cache, len(lengths)), make([]models.Cache, len(lengths))
	for i, n := range lengths {
		var ids []int64
		for at := range n {
			ids = append(ids, id(i, at))
		}
		caches[i], alone[i] = m.NewCache(c, 1), m.NewCache(c, 1)
		defer caches[i].Free()
		defer alone[i].Free()
		whole := next(alone[i], 1, ids...)
		if joiner.Join(caches[i:i+1]) == nil {
			continue // the angles of its tokens depend on those that follow
		}
		half := (n + 1) / 2
		last := next(caches[i], 1, ids[:half]...)
		if half < n {
			last = next(caches[i], 1, ids[half:]...)
		}
		require.Equal(t, whole, last, "text %d in parts", i)
		if copier, ok := m.(models.PrefixCopier); ok && half < n {
			k := copier.CopyPrefix(c, caches[i], half)
			require.Equal(t, half, k.Len())
			require.Equal(t, whole, next(k, 1, ids[half:]...), "text %d behind a copy of its prefix", i)
			k.Free()
		}
	}
	for step := range 2 {
		var ids []int64
		var want []float32
		for i, n := range lengths {
			ids = append(ids, id(i, n+step))
			want = append(want, next(alone[i], 1, ids[i])...)
		}
		k := joiner.Join(caches)
		if k == nil {
			return
		}
		require.Equal(t, want, next(k, len(ids), ids...), "step %d", step)
		for i := range caches {
			require.Equal(t, alone[i].Len(), caches[i].Len())
		}
	}
}

// precision holds that each class of ops computes in its dtype under autocast, and that float32 parameters get float32
// gradients.
func precision(t *testing.T, r *rig) {
	for _, lower := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		var ran tensor.DTypeCounts
		c := r.ctx(r, true)
		c = c.With(c.Autocast(lower).CountDTypes(&ran))
		loss, _ := r.step(c, r)
		require.False(t, math.IsNaN(loss) || math.IsInf(loss, 0))
		require.NoError(t, ran.Check(lower))
		require.Positive(t, ran.Count(tensor.Products, lower)+ran.Count(tensor.Convolutions, lower))
	}
}
