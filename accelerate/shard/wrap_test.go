// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Modules are chosen by Go's and transformers' names of their types, or by size from the innermost outwards.
func TestModulesAreWrappedByClassAndSize(t *testing.T) {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 100, 16, 8, 2, 2
	m, err := gpt2.New(nn.NewInit(tensor.NewMeta(), 0), cfg)
	require.NoError(t, err)
	tree := nn.Walk(m)
	paths := func(list []nn.Module) (names []string) {
		tree.Modules(func(path string, m nn.Module) {
			for _, other := range list {
				if other == m {
					names = append(names, path)
				}
			}
		})
		return names
	}
	for name, want := range map[string][]string{
		"GPT2Block":  {"transformer.h.0", "transformer.h.1"},
		"Block":      {"transformer.h.0", "transformer.h.1"},
		"gpt2.Block": {"transformer.h.0", "transformer.h.1"},
	} {
		list, err := ofClasses(tree, []string{name})
		require.NoError(t, err)
		require.Equal(t, want, paths(list), name)
	}
	_, err = ofClasses(tree, []string{"GPT2Block", "LlamaDecoderLayer"})
	require.ErrorContains(t, err, "the model has no module of class LlamaDecoderLayer "+
		"(fsdp_transformer_layer_cls_to_wrap): want one of ")
	require.ErrorContains(t, err, "gpt2.Block")

	// A block has 872 parameters: 296 in attention (216 of its input, 72 of its output), 552 in the perceptron (288 and
	// 264), 32 in norms. The embedding has 800.
	require.Equal(t, []string{"transformer.wte", "transformer.h.0", "transformer.h.1"}, paths(ofSize(tree, 800)))
	// What the perceptrons leave of a block is too little for itself, but with positions and norms 800 are enough.
	require.Equal(t, []string{"transformer", "transformer.wte", "transformer.h.0.mlp", "transformer.h.1.mlp"},
		paths(ofSize(tree, 500)))
	require.Equal(t, []string{"transformer"}, paths(ofSize(tree, 2000)))
	require.Empty(t, ofSize(tree, 1<<20))
}
