// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTablesAreCurrent: the document has the tables that the program prints.
func TestTablesAreCurrent(t *testing.T) {
	document, err := os.ReadFile("../../docs/three-dimensions.md")
	require.NoError(t, err)
	for _, table := range []func() (string, error){table, comparison} {
		want, err := table()
		require.NoError(t, err)
		require.Contains(t, string(document), want)
	}
}

// unmeasured are the other settings of Qi et al., which take too long to measure.
var unmeasured = []setting{
	zeroBubble("14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.1088),
	zeroBubble("14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0576),
	zeroBubble("28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421),
	zeroBubble("28.3B", 32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1106),
	zeroBubble("28.3B", 32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0594),
}

// TestPublishedBubbles: from the published times of passes and messages, the simulator gives the published bubbles in
// all of their digits.
func TestPublishedBubbles(t *testing.T) {
	for _, s := range slices.Concat(settings, unmeasured) {
		for name, want := range s.bubbles {
			got, err := s.bubble(name)
			require.NoError(t, err)
			require.InDelta(t, want, got, 0.5001e-4, "%s of %s, m = %d", name, s.model, s.microBatches)
		}
	}
}

func TestDraw(t *testing.T) {
	p, err := draw(2, 4, "it")
	require.NoError(t, err)
	require.Contains(t, p.SVG(), "4.0 % idle, activations of 2 micro-batches") // zbv: 0.5 of 12.5
	_, err = draw(4, 4, "it")
	require.ErrorContains(t, err, "schedule dualpipev: 4 micro-batches on 4 ranks")
}

// A step whose passes sleep has a bubble. The record has one for every row.
func TestMeasured(t *testing.T) {
	s := zeroBubble("short", 2, 4, 2, 2, 1, 0, 0, 0)
	for _, name := range s.names() {
		bubble, err := s.measure(name)
		require.NoError(t, err)
		require.Positive(t, bubble)
		require.Less(t, bubble, 1.0)
	}
	seen, err := measured()
	require.NoError(t, err)
	for _, s := range settings {
		for _, name := range s.names() {
			require.Positive(t, seen[s.key(name)], s.key(name))
		}
	}
}
