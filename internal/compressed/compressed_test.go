// SPDX-License-Identifier: Apache-2.0

package compressed_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/compressed"
)

func zipped(t *testing.T, n int) []byte {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	require.NoError(t, err)
	_, err = z.Write(make([]byte, n))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func inZstd(t *testing.T, n int) []byte {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	return z.EncodeAll(make([]byte, n), nil)
}

// The name decides for Open, the beginning for OpenSniffed; what a compressed file may hold is bounded for both.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	small, bomb := zipped(t, 100), zipped(t, compressed.MinExpanded+1)
	for _, c := range []struct {
		name    string
		content []byte
		open    func(string) (io.ReadCloser, error)
		want    int // bytes; -1 is an error
	}{
		{"a.GZ", small, compressed.Open, 100},
		{"plain", small, compressed.Open, len(small)},
		{"plain", small, compressed.OpenSniffed, 100},
		{"text.gz", []byte("text"), compressed.Open, -1},
		{"text.gz", []byte("text"), compressed.OpenSniffed, 4},
		{"empty", nil, compressed.OpenSniffed, 0},
		{"bomb.gz", bomb, compressed.Open, -1},
		{"bomb", bomb, compressed.OpenSniffed, -1},
		{"a.ZST", inZstd(t, 100), compressed.Open, 100},
		{"two.zst", append(inZstd(t, 100), inZstd(t, 10)...), compressed.Open, 110},
		{"plain", inZstd(t, 100), compressed.OpenSniffed, 100},
		{"text.zst", []byte("text"), compressed.Open, -1},
		{"bomb.zst", inZstd(t, compressed.MinExpanded+1), compressed.Open, -1},
		{"bomb", inZstd(t, compressed.MinExpanded+1), compressed.OpenSniffed, -1},
		{"cut.zst", inZstd(t, 100)[:12], compressed.Open, -1},
		{"cut.gz", small[:len(small)-1], compressed.Open, -1},
	} {
		path := filepath.Join(dir, c.name)
		require.NoError(t, os.WriteFile(path, c.content, 0o600))
		n := int64(0)
		r, err := c.open(path)
		if err == nil {
			n, err = io.Copy(io.Discard, r)
			require.NoError(t, r.Close())
		}
		if c.want < 0 {
			require.ErrorContains(t, err, path, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		require.EqualValues(t, c.want, n, c.name)
	}
	for _, open := range []func(string) (io.ReadCloser, error){compressed.Open, compressed.OpenSniffed} {
		_, err := open(filepath.Join(dir, "none"))
		require.ErrorIs(t, err, os.ErrNotExist)
		_, err = open(os.DevNull)
		require.ErrorContains(t, err, "neither a file nor a folder")
	}
}
