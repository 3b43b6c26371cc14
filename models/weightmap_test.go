// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// apart has attention with separate projections, and is saved as GPT-2 is: queries, keys and values in one matrix [in,
// out], the bias likewise, under other names.
type apart struct {
	Attn []*nn.MultiheadAttention `nn:"attn"`
	Norm *nn.LayerNorm            `nn:"norm"`
	Map  []models.WeightRule
}

func (m *apart) Forward(*nn.Ctx, *data.Batch) models.Output { return models.Output{} }
func (m *apart) WeightMap() []models.WeightRule             { return m.Map }

var fused = []models.WeightRule{
	{Saved: "h.*.mask"},
	{Saved: "h.*.c_attn.weight", Params: []string{"attn.*.q_proj.weight", "attn.*.k_proj.weight",
		"attn.*.v_proj.weight"}, Dim: 1, Transpose: true},
	{Saved: "h.*.c_attn.bias", Params: []string{"attn.*.q_proj.bias", "attn.*.k_proj.bias", "attn.*.v_proj.bias"}},
	{Saved: "h.*.c_proj.weight", Params: []string{"attn.*.o_proj.weight"}, Transpose: true},
	{Saved: "h.*.c_proj.bias", Params: []string{"attn.*.o_proj.bias"}},
	{Saved: "ln.gamma", Params: []string{"norm.weight"}, ReadOnly: true},
	{Saved: "ln.*", Params: []string{"norm.*"}},
}

func newApart(seed uint64) *apart {
	in := nn.NewInit(tensor.CPU(), seed)
	m := &apart{Norm: nn.NewLayerNorm(in.Sub("norm"), nn.LayerNormConfig{Dim: 4}), Map: fused}
	for _, name := range []string{"0", "1"} {
		m.Attn = append(m.Attn, nn.NewMultiheadAttention(in.Sub("attn").Sub(name),
			nn.AttentionConfig{Width: 4, Heads: 2, KVHeads: 1}))
	}
	return m
}

// written writes the model's weights and opens them.
func written(t *testing.T, m models.Model) *safetensors.Set {
	dir := t.TempDir()
	require.NoError(t, models.SaveWeights(m, dir))
	set, err := safetensors.OpenSet(vfs.OS, dir, models.WeightsBase)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, set.Close()) })
	return set
}

func TestWeightMap(t *testing.T) {
	m := newApart(1)
	set := written(t, m)
	require.Equal(t, []string{"h.0.c_attn.bias", "h.0.c_attn.weight", "h.0.c_proj.bias", "h.0.c_proj.weight",
		"h.1.c_attn.bias", "h.1.c_attn.weight", "h.1.c_proj.bias", "h.1.c_proj.weight", "ln.bias", "ln.weight"},
		set.Names())
	e, _ := set.Lookup("h.1.c_attn.weight")
	require.Equal(t, []int{4, 8}, e.Shape, "4 of queries, 2 of keys, 2 of values")
	raw, err := e.Read()
	require.NoError(t, err)
	c := tensor.NewCtx(tensor.CPU())
	whole := tensor.ToSlice[float32](c, tensor.FromBytes(c, raw, e.DType, e.Shape...))
	keys := tensor.ToSlice[float32](c, m.Attn[1].K.Weight.Tensor)
	for in := range 4 {
		require.Equal(t, keys[4+in], whole[in*8+5], "the second key's weight of input %d", in)
	}

	other := newApart(2)
	require.NotEqual(t, weights(m), weights(other))
	require.NoError(t, models.ReadWeights(set, other))
	require.Equal(t, weights(m), weights(other))
}

func TestWeightMapRefuses(t *testing.T) {
	m := newApart(1)
	plain := newApart(1)
	plain.Map = nil
	set := written(t, plain)
	require.NoError(t, models.ReadWeights(set, m), "the parameters' own names")
	m.Map = []models.WeightRule{{Saved: "*.o_proj.weight"}, {Saved: "norm.*", Params: []string{"norms.*"}}}
	err := models.ReadWeights(set, m)
	require.ErrorContains(t, err, "norm.bias is not expected")
	require.ErrorContains(t, err, "attn.1.o_proj.weight is missing")
	m.Map = fused

	plain.Map = append(
		[]models.WeightRule{{Saved: "h.*.c_attn.weight",
			Params: []string{"attn.*.q_proj.weight", "attn.*.k_proj.weight", "attn.*.v_proj.weight"}}}, fused...)
	require.ErrorContains(t, models.ReadWeights(written(t, plain), m),
		"h.0.c_attn.weight is float32[8 4]: want float32[4 8]")

	plain.Map = append([]models.WeightRule{{Saved: "ln.gamma", Params: []string{"norm.weight"}}}, fused...)
	require.NoError(t, models.ReadWeights(written(t, plain), m), "another name that is read only")

	plain.Map = []models.WeightRule{{Saved: "norm.weight", Params: []string{"norm.weight", "gone"}}}
	require.ErrorContains(t, models.SaveWeights(plain, t.TempDir()),
		"the weight map puts norm.weight into gone, which the model does not have")
}
