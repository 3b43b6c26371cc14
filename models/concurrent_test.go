// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// TestForwardFromManyGoroutines: one model answers several goroutines at once, each with its own context, with the bits
// that it has for one. Run it with -race.
func TestForwardFromManyGoroutines(t *testing.T) {
	line, err := mlp.New(nn.NewInit(tensor.CPU(), 3), mlp.Config{Sizes: []int{6, 40, 3}, Loss: "cross_entropy"})
	require.NoError(t, err)
	cfg := resnet.ResNet18("cat", "dog")
	cfg.EmbeddingSize, cfg.HiddenSizes, cfg.Depths = 8, []int{8, 16}, []int{1, 1}
	residual, err := resnet.New(nn.NewInit(tensor.CPU(), 3), cfg)
	require.NoError(t, err)
	classifier, err := gpt2.ClassifierOn(nn.NewInit(tensor.CPU(), 3), smallGPT2(t, 3, nil),
		gpt2.ClassifierConfig{ID2Label: models.Labels("a", "b"), PadTokenID: new(0)})
	require.NoError(t, err)
	integers := func(c *tensor.Ctx, seed uint64, shape ...int) *tensor.Tensor {
		return tensor.Cast(c, tensor.Uniform(c, tensor.Float32, seed, 1, 11, shape...), tensor.Int64)
	}
	texts := func(c *tensor.Ctx, seed uint64) map[string]*tensor.Tensor {
		return map[string]*tensor.Tensor{data.InputIDs: integers(c, seed, 1+int(seed%3), 2+int(seed%5))}
	}
	for name, c := range map[string]struct {
		model models.Model
		batch func(c *tensor.Ctx, seed uint64) map[string]*tensor.Tensor
	}{
		"mlp": {line, func(c *tensor.Ctx, seed uint64) map[string]*tensor.Tensor {
			return map[string]*tensor.Tensor{
				data.Inputs: tensor.Normal(c, tensor.Float32, seed, 0, 1, 1+int(seed%70), 6)}
		}},
		"resnet": {residual, func(c *tensor.Ctx, seed uint64) map[string]*tensor.Tensor {
			return map[string]*tensor.Tensor{data.PixelValues: tensor.Normal(c, tensor.Float32, seed, 0, 1,
				1+int(seed%3), 3, 32, 32)}
		}},
		"gpt2": {smallGPT2(t, 3, nil), texts}, "classifier": {classifier, texts},
	} {
		tree := nn.Walk(c.model) // shared as well
		logits := func(nc *nn.Ctx, seed uint64) (bits []byte) {
			nc.Scope(func(nc *nn.Ctx) []*tensor.Tensor {
				bits = tensor.ReadBytes(nc.Ctx, c.model.Forward(nc, &data.Batch{Tensors: c.batch(nc.Ctx, seed)}).Logits)
				return nil
			})
			return bits
		}
		const goroutines, rounds = 8, 6
		var want [goroutines * rounds][]byte
		for i := range want {
			want[i] = logits(nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), tree, false), uint64(i))
		}
		var all sync.WaitGroup
		var got [goroutines * rounds][]byte
		for g := range goroutines {
			all.Go(func() {
				own := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), tree, false)
				for r := range rounds {
					got[g*rounds+r] = logits(own, uint64(g*rounds+r))
				}
			})
		}
		all.Wait()
		require.Equal(t, want, got, name)
	}
}

// TestGenerateFromManyGoroutines: the cache belongs to the call, the model may be shared.
func TestGenerateFromManyGoroutines(t *testing.T) {
	m := smallGPT2(t, 3, nil)
	write := func(seed int) []int {
		ids, err := generation.Generate(t.Context(), nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, false), m,
			[]int{1 + seed}, generation.Options{MaxNewTokens: 6, Temperature: 1, Seed: uint64(seed)})
		require.NoError(t, err)
		return ids
	}
	var want, got [8][]int
	for i := range want {
		want[i] = write(i)
	}
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i] = write(i) })
	}
	all.Wait()
	require.Equal(t, want, got)
}
