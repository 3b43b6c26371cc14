// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// FuzzDecodeRows: what another rank sends is refused, or it holds rows that travel on as they are.
func FuzzDecodeRows(f *testing.F) {
	rows := []Row{
		{Index: 3, Arrays: []Array{{tensor.Float32, []int{2, 1}, make([]byte, 8)},
			{tensor.Float64, []int{1}, make([]byte, 8)}}},
		{Index: -4, Arrays: []Array{{tensor.Bool, []int{}, []byte{1}}}},
		{Index: 5, Arrays: []Array{{tensor.Int64, []int{2, 0, 3}, []byte{}}}},
	}
	var raw []byte
	for _, r := range rows {
		raw = AppendRow(raw, r)
	}
	f.Add(raw)
	huge := 1 << 62
	for _, a := range []Array{
		{tensor.Uint8, []int{huge, huge}, nil}, {tensor.Float32, []int{huge}, nil},
		{tensor.Float32, []int{2}, make([]byte, 4)},
		{tensor.DType(77), []int{0}, nil}, {tensor.Invalid, nil, nil},
		{tensor.Uint8, make([]int, tensor.MaxDims+1), nil},
	} {
		bad := AppendRow(nil, Row{Arrays: []Array{a}})
		_, err := DecodeRows(nil, bad, 1)
		require.Error(f, err, "%v", a)
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		list, err := DecodeRows(nil, raw, 1)
		if err != nil {
			return
		}
		var sent []byte
		for _, r := range list {
			sent = AppendRow(sent, r)
		}
		again, err := DecodeRows(nil, sent, 1)
		require.NoError(t, err)
		require.Equal(t, list, again)
	})
}
