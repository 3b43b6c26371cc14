// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// golden is a file of PyTorch's results and its manifest, in testdata beside the script that made them.
type golden struct {
	t    *testing.T
	file *safetensors.Reader
}

func openGolden(t *testing.T, name string, manifest any) *golden {
	text, err := os.ReadFile("testdata/" + name + ".json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, manifest))
	f, err := os.Open("testdata/" + name + ".safetensors")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	info, err := f.Stat()
	require.NoError(t, err)
	file, err := safetensors.NewReader(f, info.Size(), f.Name())
	require.NoError(t, err)
	return &golden{t, file}
}

func (g *golden) has(path string) bool {
	_, ok := g.file.Lookup(path)
	return ok
}

func (g *golden) load(c *nn.Ctx, path string) *tensor.Tensor {
	entry, ok := g.file.Lookup(path)
	require.True(g.t, ok, path)
	data, err := g.file.ReadTensor(path)
	require.NoError(g.t, err)
	return tensor.FromBytes(c.Ctx, data, entry.DType, entry.Shape...)
}

// lossCase is a call in testdata/losses.json.
type lossCase struct {
	Name, Loss string
	In, Grad   []string
	Mean       bool
	Attrs      struct {
		Smoothing, Delta, Beta float64
		Log                    bool
	}
}

func (k *lossCase) call(c *nn.Ctx, in map[string]*tensor.Tensor) *tensor.Tensor {
	switch a := k.Attrs; k.Loss {
	case "cross_entropy":
		return nn.CrossEntropySumWith(c, in["logits"], in["labels"],
			nn.CrossEntropyOptions{ClassWeights: in["weights"], LabelSmoothing: a.Smoothing})
	case "bce":
		return nn.BCEWithLogitsSum(c, in["logits"], in["targets"],
			nn.BCEOptions{Weight: in["weight"], PosWeight: in["pos_weight"]})
	case "l1":
		return nn.L1Sum(c, in["x"], in["target"])
	case "mse":
		return nn.MSESum(c, in["x"], in["target"])
	case "huber":
		return nn.HuberSum(c, in["x"], in["target"], a.Delta)
	case "smooth_l1":
		return nn.SmoothL1Sum(c, in["x"], in["target"], a.Beta)
	case "kl_div":
		return nn.KLDivSum(c, in["x"], in["target"], a.Log)
	}
	return nil
}

// TestLossGoldens: sums and gradients are PyTorch's, and so is the mean where LabelWeightSum is the denominator.
func TestLossGoldens(t *testing.T) {
	var manifest struct{ Cases []lossCase }
	g := openGolden(t, "losses", &manifest)
	require.Greater(t, len(manifest.Cases), 15)
	for _, k := range manifest.Cases {
		c := env()
		in := map[string]*tensor.Tensor{}
		for _, name := range k.In {
			in[name] = g.load(c, k.Name+"/in/"+name)
		}
		var wrt []*tensor.Tensor
		for _, name := range k.Grad {
			wrt = append(wrt, in[name].SetRequiresGrad(true))
		}
		loss := k.call(c, in)
		require.NotNil(t, loss, k.Loss)
		requireClose(t, g.load(c, k.Name+"/loss"), loss, 1e-12, k.Name)
		for i, d := range tensor.Backward(c.Ctx, []*tensor.Tensor{loss}, nil, wrt) {
			requireClose(t, g.load(c, k.Name+"/grad/"+k.Grad[i]), d, 1e-12, k.Name+": gradient of "+k.Grad[i])
		}
		if k.Mean {
			weights := in["weights"]
			if weights == nil {
				weights = tensor.Ones(c.Ctx, tensor.Float64, in["logits"].Size(-1))
			}
			mean := tensor.Div(c.Ctx, loss, nn.LabelWeightSum(c, in["labels"], weights))
			requireClose(t, g.load(c, k.Name+"/mean"), mean, 1e-12, k.Name+": mean")
		}
	}
}

// requireClose compares relative to 1 or to the largest number.
func requireClose(t *testing.T, want, got *tensor.Tensor, tolerance float64, what string) {
	t.Helper()
	require.Equal(t, want.String(), got.String(), what)
	list := func(x *tensor.Tensor) []float64 {
		c := tensor.NewCtx(x.Device()).NoGrad()
		return tensor.ToSlice[float64](c, tensor.Cast(c, tensor.Detach(x), tensor.Float64))
	}
	w, top := list(want), 1.0
	for _, x := range w {
		top = max(top, x, -x)
	}
	require.InDeltaSlice(t, w, list(got), tolerance*top, what)
}
