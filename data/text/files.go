// SPDX-License-Identifier: Apache-2.0

package text

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Expand turns patterns into a list of files, each once, in the order of the patterns.
// A pattern is a file; a folder, which stands for all regular files below it in
// lexical order, without names that start with a dot; or a glob as in filepath.Glob. It is an
// error if a pattern names nothing.
func Expand(patterns ...string) ([]string, error) {
	var files []string
	seen := map[string]bool{}
	for _, pattern := range patterns {
		found, err := expandOne(pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range found {
			if clean := filepath.Clean(file); !seen[clean] {
				seen[clean] = true
				files = append(files, clean)
			}
		}
	}
	return files, nil
}

func expandOne(pattern string) ([]string, error) {
	if _, err := os.Stat(pattern); err == nil {
		return expandPath(pattern)
	} else if !errors.Is(err, fs.ErrNotExist) || !strings.ContainsAny(pattern, `*?[`) {
		return nil, fmt.Errorf("text: %w", err)
	}
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("text: pattern %q: %w", pattern, err)
	}
	if len(matches) == 0 {
		return nil, fmt.Errorf("text: no file matches %q", pattern)
	}
	var files []string
	for _, path := range matches {
		found, err := expandPath(path)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}

// expandPath lists a file or a folder that exists.
func expandPath(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	switch {
	case info.Mode().IsRegular():
		return []string{path}, nil
	case !info.IsDir():
		return nil, fmt.Errorf("text: %s is neither a file nor a folder but %v", path, info.Mode().Type())
	}
	visible := func(rel string) bool { return !strings.HasPrefix(filepath.Base(rel), ".") }
	files, err := Walk(path, visible, visible)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("text: folder %s has no files", path)
	}
	for i, rel := range files {
		files[i] = filepath.Join(path, filepath.FromSlash(rel))
	}
	return files, nil
}

// Walk lists the regular files below root whose slash-separated path relative to root
// keepFile accepts, without entering folders that enterDir refuses, in lexical order. It
// follows a symbolic link at root and links to files, not links to folders.
func Walk(root string, enterDir, keepFile func(rel string) bool) ([]string, error) {
	base, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	var files []string
	err = filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(base, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel != "." && !enterDir(rel) {
				return filepath.SkipDir
			}
			return nil
		}
		regular := d.Type().IsRegular()
		if d.Type()&fs.ModeSymlink != 0 {
			info, err := os.Stat(path)
			regular = err == nil && info.Mode().IsRegular()
		}
		if regular && keepFile(rel) {
			files = append(files, rel)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("text: listing %s: %w", root, err)
	}
	slices.Sort(files)
	return files, nil
}

// HeldOut reports whether a file belongs to the held-out part of a corpus, about one
// file in n: those whose 64-bit FNV-1a hash of the slash-separated path relative to the
// corpus is divisible by n. The choice depends on nothing but the path, so a file never
// moves from one part to the other when files are added.
func HeldOut(rel string, n uint64) bool {
	h := fnv.New64a()
	h.Write([]byte(rel))
	return h.Sum64()%n == 0
}
