// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var kinds = []string{"works", "other form", "refused", "no meaning"}

// tabled are the names in the first column of a section's table, and rows that are not as they should be.
func tabled(section string) (names map[string]bool, bad []string) {
	names = map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 3 || strings.TrimSpace(cells[1]) == "" {
			continue
		}
		kind, answer := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		named := aName.MatchString(answer)
		if !slices.Contains(kinds, kind) || kind == "works" && !named || kind != "no meaning" && answer == "" {
			bad = append(bad, strings.TrimSpace(line))
		}
		for _, s := range spans(cells[0]) {
			names[regexp.MustCompile(`^\w+`).FindString(s)] = true
		}
	}
	return names, bad
}

// TestOverriding: the tables of docs/overriding.md have every public member of transformers' Trainer and accelerate's
// Accelerator. What works names the Go that does it, which TestNames checks.
func TestOverriding(t *testing.T) {
	var members struct{ Accelerator, Trainer []string }
	require.NoError(t, json.Unmarshal([]byte(read(t, "tests/docs/testdata/members.json")), &members))
	text := read(t, "docs/overriding.md")
	for title, want := range map[string][]string{"transformers' Trainer": members.Trainer,
		"accelerate's Accelerator": members.Accelerator} {
		_, section, ok := strings.Cut(text, "\n## "+title+"\n")
		require.True(t, ok)
		section, _, _ = strings.Cut(section, "\n## ")
		got, bad := tabled(section)
		require.Empty(t, bad, "rows without a kind of %v, or that work by no Go name", kinds)
		require.Greater(t, len(want), 40)
		for _, name := range want {
			require.True(t, got[name], "docs/overriding.md has no row for %s of %s", name, title)
		}
	}
}

func TestOverridingBites(t *testing.T) {
	names, bad := tabled("| you | | we |\n|---|---|---|\n| `a`, `b(c=1)` | works | `trainer.New` |\n" +
		"| `d` | works | x |\n| `e` | maybe | `trainer.New` |\n")
	require.Equal(t, map[string]bool{"a": true, "b": true, "d": true, "e": true}, names)
	require.Equal(t, []string{"| `d` | works | x |", "| `e` | maybe | `trainer.New` |"}, bad)
}
