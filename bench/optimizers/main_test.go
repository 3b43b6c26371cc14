// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/gpt2"
)

func TestRun(t *testing.T) {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 1, 64, 1, 100, 16
	var out bytes.Buffer
	require.NoError(t, bench{cfg: cfg, names: []string{"adamw_bnb_8bit"}, threads: 1, rounds: 1}.run(&out))
	require.Regexp(t, `^parameters \d+, 1 threads\nadamw_torch .* state 1.000\n`+
		`adamw_bnb_8bit .* state 0\.3\d\d, 0\.254 of what would be float32\n$`, out.String())
}
