// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var out bytes.Buffer
	b := bench{hidden: 8, inner: 16, layers: 1, heads: 2, kv: 1, vocabulary: 50, threads: 1, rounds: 1, tokens: 2,
		prompt: 20, out: &out}
	require.NoError(t, b.run(t.Context()))
	require.Regexp(t, `(?m)^decode, 8 callers +\S+ tokens/s$`, out.String())
	require.Regexp(t, `(?m)^RATIO decode, 8 texts / decode 1 \S+$`, out.String())
}
