// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// The noise has the size of that of transformers' hook (testdata/neftune.py), differs from sample to sample, follows
// only from the samples' keys, and is there in training only, for one table only.
func TestEmbeddingNoise(t *testing.T) {
	text, err := os.ReadFile("testdata/neftune.json")
	require.NoError(t, err)
	var golden struct {
		Cases []struct {
			Shape            []int
			Alpha, Most, Std float64
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden.Cases, 3)
	c := env()
	for _, k := range golden.Cases {
		table := &nn.Embedding{Weight: nn.NewParameter(tensor.Zeros(c.Ctx, tensor.Float32, 3, k.Shape[2]))}
		other := &nn.Embedding{Weight: table.Weight}
		first := 0
		noise := func(e *nn.Embedding, training bool, samples int) []float32 {
			d := c.WithEmbeddingNoise(&nn.EmbeddingNoise{Of: table, Alpha: k.Alpha,
				Key: func(sample int) uint64 { return uint64(first + sample) }})
			d.Training = training
			ids := tensor.Zeros(c.Ctx, tensor.Int32, samples, k.Shape[1])
			return tensor.ToSlice[float32](c.Ctx, e.Forward(d, ids))
		}
		var most, squares, sum, n float64
		for range 200 {
			for _, x := range noise(table, true, k.Shape[0]) {
				v := float64(x)
				most, squares, sum, n = max(most, math.Abs(v)), squares+v*v, sum+v, n+1
			}
			first += k.Shape[0]
		}
		require.InEpsilon(t, k.Most, most, 0.005)
		require.InEpsilon(t, k.Std, math.Sqrt(squares/n), 0.02)
		require.InDelta(t, 0, sum/n, 0.02*most)

		first = 0
		one := k.Shape[1] * k.Shape[2]
		both := noise(table, true, 2)
		require.NotEqual(t, both[:one], both[one:])
		first = 1
		require.Equal(t, both[one:], noise(table, true, 1))
		require.Zero(t, math.Abs(float64(noise(table, false, 1)[0])))
		require.Zero(t, math.Abs(float64(noise(other, true, 1)[0])))
	}
}
