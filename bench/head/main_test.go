// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var out bytes.Buffer
	bench{rows: 600, width: 8, vocab: 20_000, threads: 1, rounds: 1}.run(&out)
	require.Regexp(t,
		`(?m)^separate +[\d.]+ ms +\d+ MiB\nfused +[\d.]+ ms +\d+ MiB\nfused / separate: [\d.]+ of the time \(median of the rounds\), 0\.[\d]+ of the memory$`, out.String())
}
