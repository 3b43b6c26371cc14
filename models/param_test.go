// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A forward pass asks the context for every parameter of the model, with logits and without.
func TestModelsAskForParameters(t *testing.T) {
	in := nn.NewInit(tensor.CPU(), 1)
	line, err := mlp.New(in, mlp.Config{Sizes: []int{2, 5, 1}})
	require.NoError(t, err)
	cfg := resnet.ResNet18("cat", "dog")
	cfg.HiddenSizes, cfg.Depths = []int{4, 8}, []int{1, 1}
	images, err := resnet.New(in, cfg)
	require.NoError(t, err)
	lm := smallGPT2(t, 1, func(c *gpt2.Config) { c.TieWordEmbeddings = false })
	classifier, err := gpt2.ClassifierOn(in, lm, gpt2.ClassifierConfig{ID2Label: gpt2.Labels("a", "b"), PadTokenID: new(int)})
	require.NoError(t, err)
	for _, m := range []models.Model{line, images, lm, classifier} {
		for _, lossOnly := range []bool{false, true} {
			names, asked := map[*tensor.Tensor]string{}, map[string]bool{}
			tree := nn.Walk(m)
			for _, p := range tree.Parameters() {
				names[p.Tensor] = p.Name
			}
			c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), tree, true)
			if lossOnly {
				c = c.WithLossOnly()
			}
			c = c.WithParam(func(_ *nn.Ctx, p *nn.Parameter, v *tensor.Tensor) *tensor.Tensor {
				asked[names[p.Tensor]] = true
				return v
			})
			m.Forward(c, m.(models.Example).ExampleBatch(c.Ctx, 2, 8))
			require.Len(t, asked, len(names), "%T asked for %v", m, asked)
		}
	}
}
