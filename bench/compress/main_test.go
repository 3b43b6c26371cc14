// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// A rank alone learns the language and prints what it measured.
func TestRun(t *testing.T) {
	s := settings{layers: 1, width: 16, vocabulary: 8, batch: 4, block: 16, steps: 20, hook: "no", options: "{}"}
	measure := func(warm int) (r result) {
		s.warm = warm
		var out bytes.Buffer
		require.NoError(t, s.run(&out))
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		return r
	}
	first, later := measure(0), measure(200)
	require.Positive(t, first.Seconds)
	require.Equal(t, 8*16+16*16+(12*16*16+13*16)+2*16, first.Parameters)
	require.Less(t, later.Loss, first.Loss-0.05)

	s.hook, s.options = "top_k", `{"density": 2}`
	require.ErrorContains(t, s.run(&bytes.Buffer{}), "ddp_comm_state_option")
}
