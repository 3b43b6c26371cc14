// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzStateFromJSON: a trainer_state.json is refused, or what it says is what is written again.
func FuzzStateFromJSON(f *testing.F) {
	text, err := (&State{GlobalStep: 3, MaxSteps: 9, LogHistory: []Record{{"loss": 1.5, "step": 3}}}).JSON()
	require.NoError(f, err)
	f.Add(text)
	f.Add(
		[]byte(
			`{"global_step": 1e3, "log_history": [null, {"loss": NaN}], "stateful_callbacks": {"x": []}, "best_metric": 1e400}`))
	f.Add([]byte(`{"log_history": {}, "epoch": "2", "global_step": 9223372036854775807}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := StateFromJSON(text)
		if err != nil {
			return
		}
		written, err := s.JSON()
		require.NoError(t, err)
		again, err := StateFromJSON(written)
		require.NoError(t, err)
		twice, err := again.JSON()
		require.NoError(t, err)
		require.Equal(t, string(written), string(twice))
	})
}
