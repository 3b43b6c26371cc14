// SPDX-License-Identifier: Apache-2.0

//go:build unix

package offload_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/offload"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Tensors in files hold what is written there, and leave no file.
func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s, err := offload.New(dir)
	require.NoError(t, err)
	dev := tensor.NewCPU(2)
	defer dev.Close()
	c := tensor.NewCtx(dev).NoGrad()
	x, err := s.Zeros(c, tensor.Float32, 1000, 1001)
	require.NoError(t, err)
	empty, err := s.Zeros(c, tensor.Float32, 0, 3)
	require.NoError(t, err)
	require.Zero(t, empty.Numel())
	require.EqualValues(t, 4*1000*1001, s.Bytes())
	require.Zero(t, dev.MemStats().InUse, "not in the device's memory")
	require.EqualValues(t, 0, tensor.Item(c, tensor.Sum(c, x, nil, false)))
	tensor.FillInto(c, x, 2)
	require.EqualValues(t, 2*1000*1001, tensor.Item(c, tensor.Sum(c, x, nil, false)))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
	require.NoError(t, s.Close())
	require.Zero(t, s.Bytes())
}

// A folder that cannot be made, and a disk without room, are errors that say so.
func TestStoreFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := offload.New(filepath.Join(file, "below"))
	require.ErrorContains(t, err, "offload: mkdir "+file)
	dir := t.TempDir()
	s, err := offload.New(dir)
	require.NoError(t, err)
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	_, err = s.Zeros(c, tensor.Float32, 1<<24, 1<<24)
	require.ErrorContains(t, err, "offload: 1125899906842624 bytes in "+dir+": reserving disk space: ")
	require.Zero(t, s.Bytes())
	meta := tensor.NewCtx(tensor.NewMeta()).NoGrad()
	_, err = s.Zeros(meta, tensor.Float32, 3)
	require.ErrorContains(t, err, "the device meta does not compute in host memory")
	require.NoError(t, s.Close())
}
