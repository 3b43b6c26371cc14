// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	own "github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/tensor/safetensors"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"model.safetensors", "x.safetensors"} {
		f, err := os.Create(filepath.Join(dir, name))
		require.NoError(t, err)
		a := own.FromBytes(name, tensor.Uint8, []int{2, 2}, []byte{1, 2, 3, 4})
		require.NoError(t, own.Write(f, []own.Tensor{a}, nil))
		require.NoError(t, f.Close())
	}
	for path, want := range map[string]string{
		dir:                                 "model.safetensors",
		filepath.Join(dir, "x.safetensors"): "x.safetensors",
		filepath.Join(dir, "x"):             "x.safetensors",
	} {
		set, err := safetensors.Open(path)
		require.NoError(t, err)
		require.Equal(t, []string{want}, set.Names())
		a, ok := set.Lookup(want)
		require.True(t, ok)
		part, err := a.ReadSlice(tensor.Range{Start: 0, Stop: 2}, tensor.Range{Start: 1, Stop: 2})
		require.NoError(t, err)
		require.Equal(t, []byte{2, 4}, part)
		require.NoError(t, set.Close())
	}
	_, err := safetensors.Open(filepath.Join(dir, "y.safetensors"))
	require.ErrorContains(t, err, "y.safetensors")
}
