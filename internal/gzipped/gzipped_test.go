// SPDX-License-Identifier: Apache-2.0

package gzipped_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/gzipped"
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

// The name decides for Open, the beginning for OpenSniffed; what a compressed file may hold is bounded for both.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	small, bomb := zipped(t, 100), zipped(t, gzipped.MinExpanded+1)
	for _, c := range []struct {
		name    string
		content []byte
		open    func(string) (io.ReadCloser, error)
		want    int // bytes; -1 is an error
	}{
		{"a.GZ", small, gzipped.Open, 100},
		{"plain", small, gzipped.Open, len(small)},
		{"plain", small, gzipped.OpenSniffed, 100},
		{"text.gz", []byte("text"), gzipped.Open, -1},
		{"text.gz", []byte("text"), gzipped.OpenSniffed, 4},
		{"empty", nil, gzipped.OpenSniffed, 0},
		{"bomb.gz", bomb, gzipped.Open, -1},
		{"bomb", bomb, gzipped.OpenSniffed, -1},
		{"cut.gz", small[:len(small)-1], gzipped.Open, -1},
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
	for _, open := range []func(string) (io.ReadCloser, error){gzipped.Open, gzipped.OpenSniffed} {
		_, err := open(filepath.Join(dir, "none"))
		require.ErrorIs(t, err, os.ErrNotExist)
		_, err = open(os.DevNull)
		require.ErrorContains(t, err, "neither a file nor a folder")
	}
}
