// SPDX-License-Identifier: Apache-2.0

package data_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

type reading struct{ Inputs, Labels [1]float32 }

func readings(n int, change func(i int, r *reading)) data.Slice[reading] {
	list := make(data.Slice[reading], n)
	for i := range list {
		list[i] = reading{[1]float32{float32(i)}, [1]float32{1}}
		if change != nil {
			change(i, &list[i])
		}
	}
	return list
}

func fingerprint(t *testing.T, d data.Dataset[reading]) string {
	t.Helper()
	f, err := data.Fingerprint(tensor.NewCtx(tensor.CPU()).NoGrad(), data.NewSource(d, data.Stack[reading]))
	require.NoError(t, err)
	return f
}

func TestFingerprintTellsDataApart(t *testing.T) {
	seen := map[string]string{}
	for name, d := range map[string]data.Slice[reading]{
		"1 sample":              readings(1, nil),
		"100 samples":           readings(100, nil),
		"101 samples":           readings(101, nil),
		"another input":         readings(100, func(i int, r *reading) { r.Inputs[0] += 1000 }),
		"another label":         readings(100, func(i int, r *reading) { r.Labels[0] = 2 }),
		"another first sample":  readings(100, func(i int, r *reading) { r.Inputs[0] -= float32(max(0, 1-i)) }),
		"another last sample":   readings(100, func(i int, r *reading) { r.Inputs[0] += float32(max(0, i-98)) }),
		"in the opposite order": readings(100, func(i int, r *reading) { r.Inputs[0] = float32(99 - i) }),
	} {
		f := fingerprint(t, d)
		require.Len(t, f, 16)
		require.Empty(t, seen[f], name)
		seen[f] = name
		require.Equal(t, f, fingerprint(t, d))
	}
	require.Empty(t, fingerprint(t, readings(0, nil)), "no data")
}

// augmented changes its samples each time they are read.
type augmented struct{ data.Slice[reading] }

func (a augmented) Get(i int) (reading, error) {
	r, err := a.Slice.Get(i)
	r.Inputs[0] += rand.Float32()
	return r, err
}

// named is a source that knows what its data are.
type named struct{ data.Source }

func (named) Fingerprint() string { return "flowers v2" }

type broken struct{ data.Slice[reading] }

func (broken) Get(int) (reading, error) { return reading{}, errors.New("no luck") }

func TestFingerprintOfOtherData(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	require.Empty(t, fingerprint(t, augmented{readings(10, nil)}))
	f, err := data.Fingerprint(c, named{data.NewSource(readings(10, nil), data.Stack[reading])})
	require.NoError(t, err)
	require.Equal(t, "flowers v2", f)
	_, err = data.Fingerprint(c, data.NewSource(broken{readings(10, nil)}, data.Stack[reading]))
	require.ErrorContains(t, err, "no luck")
}

// Checkpoints have fingerprints of batches with labels, which models shifted.
func TestFingerprintOfShiftedLabelsIsThatOfLabels(t *testing.T) {
	labelled := func(c *tensor.Ctx, samples [][]int32) (*data.Batch, error) {
		b, err := data.CausalLM(0)(c, samples)
		if err == nil {
			b.Tensors[data.Labels] = tensor.Clone(c, b.Tensors[data.InputIDs])
			b.Tensors[data.ShiftLabels].Free()
			delete(b.Tensors, data.ShiftLabels)
		}
		return b, err
	}
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	list := data.Slice[[]int32]{{5, 6, 7, 8}, {9}, {5, 9, 2}}
	want, err := data.Fingerprint(c, data.NewSource(list, labelled))
	require.NoError(t, err)
	got, err := data.Fingerprint(c, data.NewSource(list, data.CausalLM(0)))
	require.NoError(t, err)
	require.Equal(t, want, got)
	list[2][0] = 4
	got, err = data.Fingerprint(c, data.NewSource(list, data.CausalLM(0)))
	require.NoError(t, err)
	require.NotEqual(t, want, got)
}
