// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/tensor"
)

// onRanks runs body on ranks, each with its group.
type onRanks func(n int, opts comm.Options, body func(g *comm.Group) error) error

// Engines between processes give the same bits.
func TestEngines(t *testing.T) {
	usual := settings{parts: 4, inner: 2048, dropout: 0.1, recompute: true, steps: 4}
	half := usual
	half.lower = tensor.BFloat16
	for name, c := range map[string]struct {
		settings
		ranks []int
	}{
		"float32":     {usual, []int{2, 4}},
		"bf16":        {half, []int{2, 4}},
		"eight parts": {settings{parts: 8, dropout: 0.1, steps: 2}, []int{8}},
		"llama": {settings{parts: 4, steps: 2, config: fmt.Sprintf(`{"model_type": "llama", "vocab_size": %d,
			"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8,
			"num_key_value_heads": 4, "head_dim": 6, "max_position_embeddings": 7}`, vocabulary)}, []int{4}},
	} {
		one := c.run(t, 1)
		for engine, open := range map[string]func(*rendezvous.Job, comm.Options) (*comm.Group, error){"shm": shm.New,
			"tcp": tcp.New} {
			c.on = commtest.Connected(t, open)
			for _, ranks := range c.ranks {
				require.Equal(t, one.hash, c.run(t, ranks).hash, "%s over %s, %d ranks", name, engine, ranks)
			}
		}
	}
}
