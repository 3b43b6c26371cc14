// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// FuzzOpen: whatever LATEST and a manifest say, whose hash anybody can compute, a checkpoint is refused or all its
// parts can be read, and nothing outside of its folder is.
func FuzzOpen(f *testing.F) {
	saved := func(t testing.TB) (*vfs.Mem, *Store) {
		disk := vfs.NewMem()
		s := &Store{Dir: "out", FS: disk, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		_, err := s.Save(context.Background(), 7,
			Content{RunID: "run", Parts: []Part{BytesPart("a.json", []byte(`{"a":1}`)), BytesPart("b", nil)}})
		require.NoError(t, err)
		return disk, s
	}
	disk, _ := saved(f)
	manifest, err := vfs.ReadFile(disk, "out/checkpoint-7/manifest.json", 1<<20)
	require.NoError(f, err)
	f.Add(manifest, []byte(`{"format_version":1,"checkpoint":"checkpoint-7","save_id":1}`))
	f.Add([]byte(`{"format_version":1,"files":[{"name":"../x","size":-1,"sha256":""}]}`),
		[]byte(`{"format_version":1,"checkpoint":"../checkpoint-7"}`))
	f.Add([]byte(`{"format_version":1,"files":[{"name":"a.json","size":9223372036854775807}]}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, manifest, latest []byte) {
		disk, s := saved(t)
		replace := func(name string, data []byte) {
			require.NoError(t, disk.Remove(name))
			require.NoError(t, vfs.WriteFile(disk, name, data))
		}
		var m Manifest
		if json.Unmarshal(manifest, &m) == nil { // sealed as an attacker would
			m.SHA256 = ""
			if sealed, err := m.encode(); err == nil {
				manifest = sealed
			}
		}
		replace("out/checkpoint-7/manifest.json", manifest)
		replace("out/LATEST", latest)
		ck, err := s.Latest(context.Background())
		if err != nil {
			return
		}
		require.Equal(t, filepath.Join("out", "checkpoint-7"), ck.Path)
		for _, part := range ck.Files {
			data, err := ck.ReadPart(part.Name)
			require.NoError(t, err)
			require.Len(t, data, int(part.Size))
		}
		_, err = s.List()
		require.NoError(t, err)
		_, err = s.Save(context.Background(), 8, Content{RunID: "run", Parts: []Part{BytesPart("c", nil)}})
		require.NoError(t, err, "the next save works")
	})
}
