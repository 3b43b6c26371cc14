// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/images"
)

// record is an image of CIFAR with the given bytes before its pixels, which are 1, 2 and 3 in the three planes.
func record(labels ...byte) []byte {
	r := labels
	for c := range 3 {
		r = append(r, bytes.Repeat([]byte{byte(c + 1)}, 1024)...)
	}
	return r
}

func writeCIFAR10(t *testing.T, dir string) {
	require.NoError(t, os.MkdirAll(dir, 0o777))
	for i := range 5 {
		write(t, filepath.Join(dir, fmt.Sprintf("data_batch_%d.bin", i+1)), append(record(byte(i)), record(9)...))
	}
	write(t, filepath.Join(dir, "test_batch.bin"), record(7))
}

func TestOpenCIFAR(t *testing.T) {
	dir := t.TempDir()
	writeCIFAR10(t, filepath.Join(dir, "cifar-10-batches-bin"))
	for _, where := range []string{dir, filepath.Join(dir, "cifar-10-batches-bin")} {
		train, test, err := images.Open(where)
		require.NoError(t, err)
		require.Equal(t, []int{10, 1, 10}, []int{train.Len(), test.Len(), train.Classes()})
		require.Nil(t, train.Names())
		x, err := train.Get(6)
		require.NoError(t, err)
		require.Equal(t, []int{3, 32, 32, 3}, []int{x.Channels, x.Height, x.Width, int(x.Label)})
		require.Equal(t, []byte{1, 2, 3}, []byte{x.Pixels[0], x.Pixels[1024], x.Pixels[3071]})
		n, err := images.NormalizationOf(train, 0)
		require.NoError(t, err)
		require.InDeltaSlice(t, []float64{1. / 255, 2. / 255, 3. / 255}, n.Mean, 1e-12)
	}
	names := filepath.Join(dir, "cifar-10-batches-bin", "batches.meta.txt")
	write(t, names, []byte("airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n"))
	d, err := images.OpenCIFAR(dir, false)
	require.NoError(t, err)
	require.Equal(t, "horse", d.Names()[7])
	write(t, names, []byte("airplane\n"))
	_, err = images.OpenCIFAR(dir, false)
	require.ErrorContains(t, err, "batches.meta.txt has 1 names: want 10")

	hundred := t.TempDir()
	write(t, filepath.Join(hundred, "train.bin"), append(record(4, 99), record(19, 3)...))
	write(t, filepath.Join(hundred, "test.bin"), record(0, 42))
	train, test, err := images.Open(hundred)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1, 100}, []int{train.Len(), test.Len(), train.Classes()})
	x, err := test.Get(0)
	require.NoError(t, err)
	require.EqualValues(t, 42, x.Label, "the fine label")
	require.EqualValues(t, 1, x.Pixels[0])
}

func TestCIFARFaults(t *testing.T) {
	dir := t.TempDir()
	writeCIFAR10(t, dir)
	path := filepath.Join(dir, "data_batch_2.bin")
	for want, raw := range map[string][]byte{
		"it has 3072 bytes: want a multiple of the 3073 of a record": record(1)[:3072],
		"it has 0 bytes": nil,
		"record 1 has the label 10: want one below 10": append(record(1), record(10)...),
		"data_batch_2.bin is compressed by gzip":       zipped(t, record(1)),
	} {
		write(t, path, raw)
		_, err := images.OpenCIFAR(dir, true)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
	}
	require.NoError(t, os.Remove(path))
	_, err := images.OpenCIFAR(dir, true)
	require.ErrorIs(t, err, fs.ErrNotExist)

	pickles := t.TempDir()
	write(t, filepath.Join(pickles, "data_batch_1"), []byte("\x80\x02}"))
	_, _, err = images.Open(pickles)
	require.ErrorContains(t, err, "CIFAR in Python's pickles")
	require.True(t, strings.Contains(err.Error(), "want the binary version"))
	_, err = images.OpenCIFAR(t.TempDir(), true)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// FuzzOpenCIFAR: a file is refused by name, or is whole records with labels of the set.
func FuzzOpenCIFAR(f *testing.F) {
	f.Add(record(3))
	f.Add(append(record(9), record(255)...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "test_batch.bin"), raw, 0o600))
		d, err := images.OpenCIFAR(dir, false)
		if err != nil {
			require.ErrorContains(t, err, dir)
			return
		}
		require.Equal(t, len(raw), 3073*d.Len())
		require.LessOrEqual(t, d.Classes(), 10)
	})
}
