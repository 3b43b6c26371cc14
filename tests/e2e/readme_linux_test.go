// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/screen"
)

// pictured are the lines of the README's picture of a terminal.
func pictured(t *testing.T) []string {
	t.Helper()
	svg, err := os.ReadFile(filepath.Join(root, "docs/figures/readme-run-light.svg"))
	require.NoError(t, err)
	var file struct {
		Texts []struct {
			Class string `xml:"class,attr"`
			Y     string `xml:"y,attr"`
			Text  string `xml:",chardata"`
		} `xml:"text"`
	}
	require.NoError(t, xml.Unmarshal(svg, &file))
	var lines []string
	y := ""
	for _, one := range file.Texts {
		switch {
		case !strings.Contains(one.Class, "mono"): // the window's title
		case one.Y == y:
			lines[len(lines)-1] += " " + one.Text
		default:
			lines, y = append(lines, one.Text), one.Y
		}
	}
	return lines
}

var (
	numbers = regexp.MustCompile(`\d[\d.,]*(?:e-\d+|k|m\d+)?`)
	kernels = regexp.MustCompile(`cpu \(\w+, # threads?\)`)
	blanks  = regexp.MustCompile(`\s+`)
)

// shape is a line without its numbers and the machine's kernels.
func shape(line string) string {
	line = kernels.ReplaceAllString(numbers.ReplaceAllString(line, "#"), "cpu")
	return strings.TrimSpace(blanks.ReplaceAllString(line, " "))
}

// TestReadmePicture: up to its first step and at its end, the README's command prints today what the README's picture
// shows, apart from numbers.
func TestReadmePicture(t *testing.T) {
	lines := pictured(t)
	require.Equal(t, "$ go run ./examples/clm", lines[0])
	first := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "step ") })
	require.Greater(t, first, 5)

	typed := false
	s, code := onTerminal(t, 80, nil, func(s *screen.Screen, keyboard io.Writer) {
		if !typed && strings.Contains(s.Text(), " steps of ") {
			typed = true
			_, err := keyboard.Write([]byte{3})
			require.NoError(t, err)
		}
	})
	require.Equal(t, 130, code, "%s", s.Text())
	var printed []string
	for line := range strings.Lines(s.Text()) {
		printed = append(printed, shape(line))
	}
	for i, line := range lines[1:first] {
		require.Equal(t, shape(line), printed[i], "record the picture again: bench/readme/run.sh\n%s", s.Text())
	}
	for _, word := range []string{"saved ", "train "} { // why it ended is another line for an interrupt
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, word) })
		require.GreaterOrEqual(t, i, 0, word)
		require.Contains(t, strings.Join(printed, "\n"), "\n"+shape(lines[i]),
			"record the picture again: bench/readme/run.sh")
	}
}
