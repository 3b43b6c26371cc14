// SPDX-License-Identifier: Apache-2.0

package metrics

// Stem is stem, for tests.
func Stem(word string) string { return stem(word) }
