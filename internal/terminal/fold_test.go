// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

func TestFold(t *testing.T) {
	facts := []string{"gpt2 of 2 layers", "width 128", "929,280 parameters"}
	for width, want := range map[int]string{
		0:  "gpt2 of 2 layers, width 128, 929,280 parameters",
		47: "gpt2 of 2 layers, width 128, 929,280 parameters",
		46: "gpt2 of 2 layers, width 128,\n  929,280 parameters",
		20: "gpt2 of 2 layers,\n  width 128,\n  929,280 parameters",
		19: "gpt2 of 2 layers,\n  width 128,\n  929,280\n  parameters",
		9:  "gpt2 of 2\n  layers,\n  width\n  128,\n  929,280\n  parameters",
	} {
		require.Equal(t, want, strings.Join(terminal.Fold(facts, ", ", width, "", "  "), "\n"), "width %d", width)
	}
	require.Equal(t, []string{"a bb", "  ccc", "  dddddd", "  e"}, terminal.Words("a bb ccc dddddd e", 5, "  "))
	require.Equal(t, []string{"left  alone"}, terminal.Words("left  alone", 0, "  "))
	require.Equal(t, []string{""}, terminal.Fold(nil, ", ", 20, "", "  "))
	require.Equal(t, []string{"model    gpt2 of 2", "  layers,", "  width 128"},
		terminal.Fold(facts[:2], ", ", 18, "model    ", "  ")[:3])
}

// Lines keeps the blanks of what fits; Paragraphs refills broken lines, and leaves lists alone.
func TestLinesAndParagraphs(t *testing.T) {
	const text = "a  list:\n\n  one of its\n  two\n\nthe end is\nnear, it is\n\n"
	require.Equal(t, text, terminal.Lines(text, 0))
	require.Equal(t, text, terminal.Paragraphs(text, 0))
	require.Equal(t, "a  list:\n\n  one of\n    its\n  two\n\nthe end\n  is\nnear, it\n  is\n\n",
		terminal.Lines(text, 9))
	require.Equal(t, "a list:\n\n  one of its\n  two\n\nthe end is near,\nit is\n\n", terminal.Paragraphs(text, 16))
	require.Equal(t, "the end is\nnear\n", terminal.Paragraphs("the end\nis near\n", 10))
}

func TestCut(t *testing.T) {
	require.Equal(t, "ab…", terminal.Cut("abcd", 3))
	require.Equal(t, "…cd", terminal.CutLeft("abcd", 3))
	require.Equal(t, "abcd", terminal.Cut("abcd", 4))
	require.Equal(t, "abcd", terminal.CutLeft("abcd", 4))
	require.Empty(t, terminal.Cut("abcd", 0))
	require.Empty(t, terminal.CutLeft("abcd", 0))
}
