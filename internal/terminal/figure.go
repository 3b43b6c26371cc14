// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"strconv"
	"strings"
)

// Thousands gives a number with a comma between groups of three digits.
func Thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Count gives a number of things, as "1 rank" or "1,200 classes"; what is one of them.
func Count(n int64, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "s"):
		what += "e"
	}
	return Thousands(n) + " " + what + "s"
}
