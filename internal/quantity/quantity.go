// SPDX-License-Identifier: Apache-2.0

// Package quantity formats counts for people: "1 step", "2,000 steps".
package quantity

import (
	"strconv"
	"strings"
)

// Of is n and the noun, in the plural unless n is 1: "1 rank", "1,200 classes", "4 batches". It is for nouns whose
// plural ends in s.
func Of[N int | int64](n N, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "ch"):
		noun += "e"
	}
	return Thousands(n) + " " + noun + "s"
}

// Thousands is n with a comma between groups of three digits.
func Thousands[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
