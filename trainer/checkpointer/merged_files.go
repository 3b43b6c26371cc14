// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
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

// writeMerged writes the files of a merged model into a folder and, last, MergedFile with their sizes and hashes.
func writeMerged(ctx context.Context, dir string, parts []checkpoint.Part) error {
	store := &checkpoint.Store{Dir: dir}
	files, err := replaceModel(ctx, store, parts)
	if err != nil {
		return err
	}
	list, err := checkpoint.JSONPart(MergedFile, mergedList{mergedFormat, files})
	if err != nil {
		return err
	}
	return store.WriteFiles(ctx, []checkpoint.Part{list})
}

// requireOwn is an error if the folder holds a file that would be replaced or deleted and that MergeWeights did not
// write, or that was changed since.
func requireOwn(ctx context.Context, dir string, names []string) error {
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
	before, after := models.StaleWeights(existing, names)
	touched := slices.Concat(names, before, after)
	own, err := readMerged(filepath.Join(dir, MergedFile))
	if err != nil {
		return err
	}
	var foreign []string
	for _, name := range existing {
		if !slices.Contains(touched, name) {
			continue
		}
		i := slices.IndexFunc(own, func(f checkpoint.File) bool { return f.Name == name })
		if i >= 0 {
			err = checkpoint.Verify(ctx, dir, own[i])
		}
		_, changed := errors.AsType[*checkpoint.CorruptError](err)
		switch {
		case i < 0 || changed:
			foreign = append(foreign, name)
		case err != nil:
			return err
		}
	}
	if len(foreign) > 0 {
		return fmt.Errorf("%s holds files that merge-weights did not write (%s): want an empty or a new folder", dir,
			strings.Join(foreign, ", "))
	}
	return nil
}

// readMerged are the files that MergedFile lists; none if there is no such file.
func readMerged(path string) ([]checkpoint.File, error) {
	text, err := vfs.ReadFile(vfs.OS, path, maxKept)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list mergedList
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err == nil && list.FormatVersion != mergedFormat {
		err = fmt.Errorf("format version %d: this program reads version %d", list.FormatVersion, mergedFormat)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: want an empty or a new folder", path, err)
	}
	return list.Files, nil
}
