// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// twoShards are the files of a set with the tensors a and b, without an index.
func twoShards(t testing.TB) *vfs.Mem {
	disk := vfs.NewMem()
	for file, name := range map[string]string{"model-1.safetensors": "a", "model-2.safetensors": "b"} {
		var b bytes.Buffer
		require.NoError(t, safetensors.Write(&b,
			[]safetensors.Tensor{safetensors.FromBytes(name, dtype.Uint8, []int{1}, []byte{7})}, nil))
		require.NoError(t, vfs.WriteFile(disk, file, b.Bytes()))
	}
	return disk
}

const goodIndex = `{"metadata": {"total_size": 2, "x": [1]}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}`

// An index whose map or metadata would take many times its size is refused, or not looked at.
func TestIndexesMadeToExhaustMemoryAreRefused(t *testing.T) {
	var many strings.Builder
	for i := range 200_001 {
		fmt.Fprintf(&many, `"t%d": "model-1.safetensors", `, i)
	}
	disk := twoShards(t)
	require.NoError(t, vfs.WriteFile(disk, "model.safetensors.index.json",
		[]byte(strings.Replace(goodIndex, `"a":`, many.String()+`"a":`, 1))))
	_, err := safetensors.OpenSet(disk, ".", "model")
	require.ErrorContains(t, err, "more than 200000 tensors")

	nested := strings.Repeat(`[[],[],[],[]],`, 500_000)
	require.NoError(t, disk.Remove("model.safetensors.index.json"))
	require.NoError(t, vfs.WriteFile(disk, "model.safetensors.index.json",
		[]byte(strings.Replace(goodIndex, "[1]", "["+nested+"1]", 1))))
	allocations := testing.AllocsPerRun(1, func() {
		set, err := safetensors.OpenSet(disk, ".", "model")
		require.NoError(t, err)
		require.NoError(t, set.Close())
	})
	require.Less(t, allocations, 10_000.0, "metadata is passed over")
}

// FuzzIndex: an index is refused by name, or every tensor that it names can be read.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(goodIndex))
	f.Add([]byte(`{"weight_map": {"a": "../model-1.safetensors", "b": null}}`))
	f.Add([]byte(`{"weight_map": {"a": "model-1.safetensors"}, "weight_map": {"b": "model-2.safetensors"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		disk := twoShards(t)
		require.NoError(t, vfs.WriteFile(disk, "model.safetensors.index.json", text))
		set, err := safetensors.OpenSet(disk, ".", "model")
		if err != nil {
			require.ErrorContains(t, err, "model.safetensors.index.json")
			return
		}
		for _, name := range set.Names() {
			a, ok := set.Lookup(name)
			require.True(t, ok)
			data, err := a.Read()
			require.NoError(t, err)
			require.Equal(t, []byte{7}, data)
		}
		require.NoError(t, set.Close())
	})
}
