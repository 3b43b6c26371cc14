// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
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

// TestPublishedBubbles: from the published times of passes and messages, the simulator gives the published bubbles in
// all of their digits.
func TestPublishedBubbles(t *testing.T) {
	for _, s := range settings {
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
