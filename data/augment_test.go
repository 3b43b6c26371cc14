// SPDX-License-Identifier: Apache-2.0

package data_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

type shifted struct{ Inputs int64 }

// What becomes of a sample depends on its place in the training stream: not on the batch that it comes in, nor on the
// number of workers, and it is another in the next epoch.
func TestAugmentedSource(t *testing.T) {
	const n = 24
	samples := make(data.Slice[shifted], n)
	for i := range samples {
		samples[i] = shifted{int64(i) * 1_000_000}
	}
	source := func(seed uint64) data.Source {
		return data.NewAugmentedSource(samples, seed, func(r *data.Random, s shifted) (shifted, error) {
			s.Inputs += int64(r.IntN(1000))
			if r.Float64() < 0.5 {
				s.Inputs += 1000
			}
			return s, nil
		}, data.Stack[shifted])
	}
	c := tensor.NewCtx(tensor.CPU())
	read := func(s data.Source, batch, workers int, from int64) (values []int64) {
		order := &places{batch: int64(batch), at: from, end: 2 * n, n: n}
		l, err := data.NewLoader(t.Context(), c, s, order, data.LoaderOptions{Workers: workers})
		require.NoError(t, err)
		defer l.Close()
		for b, err := range l.All() {
			require.NoError(t, err)
			values = append(values, tensor.ToSlice[int64](c, b.Tensors[data.Inputs])...)
			b.Free()
		}
		return values
	}
	want := read(source(7), 4, 0, 0)
	require.Len(t, want, 2*n)
	require.Equal(t, want, read(source(7), 3, 0, 0))
	require.Equal(t, want, read(source(7), 1, 3, 0))
	require.Equal(t, want[12:], read(source(7), 4, 2, 12), "a resumed run")
	require.NotEqual(t, want[:n], want[n:], "the next epoch")
	require.NotEqual(t, want, read(source(8), 4, 0, 0))
	changed := 0
	for i, v := range want {
		require.Less(t, v-int64(i%n)*1_000_000, int64(2000))
		if v%1_000_000 >= 1000 {
			changed++
		}
	}
	require.InDelta(t, n, changed, 14)

	b, err := source(7).Batch(c, []int64{3})
	require.NoError(t, err)
	require.Equal(t, []int64{3_000_000}, tensor.ToSlice[int64](c, b.Tensors[data.Inputs]),
		"without a place it is as it is")
	broken := data.NewAugmentedSource(samples, 1, func(*data.Random, shifted) (shifted, error) {
		return shifted{}, errors.New("no such picture")
	}, data.Stack[shifted]).(data.PositionedSource)
	_, err = broken.BatchAt(c, 9, []int64{5})
	require.EqualError(t, err, "data: sample 5: no such picture")
}

// places gives batches of consecutive samples from a place on.
type places struct{ batch, at, end, n int64 }

func (p *places) Next() (samplers.MicroBatch, bool) {
	if p.at >= p.end {
		return samplers.MicroBatch{}, false
	}
	m := samplers.MicroBatch{Position: p.at}
	for range min(p.batch, p.end-p.at) {
		m.Indices = append(m.Indices, p.at%p.n)
		p.at++
	}
	return m, true
}
