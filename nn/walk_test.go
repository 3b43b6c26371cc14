// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func newInit() *nn.Init { return nn.NewInit(tensor.CPU(), 1) }

func vector(n int) *nn.Parameter { return newInit().Full("", 1, n) }

func linear() *nn.Linear { return nn.NewLinear(newInit(), nn.LinearConfig{In: 2, Out: 2}) }

func names(m nn.Module) []string {
	var out []string
	for _, p := range nn.NamedParameters(m) {
		out = append(out, p.Name)
	}
	return out
}

type inner struct {
	W *nn.Parameter
	B *nn.Parameter `nn:"bias"`
}

type promoted struct{ P *nn.Parameter }

// Base is embedded by others.
type Base struct{ V *nn.Parameter }

type everything struct {
	*Base                            // no name of its own
	promoted                         // an unexported embedded struct promotes its fields
	*nn.Parameter                    // an embedded parameter is named like its type
	Plain         *inner             // lower case
	Tagged        *inner             `nn:"other"`
	ByValue       inner              `nn:"value"`
	Slice         []*nn.Linear       `nn:"h"`
	Array         [2]inner           `nn:"pair"`
	Map           map[string]*inner  `nn:"by_name"`
	Nested        [][]*nn.Parameter  `nn:"grid"`
	Any           nn.Module          `nn:"any"`
	Nil           *inner             // nothing
	NilAny        nn.Module          // nothing
	Number        *int               // nothing
	Table         map[int]string     // nothing
	Buffer        *tensor.Tensor     // not a parameter
	Config        struct{ Size int } // not a module
	cache         []*tensor.Tensor
	alone         *inner // nil: nothing that could be lost
}

func newEverything() *everything {
	in := func() *inner { return &inner{vector(1), vector(1)} }
	n := 3
	return &everything{
		Base: &Base{vector(1)}, promoted: promoted{vector(1)}, Parameter: vector(1), Plain: in(), Tagged: in(),
		ByValue: *in(),
		Slice:   []*nn.Linear{linear(), nil, linear()}, Array: [2]inner{*in(), *in()},
		Map:    map[string]*inner{"z": in(), "a": in()},
		Nested: [][]*nn.Parameter{{vector(1)}, {vector(1), vector(1)}},
		Any:    linear(), Number: &n, Table: map[int]string{1: ""},
		Buffer: tensor.Zeros(tensor.NewCtx(tensor.CPU()), tensor.Float32, 1),
		cache:  []*tensor.Tensor{nil}, alone: nil,
	}
}

func TestWalkNames(t *testing.T) {
	m := newEverything()
	require.Equal(t, []string{
		"v", "p", "parameter", "plain.w", "plain.bias", "other.w", "other.bias", "value.w", "value.bias",
		"h.0.weight", "h.0.bias", "h.2.weight", "h.2.bias", "pair.0.w", "pair.0.bias", "pair.1.w", "pair.1.bias",
		"by_name.a.w", "by_name.a.bias", "by_name.z.w", "by_name.z.bias", "grid.0.0", "grid.1.0", "grid.1.1",
		"any.weight", "any.bias",
	}, names(m))

	tree := nn.Walk(m)
	paths := map[nn.Module]string{}
	var order []string
	tree.Modules(func(path string, m nn.Module) {
		paths[m] = path
		order = append(order, path)
	})
	require.Equal(t, []string{"", "", "plain", "other", "value", "h.0", "h.2", "pair.0", "pair.1", "by_name.a",
		"by_name.z", "any"}, order)
	require.Equal(t, "value", paths[&m.ByValue], "a module by value is known by its address")
	require.Equal(t, "h.2", paths[m.Slice[2]])
	require.Empty(t, tree.Aliases())
	require.Equal(t, 20*1+3*(4+2), nn.NumParameters(m))
}

// A Parameter that two modules share counts once; the further paths are aliases. A module
// that is used twice is one module.
func TestWalkTied(t *testing.T) {
	shared, again := vector(3), &inner{W: vector(1)}
	m := &struct {
		A, B   *inner
		C      []*nn.Parameter
		X, Y   *inner
		Number int
	}{A: &inner{W: shared}, B: &inner{W: shared}, C: []*nn.Parameter{vector(1), shared}, X: again, Y: again}
	require.Equal(t, []string{"a.w", "c.0", "x.w"}, names(m))
	require.Equal(t, map[string]string{"b.w": "a.w", "c.1": "a.w"}, nn.Walk(m).Aliases())
	require.Equal(t, 5, nn.NumParameters(m))
}

// count is a buffer of n int64 zeros.
func count(n int) *nn.Buffer {
	return nn.NewBuffer(tensor.Zeros(tensor.NewCtx(tensor.CPU()), tensor.Int64, n))
}

// Buffers have paths as parameters have, and are none.
func TestWalkBuffers(t *testing.T) {
	shared := count(2)
	type norm struct {
		W    *nn.Parameter `nn:"w"`
		Mean *nn.Buffer    `nn:"running_mean"`
		None *nn.Buffer
	}
	m := &struct {
		Norms []*norm `nn:"norms"`
		Last  norm    `nn:"last"`
		*nn.Buffer
	}{[]*norm{{W: vector(1), Mean: shared}, {Mean: count(3)}}, norm{Mean: shared}, count(1)}
	tree := nn.Walk(m)
	require.Equal(t, []string{"norms.0.w"}, names(m))
	require.Equal(t, []tensor.Named{{Name: "norms.0.running_mean", Tensor: shared.Tensor},
		{Name: "norms.1.running_mean", Tensor: m.Norms[1].Mean.Tensor}, {Name: "buffer", Tensor: m.Buffer.Tensor}},
		tree.Buffers())
	require.Equal(t, map[string]string{"last.running_mean": "norms.0.running_mean"}, tree.Aliases())
	require.Equal(t, append([]tensor.Named{{Name: "norms.0.w", Tensor: m.Norms[0].W.Tensor}}, tree.Buffers()...),
		tree.State())
	require.Equal(t, 1, nn.NumParameters(m))

	other, err := nn.Clone(m, tensor.CPU())
	require.NoError(t, err)
	require.Same(t, other.Norms[0].Mean, other.Last.Mean, "shared buffers stay shared")
	tensor.FillInto(tensor.NewCtx(tensor.CPU()), shared.Tensor, 7)
	require.Equal(t, []int64{0, 0}, tensor.ToSlice[int64](tensor.NewCtx(tensor.CPU()), other.Norms[0].Mean.Tensor))
}

// A module that points back to its parent does not send the walk in circles.
func TestWalkCycle(t *testing.T) {
	type node struct {
		W    *nn.Parameter
		Next *node
	}
	a, b := &node{W: vector(1)}, &node{W: vector(1)}
	a.Next, b.Next = b, a
	require.Equal(t, []string{"w", "next.w"}, names(a))
}

type secret struct {
	Up   *nn.Linear
	down *nn.Linear
}

func TestWalkRefuses(t *testing.T) {
	up := linear()
	require.Equal(t, []string{"up.weight", "up.bias"}, names(&secret{Up: up, down: up}),
		"an unexported alias of an exported field is fine")
	for _, k := range []struct {
		m    nn.Module
		want string
	}{
		{inner{}, "a module must be a non-nil pointer to a struct, not nn_test.inner"},
		{(*inner)(nil), "a module must be a non-nil pointer to a struct, not *nn_test.inner"},
		{nil, "a module must be a non-nil pointer to a struct, not <nil>"},
		{new(int), "a module must be a non-nil pointer to a struct, not *int"},
		{&secret{Up: up, down: linear()}, "nn_test.secret.down holds parameters or buffers but is unexported, so " +
			"that they would be neither trained nor saved: export the field"},
		{&struct{ ws []*nn.Parameter }{[]*nn.Parameter{vector(1)}},
			"struct { ws []*nn.Parameter }.ws holds parameters or buffers but is unexported, so that they would be " +
				"neither trained nor saved: export the field"},
		{&struct{ mean *nn.Buffer }{count(1)},
			"struct { mean *nn.Buffer }.mean holds parameters or buffers but is unexported, so that they would be " +
				"neither trained nor saved: export the field"},
		{&struct{ Mean *nn.Buffer }{&nn.Buffer{}},
			"buffer mean has no tensor: make it with NewBuffer, or leave the field nil"},
		{&inner{W: &nn.Parameter{}}, "parameter w has no tensor: make it with NewParameter, or leave the field nil"},
		{&struct{ M map[int]*inner }{map[int]*inner{1: {}}},
			"m is a map[int]*nn_test.inner: want string keys, which name the parameters"},
		{&struct{ M map[string]inner }{map[string]inner{"a": {}}},
			"m.a is a nn_test.inner by value, whose parameters have no address: store a pointer"},
	} {
		require.EqualError(t, tensor.Try(func() { nn.Walk(k.m) }), "nn.Walk: "+k.want)
	}
}

// Cases of HuggingFace's rule: layer norms, biases and telling names do not decay.
func TestDecayNames(t *testing.T) {
	in := newInit()
	m := &struct {
		WTE    *nn.Embedding          `nn:"wte"`
		LN1    *nn.LayerNorm          `nn:"ln_1"`            // by its type
		Gain   *nn.RMSNorm            `nn:"gain"`            // by its type
		Input  *inner                 `nn:"input_LayerNorm"` // by its name, in any case
		AttnN  *inner                 `nn:"attn_norm"`
		Norm   *inner                 `nn:"norm"`
		Norms  []*inner               `nn:"norms"`      // no component is norm
		Normal *inner                 `nn:"normalizer"` // nor here
		RMS    *inner                 `nn:"my_rmsnorm_2"`
		Biased *inner                 `nn:"unbiased_w"` // contains bias
		Frozen *nn.Linear             `nn:"frozen"`
		Proj   *nn.Linear             `nn:"proj"`
		Mixed  map[string]*nn.RMSNorm `nn:"mixed"`
		Prefix *inner                 `nn:"ln_1x"` // not inside ln_1
	}{
		WTE:   nn.NewEmbedding(in, nn.EmbeddingConfig{Rows: 2, Dim: 2}),
		LN1:   nn.NewLayerNorm(in, nn.LayerNormConfig{Dim: 2}),
		Gain:  nn.NewRMSNorm(in, nn.RMSNormConfig{Dim: 2}),
		Input: &inner{W: vector(1)}, AttnN: &inner{W: vector(1)}, Norm: &inner{W: vector(1)},
		Norms:  []*inner{{W: vector(1)}},
		Normal: &inner{W: vector(1), B: vector(1)}, RMS: &inner{W: vector(1)}, Biased: &inner{W: vector(1)},
		Frozen: linear(), Proj: linear(), Prefix: &inner{W: vector(1)},
		Mixed: map[string]*nn.RMSNorm{"q": nn.NewRMSNorm(in, nn.RMSNormConfig{Dim: 2})},
	}
	m.Frozen.Weight.SetRequiresGrad(false)
	require.Equal(t, map[string]bool{"wte.weight": true, "norms.0.w": true, "normalizer.w": true, "proj.weight": true,
		"ln_1x.w": true}, nn.DecayNames(m))
	require.Empty(t, nn.DecayNames(m.LN1), "a model that is a norm")
}

// scaled is a normalization of the test, with a projection within.
type scaled struct {
	Gain   *nn.Parameter `nn:"gain"`
	Linear *nn.Linear    `nn:"linear"`
}

func (*scaled) Traits() nn.Traits { return nn.Traits{Norm: true} }

// What a module states holds for the modules within, and for none beside them; a parameter with a second use is read
// by more than products.
func TestTraits(t *testing.T) {
	m := &struct {
		Before *nn.Linear    `nn:"before"`
		Scaled *scaled       `nn:"scaled"`
		After  *nn.Embedding `nn:"after"`
		Tied   *nn.Parameter `nn:"tied"`
	}{Before: linear(), Scaled: &scaled{Gain: vector(2), Linear: linear()},
		After: nn.NewEmbedding(newInit(), nn.EmbeddingConfig{Rows: 2, Dim: 2})}
	m.Tied = m.Before.Bias
	require.Equal(t, map[string]bool{"before.weight": true, "after.weight": true}, nn.DecayNames(m))
	require.Equal(t, map[string]bool{"before.weight": true, "scaled.linear.weight": true, "scaled.linear.bias": true},
		nn.Walk(m).Projected())
	require.Equal(t, []string{"after.weight"}, nn.Walk(m).Embeddings())
}
