// SPDX-License-Identifier: Apache-2.0

package feed_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/samplers"
)

// Places are in checkpoints: their text stays as it is.
func TestPlacesAsText(t *testing.T) {
	for text, want := range map[string]feed.Place{
		`{"seed":7,"epoch":1,"position":12,"num_samples":8}`: {
			Sized: &samplers.Place{Seed: 7, Epoch: 1, Position: 12, Samples: 8}},
		`{"seed":0,"epoch":0,"position":2,"num_samples":8,"order_fingerprint":5}`: {
			Sized: &samplers.Place{Position: 2, Samples: 8, Order: 5}},
		`{"iterable":true,"epoch":2,"items":6,"windows":3,"position":50,"cursor":{"line":4}}`: {
			Iterable: &feed.IterablePlace{Iterable: true, IterableState: samplers.IterableState{Epoch: 2, Items: 6},
				Windows: 3, Position: 50, Cursor: json.RawMessage(`{"line":4}`)}},
	} {
		got, err := json.Marshal(want)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
		var back feed.Place
		require.NoError(t, json.Unmarshal([]byte(text), &back))
		require.Equal(t, want, back)
	}
	for _, text := range []string{`[]`, `{"iterable":1}`, `{"position":"x"}`} {
		var back feed.Place
		require.Error(t, json.Unmarshal([]byte(text), &back), text)
	}
	var none feed.Place
	require.NoError(t, json.Unmarshal([]byte(`null`), &none))
}
