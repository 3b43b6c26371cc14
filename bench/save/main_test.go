// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/gpt2"
)

func TestRun(t *testing.T) {
	b := bench{model: gpt2.DefaultConfig(), saves: 3}
	b.model.NLayer, b.model.NEmbd, b.model.NHead, b.model.VocabSize, b.model.NPositions = 1, 16, 2, 50, 8
	var out bytes.Buffer
	require.NoError(t, b.run(&out))
	row := ` +[\d.]+ ms of standstill for a checkpoint of 0 MB \(median of 3\)\n`
	require.Regexp(t, `^async_save false`+row+`async_save true`+row+`RATIO async_save 1 [\d.]+\n$`, out.String())
}
