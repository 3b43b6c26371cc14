// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Ranks that share a model generate with the parts of its matrices, and keep the keys and values of their own heads:
// the logits of each token have the bits of one rank.
func TestGeneration(t *testing.T) {
	for _, family := range []string{"gpt2", "llama", "qwen2", "qwen3"} {
		s := settings{parts: 4}
		if family != "gpt2" {
			s.config = fmt.Sprintf(`{"model_type": %q, "vocab_size": %d, "hidden_size": 32, "intermediate_size": 64,
				"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 6,
				"max_position_embeddings": 7}`, family, vocabulary)
		}
		one := s.logits(t, 1)
		for _, ranks := range []int{2, 4} {
			require.Equal(t, one, s.logits(t, ranks), "%s on %d ranks", family, ranks)
		}
		s.parts = 2
		require.NotEqual(t, one, s.logits(t, 2), "%s: a control: other parts", family)
	}
}

// logits are those of the tokens behind a prompt, in hexadecimal.
func (s settings) logits(t *testing.T, ranks int) string {
	texts, mu := map[string]bool{}, sync.Mutex{}
	require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
		m, root := s.model(t), tensor.NewCtx(tensor.CPU()).NoGrad()
		plan, err := tp.ParsePlan(m.TPPlan())
		if err != nil {
			return err
		}
		d, err := tp.Divide(root, m, tp.Config{Group: g, Plan: plan, Parts: s.parts})
		if err != nil {
			return err
		}
		c, b := nn.NewCtx(root, d.Tree(), false), strings.Builder{}
		cache := m.(models.Generator).NewCache(c, 1)
		defer cache.Free()
		for ids := []int64{3, 1, 4}; cache.Len() < 6; ids = ids[:1] {
			c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
				y := m.(models.Generator).Next(c, tensor.FromSlice(c.Ctx, ids, 1, len(ids)), cache)
				fmt.Fprintf(&b, "%x ", tensor.ReadBytes(c.Ctx, y))
				return nil
			})
			ids[0]++
		}
		mu.Lock()
		defer mu.Unlock()
		texts[b.String()] = true
		return nil
	}))
	require.Len(t, texts, 1, "all ranks have the same")
	return slices.Collect(maps.Keys(texts))[0]
}
