// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

// span is a dataset of the numbers first, first+1 … of which it counts those that are read.
type span struct {
	first, n int
	read     *int
	blind    bool // its cursors are no Seekers
}

func (s span) Fingerprint() string { return fmt.Sprint(s.first, s.n) }

func (s span) Open(context.Context, int64) (Cursor[int], error) {
	c := &spanCursor{span: s}
	if s.blind {
		return struct{ Cursor[int] }{c}, nil
	}
	return c, nil
}

type spanCursor struct {
	span
	at int
}

func (c *spanCursor) Next() (int, error) {
	if c.at == c.n {
		return 0, io.EOF
	}
	if c.read != nil {
		*c.read++
	}
	c.at++
	return c.first + c.at - 1, nil
}

func (c *spanCursor) Place() (json.RawMessage, error) { return json.Marshal(c.at) }
func (c *spanCursor) Seek(to json.RawMessage) error   { return json.Unmarshal(to, &c.at) }
func (c *spanCursor) Close() error                    { return nil }

func openCursor[T any](t testing.TB, set Iterable[T], epoch int64) Cursor[T] {
	c, err := set.Open(t.Context(), epoch)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// drain are the samples of a cursor, and its places before each and at the end.
func drain[T any](t testing.TB, c Cursor[T]) (list []T, places []json.RawMessage) {
	for {
		if s, ok := c.(Seeker); ok {
			place, err := s.Place()
			require.NoError(t, err)
			places = append(places, place)
		}
		v, err := c.Next()
		if err == io.EOF {
			return list, places
		}
		require.NoError(t, err)
		list = append(list, v)
	}
}

func numbersTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

func TestShuffle(t *testing.T) {
	for _, c := range []struct{ n, buffer int }{{0, 3}, {1, 1}, {200, 1}, {5, 8}, {150, 7}, {120, 50}, {100, 100}} {
		set := Shuffle[int](span{n: c.n}, c.buffer, 7)
		got, places := drain(t, openCursor(t, set, 1))
		require.ElementsMatch(t, numbersTo(c.n), got, "%+v", c)
		require.Equal(t, c.buffer == 1 || c.n < 2, slices.IsSorted(got), "%+v", c)
		for i, v := range got {
			require.Less(t, v, i+c.buffer, "at most a buffer early")
		}
		for i, place := range places { // a resume at each of them neither repeats nor leaves out a sample
			resumed := openCursor(t, set, 1)
			require.NoError(t, resumed.(Seeker).Seek(place))
			rest, again := drain(t, resumed)
			require.True(t, slices.Equal(got[i:], rest), "%+v at %s: %v, %v", c, place, got[i:], rest)
			require.Equal(t, places[len(places)-1], again[len(again)-1])
		}
	}
	first, _ := drain(t, openCursor(t, Shuffle[int](span{n: 50}, 10, 7), 0))
	same, _ := drain(t, openCursor(t, Shuffle[int](span{n: 50}, 10, 7), 0))
	seed, _ := drain(t, openCursor(t, Shuffle[int](span{n: 50}, 10, 8), 0))
	epoch, _ := drain(t, openCursor(t, Shuffle[int](span{n: 50}, 10, 7), 1))
	require.Equal(t, first, same)
	require.NotEqual(t, first, seed)
	require.NotEqual(t, first, epoch)
	_, err := Shuffle[int](span{n: 50}, 0, 7).Open(t.Context(), 0)
	require.ErrorContains(t, err, "a shuffle buffer of 0 samples: want at least 1")
}

// A resume reads what the buffer needs, not the whole epoch; the place stays short.
func TestShuffleResumesNearItsPlace(t *testing.T) {
	const n, buffer = 5_000, 50
	read := 0
	set := Shuffle[int](span{n: n, read: &read}, buffer, 1)
	got, places := drain(t, openCursor(t, set, 0))
	for _, at := range []int{64, 2000, n - 1} {
		resumed := openCursor(t, set, 0)
		read = 0
		require.NoError(t, resumed.(Seeker).Seek(places[at]))
		require.Less(t, read, 20*buffer)
		v, err := resumed.Next()
		require.NoError(t, err)
		require.Equal(t, got[at], v)
		require.Less(t, len(places[at]), 100)
	}
	c := openCursor(t, set, 0).(*shuffleCursor[int])
	for range n { // nobody asks for places
		_, err := c.Next()
		require.NoError(t, err)
		require.Less(t, len(c.marks), buffer)
	}

	for _, bad := range []string{`{`, `{"given":-1}`, `{"given":5,"read":4}`, `{"given":5,"read":60}`,
		`{"given":500,"read":549,"from":540,"at":540}`,
		`{"given":4000,"read":4049,"from":3990,"at":3990}`} {
		require.Error(t, openCursor(t, set, 0).(Seeker).Seek([]byte(bad)), bad)
	}
	place, err := openCursor(t, Shuffle[int](span{n: 3, blind: true}, 2, 0), 0).(Seeker).Place()
	require.NoError(t, err)
	require.Nil(t, place, "the source reads up to its place then")
}

// In turn, the order is that of datasets.
func TestInterleaveInTurnIsThatOfDatasets(t *testing.T) {
	text, err := os.ReadFile("testdata/interleave.json")
	require.NoError(t, err)
	var cases []struct {
		Sizes    []int
		Strategy StoppingStrategy
		Order    []int
	}
	require.NoError(t, json.Unmarshal(text, &cases))
	require.Len(t, cases, 12)
	for _, c := range cases {
		var sets []Iterable[int]
		for i, n := range c.Sizes {
			sets = append(sets, span{first: 100 * i, n: n})
		}
		set, err := Interleave(sets, nil, 0, c.Strategy)
		require.NoError(t, err)
		got, _ := drain(t, openCursor(t, set, 0))
		require.Equal(t, c.Order, got, "%v %s", c.Sizes, c.Strategy)
	}
}

// reference is what Interleave must give, by the draws of its random numbers.
func reference(sizes []int, shares []float64, key uint64, stop StoppingStrategy) (list []int) {
	at, exhausted := make([]int, len(sizes)), make([]bool, len(sizes))
	for n := uint64(0); ; n++ {
		x, i := rng.Float64At(key, 0, n), 0
		for ; x >= shares[i]; i++ {
			x -= shares[i]
		}
		if exhausted[i] && stop != AllExhausted {
			continue
		}
		list = append(list, 100_000*i+at[i])
		if at[i]++; at[i] == sizes[i] {
			at[i], exhausted[i] = 0, true
			if stop == FirstExhausted || !slices.Contains(exhausted, false) {
				return list
			}
		}
	}
}

func TestInterleaveByProbabilities(t *testing.T) {
	sizes, shares := []int{500, 90, 2000}, []float64{0.5, 0.125, 0.375}
	for _, stop := range StoppingStrategies() {
		var sets []Iterable[int]
		for i, n := range sizes {
			sets = append(sets, span{first: 100_000 * i, n: n})
		}
		set, err := Interleave(sets, []float64{4, 1, 3}, 3, stop)
		require.NoError(t, err)
		got, places := drain(t, openCursor(t, set, 2))
		require.Equal(t, reference(sizes, shares, rng.Key(3, "data.Interleave", 2), stop), got)
		counts := make([]float64, 3)
		for _, v := range got[:600] {
			counts[v/100_000]++
		}
		for i, share := range shares { // four standard deviations
			require.InDelta(t, 600*share, counts[i], 4*math.Sqrt(600*share*(1-share)))
		}
		if stop == AllExhaustedWithoutReplacement {
			require.Len(t, got, 2590)
		}
		for at := 0; at < len(places); at += 37 {
			resumed := openCursor(t, set, 2)
			require.NoError(t, resumed.(Seeker).Seek(places[at]))
			rest, _ := drain(t, resumed)
			require.Equal(t, got[at:], append([]int{}, rest...), "%s at %s", stop, places[at])
		}
		other, _ := drain(t, openCursor(t, set, 0))
		require.NotEqual(t, got, other, "another epoch")
	}
}

func TestInterleaveRefuses(t *testing.T) {
	one, none := Iterable[int](span{n: 1}), Iterable[int](span{})
	two := []Iterable[int]{one, one}
	for want, c := range map[string]struct {
		sets          []Iterable[int]
		probabilities []float64
		stop          StoppingStrategy
	}{
		"no dataset to interleave":                             {nil, nil, FirstExhausted},
		"1 probabilities for 2 datasets: want one of each":     {two, []float64{1}, AllExhausted},
		"a probability of 0: want more than 0":                 {two, []float64{1, 0}, AllExhausted},
		"a probability of NaN: want more than 0":               {two[:1], []float64{math.NaN()}, AllExhausted},
		`stopping strategy "never": want one of ["first_exhau`: {[]Iterable[int]{one}, nil, "never"},
	} {
		_, err := Interleave(c.sets, c.probabilities, 0, c.stop)
		require.ErrorContains(t, err, want)
	}
	set, err := Interleave([]Iterable[int]{one, none}, nil, 0, AllExhausted)
	require.NoError(t, err)
	_, err = openCursor(t, set, 0).Next()
	require.EqualError(t, err, "dataset 2 of 2: it has no sample")
	for _, bad := range []string{`[]`, `{}`, `{"parts":[{}]}`, `{"began":true,"parts":[{},{}]}`,
		`{"drawn":-1,"parts":[{},{}]}`} {
		require.Error(t, openCursor(t, set, 0).(Seeker).Seek([]byte(bad)), bad)
	}
	set, err = Interleave([]Iterable[int]{one, span{n: 3, blind: true}}, nil, 0, AllExhausted)
	require.NoError(t, err)
	_, err = openCursor(t, set, 0).Next()
	require.NoError(t, err)
}

// A shuffled mixture of shuffled sets resumes at any place too.
func TestMixturesAreNested(t *testing.T) {
	build := func(first int) Iterable[int] {
		set, err := Interleave([]Iterable[int]{Shuffle[int](span{first: first, n: 90}, 8, 1),
			span{first: first + 1000, n: 20}}, []float64{3, 1}, 5, AllExhausted)
		require.NoError(t, err)
		return Shuffle(set, 16, 2)
	}
	got, places := drain(t, openCursor(t, build(0), 0))
	for at := 0; at < len(places); at += 11 {
		resumed := openCursor(t, build(0), 0)
		require.NoError(t, resumed.(Seeker).Seek(places[at]))
		rest, _ := drain(t, resumed)
		require.Equal(t, got[at:], append([]int{}, rest...))
	}
	one, other := build(0).(Fingerprinter).Fingerprint(), build(1).(Fingerprinter).Fingerprint()
	require.NotEmpty(t, one)
	require.NotEqual(t, one, other)
	require.Empty(t, Shuffle(upTo(3, nil), 4, 0).(Fingerprinter).Fingerprint())
}
