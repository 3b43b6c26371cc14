// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/gpt2"
)

func TestRun(t *testing.T) {
	b := bench{model: gpt2.DefaultConfig(), batch: 2, threads: 1, steps: 4, rounds: 2}
	b.model.NLayer, b.model.NEmbd, b.model.NHead, b.model.VocabSize, b.model.NPositions = 1, 16, 2, 50, 8
	var out bytes.Buffer
	require.NoError(t, b.run(&out))
	row := ` +[\d.]+ ms a step +\d+ allocations +\d+ bytes  collector [\d.]+ % of CPU\n`
	require.Regexp(t, `^bare loop`+row+`trainer`+row+
		`trainer / bare loop: [\d.]+ \(median of the rounds\)\nRATIO trainer_loop \d [\d.]+\n$`, out.String())
}
