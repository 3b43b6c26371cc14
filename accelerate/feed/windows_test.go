// SPDX-License-Identifier: Apache-2.0

package feed_test

import (
	"encoding/json"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/samplers"
)

// Places are in checkpoints: their text stays as it is.
func TestPlacesAsText(t *testing.T) {
	for text, want := range map[string]feed.Place{
		`{"seed":7,"epoch":1,"position":12,"num_samples":8}`: {
			Sized: samplers.Place{Seed: 7, Epoch: 1, Position: 12, Samples: 8}},
		`{"seed":0,"epoch":0,"position":2,"num_samples":8,"order_fingerprint":5}`: {
			Sized: samplers.Place{Position: 2, Samples: 8, Order: 5}},
		`{"iterable":true,"epoch":2,"items":6,"windows":3,"position":50,"cursor":{"line":4}}`: {
			Iterable: &feed.IterablePlace{Iterable: true, Epoch: 2, Items: 6,
				Windows: 3, Position: 50, Cursor: json.RawMessage(`{"line":4}`)}},
	} {
		got, err := json.Marshal(want)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
		var back feed.Place
		require.NoError(t, json.Unmarshal([]byte(text), &back))
		require.Equal(t, want, back)
	}
	for _, text := range []string{`[]`, `{"iterable":1}`, `{"position":"x"}`} {
		var back feed.Place
		require.Error(t, json.Unmarshal([]byte(text), &back), text)
	}
	var none feed.Place
	require.NoError(t, json.Unmarshal([]byte(`null`), &none))
}

// own is a loader of a program: each window takes steps samples.
type own struct {
	feed.Loader
	next  func() (*feed.Window, error)
	place int64
	step  int64
}

func (l *own) Next(int64) (*feed.Window, error) {
	l.place += l.step
	return l.next()
}

func (l *own) Close() {}

func (l *own) Place() feed.Place { return feed.Place{Sized: samplers.Place{Position: l.place}} }

// What a program's loader does wrong is named.
func TestWindowsRefuseLoaders(t *testing.T) {
	for want, l := range map[string]*own{
		"feed: the loader ended before the windows did: want it to begin the next epoch": {step: 1,
			next: func() (*feed.Window, error) { return nil, io.EOF }},
		"feed: the loader returned no window: want one, or an error": {step: 1,
			next: func() (*feed.Window, error) { return nil, nil }},
		"feed: the loader's Place is position 0 of the training stream before window 4 and 0 behind it: want it to " +
			"advance": {next: func() (*feed.Window, error) {
			return &feed.Window{Window: samplers.Window{Number: 4}}, nil
		}},
	} {
		rounds := 0
		for w, err := range feed.New(l, samplers.WindowLayout{}, 0, 2).All() {
			require.Nil(t, w)
			require.EqualError(t, err, want)
			rounds++
		}
		require.Equal(t, 1, rounds)
		require.Empty(t, feed.New(l, samplers.WindowLayout{}, 0, 2).Fingerprint())
	}
}
