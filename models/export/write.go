// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/internal/gguf"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// WriteOptions are how a file is written.
type WriteOptions struct {
	Overwrite bool // a file that is there is replaced
	// Progress, if it is not nil, is called with the elements that are written of all that there are.
	Progress func(done, total int64)
}

// Check refuses a path at which no file can be written, or that would take the place of the model itself.
func (m *Model) Check(path string, o WriteOptions) error {
	if err := m.check(path, o); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

func (m *Model) check(path string, o WriteOptions) error {
	if !modelfiles.IsGGUF(path) {
		return fmt.Errorf("%s: want a name that ends in .gguf", path)
	}
	source, err := modelfiles.GGUF(m.Dir)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a folder: want the name of a file, such as %s", path,
			filepath.Join(path, m.FileName()))
	case same(path, source):
		return fmt.Errorf("%s is the model itself: want another name", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file: want the name of a file", path)
	case !o.Overwrite:
		return fmt.Errorf("%s exists: want another name, or --overwrite (WriteOptions.Overwrite)", path)
	}
	if source != "" && source != m.Dir && same(filepath.Dir(path), m.Dir) {
		return fmt.Errorf("%s is the folder of the model, %s, and with a second file would stand for none: want "+
			"another folder", m.Dir, source)
	}
	return nil
}

// same reports whether two paths are the same file or folder.
func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// Write writes the file. Folders that are missing are made. The file appears as a whole or not at all: what was
// begun is removed if there is an error, or if ctx is canceled.
func (m *Model) Write(ctx context.Context, path string, o WriteOptions) error {
	err := m.check(path, o)
	if err == nil {
		err = m.write(ctx, vfs.OS, path, o)
	}
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

func (m *Model) write(ctx context.Context, fsys vfs.FS, path string, o WriteOptions) error {
	return replace(fsys, path, func(w io.Writer) error {
		return gguf.Write(ctx, w, m.metadata, m.tensors, o.Progress)
	})
}

// replace writes a file beside path, and gives it that name when it is complete and durable.
func replace(fsys vfs.FS, path string, write func(w io.Writer) error) error {
	dir := filepath.Dir(path)
	if err := vfs.MkdirAll(fsys, dir); err != nil {
		return err
	}
	f, name, err := temporary(fsys, path)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fsys.Rename(name, path)
	}
	if err != nil {
		return errors.Join(err, fsys.Remove(name))
	}
	return fsys.SyncDir(dir)
}

// temporary creates a file in the folder of path, under a name that no other has.
func temporary(fsys vfs.FS, path string) (f vfs.File, name string, err error) {
	for i := range 1000 {
		name = filepath.Join(filepath.Dir(path), fmt.Sprintf(".tmp-%d-%d-%s", os.Getpid(), i, filepath.Base(path)))
		if f, err = fsys.Create(name); !errors.Is(err, fs.ErrExist) {
			return f, name, err
		}
	}
	return nil, "", err
}
