// SPDX-License-Identifier: Apache-2.0

package data

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// squares has each even number's square twice, and no odd number's.
func squares(list []int) (out []int, err error) {
	for _, v := range list {
		if v%2 == 0 {
			out = append(out, v*v, v*v)
		}
	}
	return out, nil
}

// A map sees batches in their order, and a resume at any place neither repeats nor leaves out a sample.
func TestMap(t *testing.T) {
	for _, c := range []struct{ n, batch int }{{0, 3}, {1, 4}, {20, 1}, {21, 4}, {20, 50}} {
		set := Map[int](span{n: c.n}, "squares", c.batch, squares)
		got, places := drain(t, openCursor(t, set, 0))
		want, err := squares(numbersTo(c.n))
		require.NoError(t, err)
		require.Equal(t, want, got, "%+v", c)
		for i, place := range places {
			resumed := openCursor(t, set, 0)
			require.NoError(t, resumed.(Seeker).Seek(place))
			rest, _ := drain(t, resumed)
			require.True(t, slices.Equal(got[i:], rest), "%+v at %s: %v, %v", c, place, got[i:], rest)
		}
	}
	sizes, _ := drain(t, openCursor(t, Map[int](span{n: 7}, "sizes", 3, func(list []int) ([]int, error) {
		return []int{len(list)}, nil
	}), 0))
	require.Equal(t, []int{3, 3, 1}, sizes)

	shuffled := Shuffle(Map[int](span{n: 40}, "squares", 8, squares), 5, 1)
	got, places := drain(t, openCursor(t, shuffled, 0))
	resumed := openCursor(t, shuffled, 0)
	require.NoError(t, resumed.(Seeker).Seek(places[23]))
	rest, _ := drain(t, resumed)
	require.Equal(t, got[23:], rest)
}

func TestMapFaults(t *testing.T) {
	_, err := Map[int](span{n: 1}, "squares", 0, squares).Open(t.Context(), 0)
	require.ErrorContains(t, err, "a map of 0 samples at a time: want at least 1")
	odd := errors.New("odd")
	c := openCursor(t, Map[int](span{n: 4}, "odd", 2, func([]int) ([]int, error) { return nil, odd }), 0)
	_, err = c.Next()
	require.ErrorIs(t, err, odd)
	for place, want := range map[string]string{
		`{"at": 0, "given": 9}`: "is behind the 2 samples that were made there", `{"given": 1}`: "is not one of this",
		`{"at": 0, "given": -1}`: "is not one of this", `7`: `the place "7"`,
	} {
		c := openCursor(t, Map[int](span{n: 4}, "squares", 2, squares), 0)
		require.ErrorContains(t, c.(Seeker).Seek(json.RawMessage(place)), want)
	}
	place, err := openCursor(t, Map[int](span{n: 4, blind: true}, "squares", 2, squares), 0).(Seeker).Place()
	require.NoError(t, err)
	require.Nil(t, place)
	print := func(set Iterable[int]) string { return set.(Fingerprinter).Fingerprint() }
	require.Equal(t, print(Map[int](span{n: 4}, "a", 2, squares)), print(Map[int](span{n: 4}, "a", 2, squares)))
	require.NotEqual(t, print(Map[int](span{n: 4}, "a", 2, squares)), print(Map[int](span{n: 4}, "b", 2, squares)))
	require.NotEqual(t, print(Map[int](span{n: 4}, "a", 2, squares)), print(Map[int](span{n: 4}, "a", 3, squares)))
}
