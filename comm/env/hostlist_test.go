// SPDX-License-Identifier: Apache-2.0

package env

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestExpandHostList(t *testing.T) {
	for _, row := range []struct {
		in   string
		want []string
	}{
		{"a", []string{"a"}},
		{"a,b.example", []string{"a", "b.example"}},
		{"n[1-3]", []string{"n1", "n2", "n3"}},
		{"n[08-10,12]-ib,login", []string{"n08-ib", "n09-ib", "n10-ib", "n12-ib", "login"}},
		{"r[1-2]n[0-1]", []string{"r1n0", "r1n1", "r2n0", "r2n1"}},
		{"n[099-101]", []string{"n099", "n100", "n101"}},
		{"[1,3]", []string{"1", "3"}},
	} {
		got, err := ExpandHostList(row.in)
		require.NoError(t, err, row.in)
		require.Equal(t, row.want, got, row.in)
	}
	for _, in := range []string{"", ",", "a,", "n[1-3", "n1-3]", "n[[1]]", "n[]", "n[3-1]", "n[a-b]", "n[1-2-3]",
		"n[0-4294967295]", "n[0-99999]m[0-99999]",
		strings.Repeat("n", 256) + "[0-1000000]", "n[" + strings.Repeat("0", 1000) + "1-1000000]"} {
		_, err := ExpandHostList(in)
		require.ErrorContains(t, err, "host list", in)
	}
}

// Whatever the text, expansion ends and never yields an empty or bracketed name.
func TestExpandHostListTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.StringMatching(`[a0-9\[\],-]{0,16}`).Draw(t, "text")
		hosts, err := ExpandHostList(in)
		if err != nil {
			return
		}
		require.NotEmpty(t, hosts)
		for _, h := range hosts {
			require.NotEmpty(t, h)
			require.False(t, strings.ContainsAny(h, "[],"), h)
		}
	})
}

func TestExpandCounts(t *testing.T) {
	got, err := expandCounts("2(x3),1")
	require.NoError(t, err)
	require.Equal(t, []int{2, 2, 2, 1}, got)
	for _, in := range []string{"", "0", "x", "2(x0)", "2(x3", "2(3)", "2(x99999999)", "2,,1"} {
		_, err := expandCounts(in)
		require.ErrorContains(t, err, "is not a count", in)
	}
}

// FuzzExpandHostList: a list is refused, or its names have a bounded length and no brackets.
func FuzzExpandHostList(f *testing.F) {
	for _, text := range []string{"n[08-10,12]-ib,login", "r[1-2]n[0-1]", "[1-3]", "n[0-1048576]", "a[0][0][0][0]"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 1 << 10 // a few bytes can stand for a million hosts, which take too long for a fuzz test
		hosts, err := expandHostList(text, limit)
		if err != nil {
			require.ErrorContains(t, err, "host list")
			return
		}
		require.NotEmpty(t, hosts)
		require.LessOrEqual(t, len(hosts), limit)
		for _, h := range hosts {
			require.NotContains(t, h, "[")
		}
	})
}
