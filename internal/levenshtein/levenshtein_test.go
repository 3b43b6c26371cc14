// SPDX-License-Identifier: Apache-2.0

package levenshtein_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/levenshtein"
)

func TestDistance(t *testing.T) {
	for _, row := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"env", "evn", 2}, {"kitten", "sitting", 3}, {"same", "same", 0}} {
		require.Equal(t, row.want, levenshtein.Distance(row.a, row.b), row)
	}
}
