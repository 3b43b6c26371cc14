// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
)

// mergedFormat is the version of MergedFile.
const mergedFormat = 1

// mergedList is the content of MergedFile.
type mergedList struct {
	FormatVersion int               `json:"format_version"`
	Files         []checkpoint.File `json:"files"`
}

// listed adds MergedFile to parts: it is written last, with the sizes and hashes of the others.
func listed(parts []checkpoint.Part) []checkpoint.Part {
	list := &mergedList{FormatVersion: mergedFormat}
	out := make([]checkpoint.Part, 0, len(parts)+1)
	for _, p := range parts {
		out = append(out, checkpoint.Part{Name: p.Name, Write: func(w io.Writer) error {
			sum := &sumWriter{w: w, hash: sha256.New()}
			err := p.Write(sum)
			list.Files = append(list.Files, checkpoint.File{Name: p.Name, Size: sum.size,
				SHA256: hex.EncodeToString(sum.hash.Sum(nil))})
			return err
		}})
	}
	return append(out, checkpoint.Part{Name: MergedFile, Write: func(w io.Writer) error {
		text, err := json.MarshalIndent(list, "", "  ")
		if err == nil {
			_, err = w.Write(append(text, '\n'))
		}
		return err
	}})
}

// sumWriter hashes and counts what reaches w.
type sumWriter struct {
	w    io.Writer
	hash hash.Hash
	size int64
}

func (s *sumWriter) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.hash.Write(p[:n])
	s.size += int64(n)
	return n, err
}

// requireOwn is an error if the folder holds a file that would be replaced or deleted and that MergeWeights did not
// write, or that was changed since.
func requireOwn(ctx context.Context, dir string, names []string, weights []models.WeightFile) error {
	entries, err := vfs.OS.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var existing []string
	for _, e := range entries {
		existing = append(existing, e.Name())
	}
	before, after := models.StaleWeights(existing, weights)
	touched := map[string]bool{}
	for _, list := range [][]string{names, before, after} {
		for _, name := range list {
			touched[name] = true
		}
	}
	own, err := readMerged(filepath.Join(dir, MergedFile))
	if err != nil {
		return err
	}
	var foreign []string
	for _, name := range existing {
		if !touched[name] || name == MergedFile && own != nil {
			continue
		}
		same, err := own.has(ctx, dir, name)
		if err != nil {
			return err
		}
		if !same {
			foreign = append(foreign, name)
		}
	}
	if len(foreign) > 0 {
		return fmt.Errorf("%s holds files that merge-weights did not write (%s): want an empty or a new folder", dir,
			strings.Join(foreign, ", "))
	}
	return nil
}

// readMerged reads MergedFile; nil if there is none.
func readMerged(path string) (*mergedList, error) {
	text, err := vfs.ReadFile(vfs.OS, path, maxKept)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	list := &mergedList{}
	if err == nil {
		err = json.Unmarshal(text, list)
	}
	if err == nil && list.FormatVersion != mergedFormat {
		err = fmt.Errorf("format version %d: this program reads version %d", list.FormatVersion, mergedFormat)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: want an empty or a new folder", path, err)
	}
	return list, nil
}

// has reports whether a file of the folder is as it was written.
func (l *mergedList) has(ctx context.Context, dir, name string) (bool, error) {
	if l == nil {
		return false, nil
	}
	for _, f := range l.Files {
		if f.Name != name {
			continue
		}
		sum, size, err := hashFile(ctx, filepath.Join(dir, name))
		return err == nil && size == f.Size && sum == f.SHA256, err
	}
	return false, nil
}

// hashFile is the SHA-256 of a file, and its size.
func hashFile(ctx context.Context, path string) (sum string, size int64, err error) {
	f, err := vfs.OpenRegular(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	for {
		n, err := io.CopyN(h, f, 64<<20)
		size += n
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), size, nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return "", 0, err
		}
	}
}
