// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/trainer"
)

// FuzzDecodePredictions: what another rank sends is refused, or it is what is sent again.
func FuzzDecodePredictions(f *testing.F) {
	f.Add(trainer.EncodePredictions([]trainer.Prediction{
		{Index: 3, Shape: []int{2, 1}, Logits: []float32{1, 2}, LabelShape: []int{1}, Labels: []float64{7}},
		{Index: 4, Shape: []int{}, Logits: []float32{5}},
	}))
	head := func(n ...int64) (raw []byte) {
		for _, v := range n {
			raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
		}
		return raw
	}
	f.Add(head(0, 1<<40))
	f.Add(head(0, -1))
	f.Add(head(0, 3, 1<<31, 1<<31, 4))
	f.Add(head(0, 2, 0, -1))
	f.Fuzz(func(t *testing.T, raw []byte) {
		list, err := trainer.DecodePredictions(raw)
		if err != nil {
			return
		}
		require.Equal(t, string(raw), string(trainer.EncodePredictions(list)))
	})
}
