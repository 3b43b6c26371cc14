// SPDX-License-Identifier: Apache-2.0

// Package quantity words numbers of things for people: "1 step", "2 steps".
package quantity

import "fmt"

// Of is n and the noun, in the plural unless n is 1. It is for nouns whose plural has an s.
func Of[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
