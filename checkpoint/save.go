// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bufio"
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

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Part is one file of a checkpoint: its name and what writes it. Write is called once.
type Part = vfs.Part

// BytesPart is a part with the given contents.
func BytesPart(name string, data []byte) Part {
	return Part{Name: name, Write: func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}}
}

// JSONPart is a part with a value as indented JSON, which Checkpoint.ReadJSON reads.
func JSONPart(name string, v any) (Part, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return Part{}, fmt.Errorf("%s: %w", name, err)
	}
	return BytesPart(name, append(text, '\n')), nil
}

// Content is the content of a checkpoint.
type Content struct {
	RunID string // names the run in the manifest; resuming keeps it. Rank 0's counts
	// Parts are the files, in the order of writing. Rank 0's count.
	Parts []Part
	// Placed are the parts of tensors that this rank has. Those of all ranks must make up whole tensors, without gaps.
	// Several ranks may have the same part, of which one is saved; parts that overlap otherwise are an error.
	Placed []Placed
}

func (c Content) check() error {
	if len(c.Parts) == 0 {
		return errors.New("no parts: want at least one")
	}
	seen := map[string]bool{}
	for _, p := range c.Parts {
		if err := checkName(p.Name); err != nil {
			return err
		}
		low := strings.ToLower(p.Name) // file systems of macOS and Windows do not tell case apart
		if seen[low] {
			return fmt.Errorf("part %q is given twice", p.Name)
		}
		seen[low] = true
	}
	return nil
}

// Save writes the checkpoint checkpoint-<step> and makes LATEST name it, both atomically
// and durably; step is the number of optimizer steps done. An existing checkpoint of that
// step is replaced, and can be loaded until the new one can. Leftovers of saves that
// were cut short are removed.
//
// After an error, or when ctx is cancelled before the checkpoint is complete, what was
// written is removed and the older checkpoints are as they were. The one error that
// leaves the new checkpoint in place is a failure to make it durable or to write LATEST.
func (s *Store) Save(ctx context.Context, step int64, content Content) (Info, error) {
	return s.SaveShards(ctx, nil, step, content)
}

// finish makes the renamed checkpoint durable, points LATEST at it and deletes the one that it replaces.
func (s *Store) finish(info Info, aside string) error {
	if err := s.fs().SyncDir(s.dir()); err != nil {
		return fmt.Errorf("the checkpoint is complete, but may not survive a crash: %w", err)
	}
	if err := s.writePointer(info); err != nil {
		return fmt.Errorf("the checkpoint is complete, but %s does not name it: %w", LatestFile, err)
	}
	if aside != "" {
		if err := s.discard(aside); err != nil {
			s.log().Warn("replaced checkpoint not deleted", "path", s.path(aside), "err", err)
		}
	}
	return nil
}

// sweep removes what writers that were cut short left behind. The caller holds the folder.
func (s *Store) sweep(l listing) {
	for _, name := range l.garbage {
		if err := vfs.RemoveAll(s.fs(), s.path(name)); err != nil {
			s.log().Warn("leftover of an interrupted save not deleted", "path", s.path(name), "err", err)
		}
	}
}

// prepare puts the folder in order after a save that was cut short, and returns the id of
// the next save.
func (s *Store) prepare() (id int64, err error) {
	l, err := s.list()
	if err != nil {
		return 0, err
	}
	s.sweep(l)
	p, err := s.readPointer()
	if err != nil {
		s.log().Warn("pointer to the last checkpoint is unreadable and will be replaced", "err", err)
	}
	id = p.SaveID
	for _, name := range l.all() {
		if m, err := readManifest(s.fs(), s.path(name)); err == nil {
			id = max(id, m.SaveID)
		}
	}
	for _, name := range l.replaced {
		made, _ := replacedOf(name)
		id = max(id, made)
	}
	for _, name := range l.aside {
		if err := s.settle(name); err != nil {
			return 0, err
		}
	}
	return id + 1, nil
}

// settle ends an interrupted replacement: the folder set aside gets its name back, or is
// deleted if what took its place is complete.
func (s *Store) settle(aside string) error {
	original, _, _ := asideOf(aside)
	_, err := s.fs().Stat(s.path(original))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.log().Info("interrupted replacement of a checkpoint undone", "path", s.path(original))
		if err := s.fs().Rename(s.path(aside), s.path(original)); err != nil {
			return err
		}
		return s.fs().SyncDir(s.dir())
	case err != nil:
		return err
	}
	if _, err := s.inspect(original); err != nil {
		s.log().Warn("replaced checkpoint kept: its replacement is damaged", "path", s.path(aside), "err", err)
		return nil
	}
	if err := s.discard(aside); err != nil {
		s.log().Warn("replaced checkpoint not deleted", "path", s.path(aside), "err", err)
	}
	return nil
}

// seal writes the manifest into the folder with all other files, and gives the folder its name.
func (s *Store) seal(ctx context.Context, tmp, name string, info *Info) (aside string, err error) {
	text, err := info.encode()
	if err != nil {
		return "", err
	}
	if err := vfs.WriteFile(s.fs(), filepath.Join(tmp, ManifestFile), text); err != nil {
		return "", err
	}
	if err := s.fs().SyncDir(tmp); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return s.commit(tmp, name, info)
}

// SetAside makes way for a new run: every checkpoint in the folder that Lockstep wrote is renamed to
// checkpoint-<step>.replaced-<id>, under which it can be loaded and counts in Rotate, and LATEST is deleted. Folders
// without a manifest of Lockstep stay unchanged. It returns the new names.
func (s *Store) SetAside() (renamed []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	release, err := s.Acquire(context.Background())
	if err != nil {
		return nil, err
	}
	defer release()
	id, err := s.prepare()
	if err != nil {
		return nil, err
	}
	own, err := s.Own()
	if err != nil {
		return nil, err
	}
	for _, name := range own {
		to := replacedName(name, id)
		if err := s.fs().Rename(s.path(name), s.path(to)); err != nil {
			return renamed, err
		}
		renamed = append(renamed, to)
	}
	if err := s.delete([]string{LatestFile}); err != nil {
		return renamed, err
	}
	return renamed, s.fs().SyncDir(s.dir())
}

func replacedName(name string, id int64) string {
	return fmt.Sprintf("%s%s%d", name, replacedInfix, id)
}

// commit renames the finished folder to its place, which it empties first. What this run
// wrote is set aside, to be deleted; anything else is renamed, and stays.
func (s *Store) commit(tmp, name string, info *Info) (aside string, err error) {
	path := s.path(name)
	ours, exists, err := s.occupied(path, info.RunID)
	switch {
	case err != nil:
		return "", err
	case !exists:
		return "", s.fs().Rename(tmp, path)
	case ours:
		aside = fmt.Sprintf("%s%s-%d", asidePrefix, strings.TrimPrefix(name, prefix), info.SaveID)
	default:
		aside = replacedName(name, info.SaveID)
	}
	if err := s.fs().Rename(path, s.path(aside)); err != nil {
		return "", err
	}
	if err := s.fs().Rename(tmp, path); err != nil {
		return "", errors.Join(err, s.fs().Rename(s.path(aside), path))
	}
	if !ours {
		s.log().Warn("another run's folder had the checkpoint's name and was renamed", "path", path, "to",
			s.path(aside))
		return "", nil
	}
	return aside, nil
}

// occupied reports whether path exists, and whether it is a checkpoint of the run, which may
// delete it.
func (s *Store) occupied(path, run string) (ours, exists bool, err error) {
	info, err := s.fs().Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	if err != nil || !info.IsDir() {
		return false, true, err
	}
	m, err := readManifest(s.fs(), path)
	if _, damaged := errors.AsType[*CorruptError](err); damaged {
		return false, true, nil // nobody can tell whose
	}
	return err == nil && m.RunID == run, true, err
}

// writePart writes, hashes and syncs one file.
func (s *Store) writePart(ctx context.Context, dir string, p Part) (info File, err error) {
	f, err := s.fs().Create(filepath.Join(dir, p.Name))
	if err != nil {
		return File{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &hashWriter{ctx: ctx, w: f, hash: sha256.New()}
	buf := bufio.NewWriterSize(w, 64<<10)
	if err := p.Write(buf); err != nil {
		return File{}, err
	}
	if err := buf.Flush(); err != nil {
		return File{}, err
	}
	if err := f.Sync(); err != nil {
		return File{}, err
	}
	return File{Name: p.Name, Size: w.size, SHA256: hex.EncodeToString(w.hash.Sum(nil))}, nil
}

// hashWriter hashes and counts what reaches w; it stops when ctx is done.
type hashWriter struct {
	ctx  context.Context
	w    io.Writer
	hash hash.Hash
	size int64
}

func (h *hashWriter) Write(p []byte) (int, error) {
	if err := h.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := h.w.Write(p)
	h.hash.Write(p[:n])
	h.size += int64(n)
	return n, err
}

// WriteFiles writes files that belong to no checkpoint (the final model, results) into
// the store's folder, in the order given, each atomically and durably. It is for package trainer.
func (s *Store) WriteFiles(ctx context.Context, parts []Part) error {
	_, err := s.ReplaceFiles(ctx, parts, nil)
	return err
}

// ReplaceFiles is WriteFiles for files that take the place of others. stale gets the names in the folder and returns
// those to be deleted before the files are written, durably, and after. It returns sizes and hashes of the files.
func (s *Store) ReplaceFiles(ctx context.Context, parts []Part, stale func(existing []string) (before,
	after []string)) (files []File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := (Content{Parts: parts}).check(); err != nil {
		return nil, err
	}
	release, err := s.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := s.list()
	if err != nil {
		return nil, err
	}
	s.sweep(l)
	var after []string
	if stale != nil {
		entries, err := s.fs().ReadDir(s.dir())
		if err != nil {
			return nil, err
		}
		var existing, before []string
		for _, e := range entries {
			if !e.IsDir() {
				existing = append(existing, e.Name())
			}
		}
		before, after = stale(existing)
		if err := s.delete(before); err != nil {
			return nil, err
		}
	}
	for _, p := range parts {
		f, err := s.writeFile(ctx, p)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if err := s.fs().SyncDir(s.dir()); err != nil {
		return nil, err
	}
	return files, s.delete(after)
}

// delete deletes files of the folder, durably.
func (s *Store) delete(names []string) error {
	for _, name := range names {
		if err := s.fs().Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	return s.fs().SyncDir(s.dir())
}

// writeFile writes a file of the folder, which appears whole or not at all.
func (s *Store) writeFile(ctx context.Context, p Part) (f File, err error) {
	tmp := temporaryName(p.Name)
	if f, err = s.writePart(ctx, s.dir(), Part{Name: tmp, Write: p.Write}); err == nil {
		err = s.fs().Rename(s.path(tmp), s.path(p.Name))
	}
	if err != nil {
		return f, errors.Join(fmt.Errorf("writing %s: %w", s.path(p.Name), err), vfs.RemoveAll(s.fs(), s.path(tmp)))
	}
	f.Name = p.Name
	return f, nil
}
