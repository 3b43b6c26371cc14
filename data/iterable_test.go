// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// upTo counts to n in every epoch; odd asks what to do with a number before it is given.
func upTo(n int, odd func(i int) error) Seq[number] {
	return func(epoch int64) iter.Seq2[number, error] {
		return func(yield func(number, error) bool) {
			for i := range n {
				if odd != nil {
					if err := odd(i); err != nil {
						yield(number{}, err)
						return
					}
				}
				if !yield(number{float32(int(epoch)*100 + i)}, nil) {
					return
				}
			}
		}
	}
}

func openEpoch(t *testing.T, src IterableSource, epoch int64) SampleReader {
	r, err := src.Open(t.Context(), epoch)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func TestIterableSource(t *testing.T) {
	src := NewIterableSource(upTo(5, nil), Stack[number])
	r := openEpoch(t, src, 2)
	require.NoError(t, r.Skip(2, nil))
	var samples []any
	for {
		s, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		samples = append(samples, s)
	}
	_, err := r.Next()
	require.Equal(t, io.EOF, err, "and again")
	place, err := r.Place()
	require.NoError(t, err)
	require.Nil(t, place)

	c := newCtx()
	b, err := src.Collate(c, samples, []int64{2, 3, 4})
	require.NoError(t, err)
	defer b.Free()
	require.Equal(t, []float32{202, 203, 204}, tensor.ToSlice[float32](c, b.Tensors[Inputs]))
	require.Equal(t, []int64{2, 3, 4}, b.Indices)
	require.Equal(t, 3, b.Size)
	require.Empty(t, src.(Fingerprinter).Fingerprint())

	r = openEpoch(t, src, 0)
	require.ErrorContains(t, r.Skip(6, nil), "the epoch ended after 5 samples, before sample 6")
}

func TestIterableSourceNamesTheSample(t *testing.T) {
	broken := errors.New("disk on fire")
	for want, odd := range map[string]func(i int) error{
		"data: sample 3: disk on fire": func(i int) error {
			if i == 3 {
				return broken
			}
			return nil
		},
		"data: sample 3: panic: boom": func(i int) error {
			if i == 3 {
				panic("boom")
			}
			return nil
		},
		"data: sample 3: the end of a header: EOF": func(i int) error {
			if i == 3 {
				return fmt.Errorf("the end of a header: %w", io.EOF)
			}
			return nil
		},
	} {
		r := openEpoch(t, NewIterableSource(upTo(5, odd), Stack[number]), 0)
		var err error
		for n := 0; err == nil; n++ {
			require.LessOrEqual(t, n, 3)
			_, err = r.Next()
		}
		require.EqualError(t, err, want)
		var sample *SampleError
		require.ErrorAs(t, err, &sample)
		_, again := r.Next()
		require.Equal(t, err, again)
	}
	_, err := NewIterableSource[number](unopened{}, Stack[number]).Open(t.Context(), 4)
	require.EqualError(t, err, "data: epoch 4 of the iterable dataset: no such feed")
	_, err = NewIterableSource[number](unopened{ok: true}, Stack[number]).Open(t.Context(), 4)
	require.ErrorContains(t, err, "gave no cursor")
}

type unopened struct{ ok bool }

func (u unopened) Open(context.Context, int64) (Cursor[number], error) {
	if u.ok {
		return nil, nil
	}
	return nil, errors.New("no such feed")
}

func (unopened) Fingerprint() string { return "feed" }

// counter is a cursor that can be told where to continue.
type counter struct{ next, end int }

func (c *counter) Next() (number, error) {
	if c.next == c.end {
		return number{}, io.EOF
	}
	c.next++
	return number{float32(c.next - 1)}, nil
}

func (c *counter) Close() error                    { return nil }
func (c *counter) Place() (json.RawMessage, error) { return json.RawMessage(strconv.Itoa(c.next)), nil }
func (c *counter) Seek(place json.RawMessage) error {
	return json.Unmarshal(place, &c.next)
}

type counting struct{ opened *counter }

func (c counting) Open(context.Context, int64) (Cursor[number], error) { return c.opened, nil }

// A cursor that is a Seeker reads nothing before its place.
func TestSeeker(t *testing.T) {
	c := &counter{end: 10}
	r := openEpoch(t, NewIterableSource[number](counting{c}, Stack[number]), 0)
	require.NoError(t, r.Skip(7, json.RawMessage("7")))
	require.Equal(t, 7, c.next)
	s, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, number{7}, s)
	place, err := r.Place()
	require.NoError(t, err)
	require.Equal(t, "8", string(place))
	require.ErrorContains(t, r.Skip(9, json.RawMessage(`"x"`)), "data: seeking to sample 9: ")
	require.Equal(t, "feed", NewIterableSource[number](unopened{}, Stack[number]).(Fingerprinter).Fingerprint())
}
