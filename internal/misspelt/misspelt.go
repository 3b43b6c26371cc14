// SPDX-License-Identifier: Apache-2.0

// Package misspelt finds the closest known name, for suggestions in messages.
package misspelt

import (
	"slices"
	"strings"
)

// Nearest is the candidate that differs by one mistake, else the first that begins with name as a word, else the one
// with the smallest distance to name, else the first that has all words of name, or "" where none is near enough to be
// what was meant.
func Nearest(name string, candidates []string) string {
	best, bestDistance := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if max(len(c)-len(name), len(name)-len(c)) >= bestDistance {
			continue // the lengths alone are that far apart
		}
		if d := Distance(name, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	if best != "" && bestDistance <= 1 || len(name) < shortest {
		return best
	}
	whole := strings.TrimSuffix(name, "_") + "_"
	if i := slices.IndexFunc(candidates, func(c string) bool { return strings.HasPrefix(c, whole) }); i >= 0 {
		return candidates[i]
	}
	words := strings.Split(name, "_")
	if best != "" || len(words) < 2 {
		return best
	}
	i := slices.IndexFunc(candidates, func(c string) bool {
		has := strings.Split(c, "_")
		return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(has, w) })
	})
	if i < 0 {
		return ""
	}
	return candidates[i]
}

// shortest is the length of a name that says what the longer ones that begin with it are about.
const shortest = 4

// Suggestion asks for the nearest candidate, with the prefix that its users write before names; otherwise is said where
// none is near.
func Suggestion(name, prefix string, candidates []string, otherwise string) string {
	if n := Nearest(name, candidates); n != "" {
		return "did you mean " + prefix + n + "?"
	}
	return otherwise
}

// Distance is the optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours, one
// each.
func Distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
