// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// TestGPT2Classifier compares logits, loss and all gradients of texts that are padded on either side.
func TestGPT2Classifier(t *testing.T) {
	const dir = "../../models/gpt2/testdata/classifier"
	c := tensor.NewCtx(tensor.CPU())
	g := openGolden(t, c, filepath.Join(dir, "golden.safetensors"))
	loaded, err := models.LoadPretrained(tensor.CPU(), dir)
	require.NoError(t, err)
	m := loaded.(*gpt2.Classifier)
	require.Equal(t, []string{"bad", "middling", "good"}, m.Labels())

	b := &data.Batch{Size: 5, Tensors: map[string]*tensor.Tensor{
		data.InputIDs: g.tensor("ids"), data.AttentionMask: g.tensor("mask"), data.Labels: g.tensor("labels"),
	}}
	nn.NewCtx(c, nil, true).Scope(func(nc *nn.Ctx) []*tensor.Tensor {
		out := m.Forward(nc, b)
		require.InDeltaSlice(t, g.floats("logits"), tensor.ToSlice[float32](nc.Ctx, out.Logits), 1e-5)
		var meta goldenMeta
		readJSON(t, filepath.Join(dir, "golden.json"), &meta)
		require.InDelta(t, meta.Loss, tensor.Item(nc.Ctx, out.Loss)/5, 1e-5)
		tensor.Backward(nc.Ctx, []*tensor.Tensor{out.Loss},
			[]*tensor.Tensor{tensor.Full(nc.Ctx, tensor.Float32, 1.0/5)}, nil)
		return nil
	})
	params := nn.NamedParameters(m)
	require.Len(t, params, 2+2*12+2+1)
	require.True(t, strings.HasPrefix(params[len(params)-1].Name, "score."))
	for _, p := range params {
		require.InDeltaSlice(t, g.floats("grad/"+p.Name), tensor.ToSlice[float32](c, p.Grad()), 1e-5, p.Name)
	}
}
