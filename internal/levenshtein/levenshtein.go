// SPDX-License-Identifier: Apache-2.0

// Package levenshtein measures how far two names are apart, for messages that suggest the one that was meant. Package
// args has a distance of its own, which counts swapped letters once.
package levenshtein

// Distance counts insertions, deletions and substitutions (Levenshtein).
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
