// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// trial is a model of testdata/trials.py: it computes the loss of a step's data.
type trial interface {
	loss(c *nn.Ctx, data map[string]*tensor.Tensor) *tensor.Tensor
}

// vae is a variational autoencoder.
type vae struct {
	Encoder *nn.Sequential `nn:"encoder"`
	Decoder *nn.Sequential `nn:"decoder"`
}

func newVAE(in *nn.Init) *vae {
	enc, dec := in.Sub("encoder"), in.Sub("decoder")
	return &vae{
		Encoder: nn.NewSequential(nn.NewLinear(enc.Sub("0"), nn.LinearConfig{In: 12, Out: 16}),
			&nn.LeakyReLU{Slope: 0.1},
			nn.NewLinear(enc.Sub("2"), nn.LinearConfig{In: 16, Out: 8})),
		Decoder: nn.NewSequential(nn.NewLinear(dec.Sub("0"), nn.LinearConfig{In: 4, Out: 16}), &nn.Softplus{},
			nn.NewLinear(dec.Sub("2"), nn.LinearConfig{In: 16, Out: 12})),
	}
}

func (m *vae) loss(c *nn.Ctx, data map[string]*tensor.Tensor) *tensor.Tensor {
	x := data["x"]
	code := tensor.Split(c.Ctx, m.Encoder.Forward(c, x), 1, 4, 4)
	mean, logVar := code[0], code[1]
	noise := tensor.Mul(c.Ctx, tensor.Exp(c.Ctx, tensor.Affine(c.Ctx, logVar, 0.5, 0)), data["noise"])
	logits := m.Decoder.Forward(c, tensor.Add(c.Ctx, mean, noise))
	away := tensor.Add(c.Ctx, tensor.Mul(c.Ctx, mean, mean), tensor.Exp(c.Ctx, logVar)) // μ² + σ² − ln σ² − 1
	divergence := tensor.Sum(c.Ctx, tensor.Affine(c.Ctx, tensor.Sub(c.Ctx, away, logVar), 0.5, -0.5), nil, false)
	sum := tensor.Add(c.Ctx, nn.BCEWithLogitsSum(c, logits, x, nn.BCEOptions{}), divergence)
	return tensor.Affine(c.Ctx, sum, 1/float64(x.Size(0)), 0)
}

// unet goes down one level and up again, with a connection across.
type unet struct {
	Down   *nn.Sequential `nn:"down"`
	Middle *nn.Sequential `nn:"middle"`
	Up     *nn.Sequential `nn:"up"`
}

func newUNet(in *nn.Init) *unet {
	conv := func(in *nn.Init, from, to, kernel, padding int) *nn.Conv2D {
		return nn.NewConv2D(in, nn.Conv2DConfig{In: from, Out: to, Kernel: [2]int{kernel, kernel},
			Options: tensor.Conv2DOptions{Padding: [2]int{padding, padding}}})
	}
	norm := func(in *nn.Init, groups, channels int) *nn.GroupNorm {
		return nn.NewGroupNorm(in, nn.GroupNormConfig{Groups: groups, Channels: channels})
	}
	down, middle, up := in.Sub("down"), in.Sub("middle"), in.Sub("up")
	return &unet{
		Down:   nn.NewSequential(conv(down.Sub("0"), 1, 8, 3, 0), norm(down.Sub("1"), 4, 8), &nn.SiLU{}),
		Middle: nn.NewSequential(conv(middle.Sub("0"), 8, 16, 3, 1), norm(middle.Sub("1"), 2, 16), &nn.ELU{}),
		Up: nn.NewSequential(conv(up.Sub("0"), 24, 8, 3, 1), norm(up.Sub("1"), 8, 8),
			&nn.ELU{Alpha: 0.5}, conv(up.Sub("3"), 8, 1, 1, 0)),
	}
}

func (m *unet) loss(c *nn.Ctx, data map[string]*tensor.Tensor) *tensor.Tensor {
	across := m.Down.Forward(c, tensor.Pad(c.Ctx, data["noisy"], []int{1, 1, 1, 1}, tensor.PadReflect, 0))
	halved := tensor.MaxPool2D(c.Ctx, across, tensor.Pool2DOptions{Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}})
	deep := m.Middle.Forward(c, halved)
	n, ch, h, w := deep.Size(0), deep.Size(1), deep.Size(2), deep.Size(3)
	doubled := tensor.Expand(c.Ctx, tensor.Reshape(c.Ctx, deep, n, ch, h, 1, w, 1), n, ch, h, 2, w, 2)
	out := m.Up.Forward(c, tensor.Concat(c.Ctx, 1, tensor.Reshape(c.Ctx, doubled, n, ch, 2*h, 2*w), across))
	return tensor.Affine(c.Ctx, nn.HuberSum(c, out, data["clean"], 0.5), 1/float64(out.Numel()), 0)
}

// experts is a mixture of which two see a token, as long as they have room.
type experts struct {
	Gate    *nn.Linear       `nn:"gate"`
	Experts []*nn.Sequential `nn:"experts"`
	Head    *nn.Linear       `nn:"head"`
	Room    int
}

func newExperts(in *nn.Init) *experts {
	m := &experts{Gate: nn.NewLinear(in.Sub("gate"), nn.LinearConfig{In: 6, Out: 4}),
		Head: nn.NewLinear(in.Sub("head"), nn.LinearConfig{In: 6, Out: 3}), Room: 14}
	for _, name := range []string{"0", "1", "2", "3"} {
		in := in.Sub("experts").Sub(name)
		m.Experts = append(m.Experts, nn.NewSequential(nn.NewLinear(in.Sub("0"), nn.LinearConfig{In: 6, Out: 10}),
			&nn.GELU{},
			nn.NewLinear(in.Sub("2"), nn.LinearConfig{In: 10, Out: 6})))
	}
	return m
}

func (m *experts) loss(c *nn.Ctx, data map[string]*tensor.Tensor) *tensor.Tensor {
	x := data["x"]
	gate := m.Gate.Forward(c, x)
	chances := tensor.Softmax(c.Ctx, gate, -1)
	best, which := tensor.TopK(c.Ctx, chances, 2, -1, false)
	chosen := tensor.OneHot(c.Ctx, which, len(m.Experts), tensor.Float32) // [N, 2, experts]
	busy := tensor.Sum(c.Ctx, chosen, []int{1}, false)
	hasRoom := tensor.Le(c.Ctx, tensor.CumSum(c.Ctx, busy, 0), tensor.Scalar(c.Ctx, tensor.Float32, float64(m.Room)))
	best = tensor.Div(c.Ctx, best, tensor.Sum(c.Ctx, best, []int{-1}, true))
	share := tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, tensor.Unsqueeze(c.Ctx, best, -1), chosen), []int{1}, false)
	share = tensor.Where(c.Ctx, hasRoom, share, tensor.Scalar(c.Ctx, tensor.Float32, 0))
	y := x
	for i, e := range m.Experts {
		y = tensor.Add(c.Ctx, y, tensor.Mul(c.Ctx, tensor.Slice(c.Ctx, share, 1, i, i+1), e.Forward(c, x)))
	}
	balance := tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, tensor.Mean(c.Ctx, busy, []int{0}, false),
		tensor.Mean(c.Ctx, chances, []int{0}, false)), nil, false)
	spread := tensor.Std(c.Ctx, tensor.LogSumExp(c.Ctx, gate, []int{-1}, false), nil, 1, false)
	sum := nn.CrossEntropySumWith(c, m.Head.Forward(c, y), data["labels"],
		nn.CrossEntropyOptions{ClassWeights: data["class_weights"], LabelSmoothing: 0.1})
	mean := tensor.Div(c.Ctx, sum, nn.LabelWeightSum(c, data["labels"], data["class_weights"]))
	extra := tensor.Add(c.Ctx, tensor.Affine(c.Ctx, balance, 0.05*float64(len(m.Experts)), 0),
		tensor.Affine(c.Ctx, spread, 0.01, 0))
	return tensor.Add(c.Ctx, mean, extra)
}

// TestTrials trains three models from PyTorch's weights: the losses of all steps and the last weights are PyTorch's.
func TestTrials(t *testing.T) {
	var manifest struct {
		Trials map[string]struct {
			LearningRate float64 `json:"learning_rate"`
			Losses       []float64
		}
	}
	g := openGolden(t, "trials", &manifest)
	models := map[string]trial{"vae": newVAE(newInit()), "unet": newUNet(newInit()), "experts": newExperts(newInit())}
	require.Len(t, manifest.Trials, len(models))
	for name, m := range models {
		want := manifest.Trials[name]
		c := training()
		params := nn.NamedParameters(m)
		for _, p := range params {
			tensor.CopyInto(c.NoGrad(), p.Tensor, g.load(c, name+"/init/"+p.Name))
		}
		require.Len(t, params, g.count(name+"/init/"), "parameters of %s", name)
		var losses []float64
		for step := range want.Losses {
			c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
				data := map[string]*tensor.Tensor{}
				for _, field := range []string{"x", "noise", "noisy", "clean", "labels", "class_weights"} {
					if path := name + "/data/" + field; g.has(path) {
						data[field] = tensor.Contiguous(c.Ctx, tensor.Select(c.Ctx, g.load(c, path), 0, step))
					}
				}
				loss := m.loss(c, data)
				losses = append(losses, tensor.Item(c.Ctx, loss))
				tensor.Backward(c.Ctx, []*tensor.Tensor{loss}, nil, nil)
				return nil
			})
			for _, p := range params {
				tensor.AxpbyInto(c.NoGrad(), p.Tensor, 1, p.Tensor, -want.LearningRate, p.Grad())
				p.ZeroGrad()
			}
		}
		require.InDeltaSlice(t, want.Losses, losses, 2e-5*want.Losses[0], name)
		last := len(losses) - 1
		require.Less(t, losses[last]+losses[last-1], 1.7*losses[0], "%s: the loss falls", name)
		for _, p := range params {
			requireClose(t, g.load(c, name+"/final/"+p.Name), p.Tensor, 5e-5, name+": "+p.Name)
		}
	}
}

// count is the number of tensors whose path begins so.
func (g *golden) count(prefix string) (n int) {
	for _, e := range g.file.Entries() {
		if strings.HasPrefix(e.Name, prefix) {
			n++
		}
	}
	return n
}
