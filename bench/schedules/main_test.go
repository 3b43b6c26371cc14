// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/bench/internal/picture"
)

// TestTableIsCurrent: the document has the table that the program prints.
func TestTableIsCurrent(t *testing.T) {
	want, err := table()
	require.NoError(t, err)
	document, err := os.ReadFile("../../docs/three-dimensions.md")
	require.NoError(t, err)
	require.Contains(t, string(document), want)
}

func TestDraw(t *testing.T) {
	p, err := draw(2, 4, "it")
	require.NoError(t, err)
	require.Contains(t, p.SVG(&picture.Themes[0]), "4.0 % idle, activations of 2 micro-batches") // zbv: 0.5 of 12.5
	_, err = draw(4, 4, "it")
	require.ErrorContains(t, err, "schedule dualpipev: 4 micro-batches on 4 ranks")
}
