// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/bench/internal/workers"
)

// TestMain is the workers' program too: the comparison starts this binary again.
func TestMain(m *testing.M) {
	if !workers.Play(work) {
		os.Exit(m.Run())
	}
}

// small is a comparison that takes no time.
func small(contenders ...string) *bench {
	return &bench{settings: settings{Layers: 2, Width: 32, Heads: 2, Vocabulary: 100, Batch: 1, Block: 8,
		MicroBatches: 4, Ranks: 2, Steps: 2}, rounds: 1, contenders: contenders}
}

// A small run prints a line for each contender, and all have the loss of one rank.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	b := small("one", "1f1b", "zbv", "tp", "parts")
	b.Parts = 2
	b.Timeline = t.TempDir()
	require.NoError(t, b.run(&out))
	require.FileExists(t, filepath.Join(b.Timeline, "zbv.json"))
	line := regexp.MustCompile(`(?m)^(one|1f1b|zbv|tp|parts) +\d+ ms a step .* loss ([\d.]+)`)
	lines := line.FindAllStringSubmatch(out.String(), -1)
	require.Len(t, lines, 5, out.String())
	for _, line := range lines {
		require.Equal(t, lines[0][2], line[2], out.String())
	}
	require.Regexp(t,
		`(?m)^zbv .*[\d.]+ × one  [\d.]+ × 1f1b \([\d.]+ × faster\)  [\d.]+ % idle, predicted [\d.]+ %`,
		out.String())
}

func TestRefuses(t *testing.T) {
	var out bytes.Buffer
	require.ErrorContains(t, small("one", "2f2b").run(&out), `unknown schedule "2f2b"`)
	b := small("dualpipev")
	b.MicroBatches = 2
	require.ErrorContains(t, b.run(&out), "want at least 4")
	require.Empty(t, out.String())
}
