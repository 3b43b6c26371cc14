// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Checkpoint is a checkpoint of which every byte has been verified, on this rank or another.
type Checkpoint struct {
	Info
	fsys vfs.FS
}

// Open verifies the checkpoint in the folder path: its manifest, and size and hash of
// each file. The error names every damaged file (CorruptError), not only the first.
func Open(ctx context.Context, path string) (*Checkpoint, error) {
	return (&Store{Dir: filepath.Dir(path)}).Open(ctx, filepath.Base(path))
}

// Open is the function Open on the store's file system; name is the folder's name in the
// store, "checkpoint-500".
func (s *Store) Open(ctx context.Context, name string) (*Checkpoint, error) {
	path := s.path(name)
	m, err := openManifest(s.fs(), path)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range m.Files {
		err := verify(ctx, s.fs(), filepath.Join(path, f.Name), f)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Checkpoint{Info: Info{Path: path, Manifest: m}, fsys: s.fs()}, nil
}

// OpenVerified opens a checkpoint that another rank has verified: the manifest must be the same, to which the hash sum
// belongs, and the files must have its sizes. Their contents are not read.
func (s *Store) OpenVerified(name, sum string) (*Checkpoint, error) {
	info, err := s.inspect(name)
	if err != nil {
		return nil, err
	}
	if info.SHA256 != sum {
		return nil, corrupt(filepath.Join(info.Path, ManifestFile), "its hash is %s: want that of the checkpoint that "+
			"was verified, %s", info.SHA256, sum)
	}
	return &Checkpoint{Info: info, fsys: s.fs()}, nil
}

// openManifest reads the manifest of what must be a folder.
func openManifest(fsys vfs.FS, path string) (Manifest, error) {
	switch info, err := fsys.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return Manifest{}, noFolder(path)
	case err != nil:
		return Manifest{}, err
	case !info.IsDir():
		return Manifest{}, fmt.Errorf("%w: %s is a file: want a folder", ErrNone, path)
	}
	return readManifest(fsys, path)
}

// Verify checks that file f in the folder dir is the one that was written: a missing or changed file is a CorruptError.
func Verify(ctx context.Context, dir string, f File) error {
	return verify(ctx, vfs.OS, filepath.Join(dir, f.Name), f)
}

// verify reads the file and compares its hash.
func verify(ctx context.Context, fsys vfs.FS, path string, f File) (err error) {
	if err := checkSize(fsys, path, f); err != nil {
		return err
	}
	file, err := fsys.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	h := sha256.New()
	buf := make([]byte, min(256<<10, f.Size+1))
	if _, err := io.CopyBuffer(h, onlyReader{ctx, file}, buf); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != f.SHA256 {
		return corrupt(path, "damaged: its SHA-256 is %s, the manifest says %s", got, f.SHA256)
	}
	return nil
}

// onlyReader reads until ctx is done.
type onlyReader struct {
	ctx context.Context
	r   io.Reader
}

func (o onlyReader) Read(p []byte) (int, error) {
	if err := o.ctx.Err(); err != nil {
		return 0, err
	}
	return o.r.Read(p)
}

// Has reports whether the checkpoint has the part.
func (c *Checkpoint) Has(name string) bool {
	return slices.ContainsFunc(c.Files, func(f File) bool { return f.Name == name })
}

// ReadPart returns the contents of a part, verified again. The error matches
// fs.ErrNotExist if the checkpoint was saved without it.
func (c *Checkpoint) ReadPart(name string) ([]byte, error) {
	i := slices.IndexFunc(c.Files, func(f File) bool { return f.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("%s has no %s: %w", c.Path, name, fs.ErrNotExist)
	}
	path := filepath.Join(c.Path, name)
	data, err := vfs.ReadFile(c.fsys, path, c.Files[i].Size)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != c.Files[i].SHA256 {
		return nil, corrupt(path, "changed since the checkpoint was opened")
	}
	return data, nil
}

// ReadJSON decodes a part into v, verified as by ReadPart. A null is refused.
func (c *Checkpoint) ReadJSON(name string, v any) error {
	data, err := c.ReadPart(name)
	if err != nil {
		return err
	}
	if string(bytes.TrimSpace(data)) == "null" {
		return fmt.Errorf("%s is null: want a value", filepath.Join(c.Path, name))
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(c.Path, name), err)
	}
	return nil
}

// OpenTensors opens base.safetensors, or the files that its index names. The caller
// closes the set.
func (c *Checkpoint) OpenTensors(base string) (*safetensors.Set, error) {
	set, err := safetensors.OpenSet(c.fsys, c.Path, base)
	if err != nil {
		return nil, err
	}
	got, want := safetensors.SaveOf(set), savedAs(c.Manifest)
	if set.Scattered() && got != (safetensors.Save{}) && got != want {
		return nil, errors.Join(corrupt(c.Path, "its shards are of save %s of run %q: want save %s of run %q", got.ID,
			got.Run, want.ID, want.Run), set.Close())
	}
	return set, nil
}
