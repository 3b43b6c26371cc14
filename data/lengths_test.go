// SPDX-License-Identifier: Apache-2.0

package data

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

type measured struct {
	InputIDs []int32
	Length   int `data:"-"`
	Rows     int16
}

// columns is a dataset that knows one column, and is never read.
type columns struct {
	lengths []int
	err     error
}

func (columns) Len() int                 { return 2 }
func (columns) Get(int) ([]int32, error) { return nil, errors.New("read") }
func (c columns) Lengths(column string) ([]int, error) {
	if column == "length" || c.err != nil {
		return c.lengths, c.err
	}
	return nil, nil
}

// foreign is a source that is not NewSource's.
type foreign struct{}

func (foreign) Len() int                                   { return 0 }
func (foreign) Batch(*tensor.Ctx, []int64) (*Batch, error) { return nil, nil }

func lengthsOf[T any](t *testing.T, dataset Dataset[T], column string) []int {
	t.Helper()
	got, err := Lengths(NewSource(dataset, nil), column)
	require.NoError(t, err)
	return got
}

func TestLengths(t *testing.T) {
	list := Slice[measured]{{[]int32{1, 2}, 7, 5}, {nil, 8, 6}}
	require.Equal(t, []int{7, 8}, lengthsOf(t, list, "length"))
	require.Equal(t, []int{5, 6}, lengthsOf(t, list, "rows"))
	require.Equal(t, []int{2, 0}, lengthsOf(t, list, "none"))
	require.Equal(t, []int{7, 8}, lengthsOf(t, Slice[*measured]{&list[0], &list[1]}, "length"))
	require.Equal(t, []int{2, 0, 1}, lengthsOf(t, Slice[[]int32]{{1, 2}, nil, {3}}, "length"))
	require.Equal(t, []int{4, 3}, lengthsOf(t, columns{lengths: []int{4, 3}}, "length"))
	require.Empty(t, lengthsOf(t, Slice[[]int32]{}, "length"))
}

func TestLengthsErrors(t *testing.T) {
	broken := errors.New("broken")
	for want, s := range map[string]Source{
		`samples of type int have no length`: NewSource(Slice[int]{1}, nil),
		`samples of type struct { A []int32 } have no length: want slices`: NewSource(Slice[struct{ A []int32 }]{},
			nil),
		`does not provide the lengths of its samples`: foreign{},
		`broken`: NewSource(columns{err: broken}, nil),
		`column "length" has lengths of 1 samples: want 2`: NewSource(columns{lengths: []int{1}}, nil),
		`data: sample 0: `: NewSource(Slice[*measured]{nil}, nil),
	} {
		_, err := Lengths(s, "length")
		require.ErrorContains(t, err, want)
	}
	_, err := Lengths(NewSource(columns{}, nil), "another")
	require.EqualError(t, err, "data: sample 0: read")
}
