// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/internal/hubname"
)

// session is a repository at a commit and its part of the cache:
//
//	models--org--name/refs/REVISION             the commit of a branch or tag
//	models--org--name/trees/COMMIT.json         the files of a commit
//	models--org--name/blobs/HASH                contents, HASH.incomplete while they arrive
//	models--org--name/snapshots/COMMIT/FILE     links to blobs
//	.locks/models--org--name/HASH.lock          held by who downloads a blob
//
// All files are opened by an os.Root, so that no name and no link leads out of the cache.
type session struct {
	c      *Client
	repo   Repo
	root   *os.Root
	commit string
	files  []File // sorted by path
	// listed says that files are all that the repository has, and not only what the cache has of it.
	listed bool
	// unasked is why the Hub was not asked; nil: it was.
	unasked error
}

// maxTree bounds the listing of a commit in the cache, in bytes.
const maxTree = 256 << 20

// cacheTag tells programs that make backups that the folder is a cache (https://bford.info/cachedir/).
const cacheTag = "Signature: 8a477f597d28d172789f06886806bc55\n" +
	"# This file is a cache directory tag of the cache of HuggingFace's Hub.\n" +
	"# For information about cache directory tags, see:\n#\thttps://bford.info/cachedir/\n"

// open finds the commit of a repository and its files: by the Hub, or by the cache where that does not answer.
func (c *Client) open(ctx context.Context, r Repo) (*session, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if _, err := c.ready(); err != nil {
		return nil, err
	}
	s := &session{c: c, repo: r}
	if err := os.MkdirAll(c.CacheDir, 0o777); err != nil {
		return nil, s.unwritable(err)
	}
	var err error
	if s.root, err = os.OpenRoot(c.CacheDir); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	if err := s.settle(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *session) close() error {
	s.c.idle()
	return s.root.Close()
}

// settle sets commit and files.
func (s *session) settle(ctx context.Context) error {
	cached := s.fromCache()
	if s.c.Offline {
		s.unasked = faultf(ErrOffline, "the network is not used (HF_HUB_OFFLINE)")
		return cached
	}
	tries := 0
	if cached == nil {
		tries = 1 // rather than to wait for a server that may stay silent
	}
	err := s.ask(ctx, tries)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case cached != nil || errors.Is(err, ErrRevision):
		return err
	}
	s.unasked = err
	s.c.log().Warn("The cache is used as it is.", "repository", s.repo.Name, "because", err)
	return nil
}

// ask takes commit and files from the Hub.
func (s *session) ask(ctx context.Context, tries int) error {
	at, err := s.c.find(ctx, s.repo, tries)
	if err != nil {
		return err
	}
	if at == s.commit && s.listed {
		return nil
	}
	files, err := s.readTree(at)
	if err != nil {
		if files, err = s.c.list(ctx, s.repo, at, tries); err != nil {
			return err
		}
		s.writeTree(at, files) // a read-only cache has none
	}
	s.commit, s.files, s.listed = at, files, true
	return nil
}

// fromCache takes commit and files from the cache.
func (s *session) fromCache() error {
	missing := func(why string) error {
		return faultf(ErrOffline, "%s is not in the cache %s%s, and the network is not used (HF_HUB_OFFLINE)", s.repo,
			s.c.CacheDir, why)
	}
	at := s.repo.revision()
	if !hubname.IsCommit(at) {
		text, err := s.read(s.path("refs", at), 1<<10)
		if errors.Is(err, fs.ErrNotExist) {
			return missing("")
		} else if err != nil {
			return err
		}
		if at = strings.TrimSpace(string(text)); !hubname.IsCommit(at) {
			return fmt.Errorf("hub: %s has %.60q: want a commit", s.within(s.path("refs", s.repo.revision())), text)
		}
	}
	info, err := s.root.Stat(s.path("snapshots", at))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing(" at revision " + s.repo.revision())
	case err != nil:
		return s.refused(err)
	case !info.IsDir():
		return fmt.Errorf("hub: %s is not a folder", s.within(s.path("snapshots", at)))
	}
	files, err := s.readTree(at)
	s.listed = err == nil
	if err != nil {
		if files, err = s.walk(at); err != nil {
			return err
		}
	}
	s.commit, s.files = at, files
	return nil
}

// walk lists what a snapshot has.
func (s *session) walk(at string) (files []File, err error) {
	top := s.path("snapshots", at)
	err = fs.WalkDir(s.root.FS(), top, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := s.root.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a link to nothing
		}
		if err == nil && info.Mode().IsRegular() {
			files = append(files, File{Path: strings.TrimPrefix(name, top+"/"), Size: info.Size()})
		}
		return err
	})
	return files, s.refused(err)
}

// path is that of a file of the repository in the cache, with slashes.
func (s *session) path(parts ...string) string {
	return path.Join(append([]string{s.repo.folder()}, parts...)...)
}

// within is the full path of a file in the cache.
func (s *session) within(name string) string {
	return filepath.Join(s.c.CacheDir, filepath.FromSlash(name))
}

// pointer is the path of a file in the snapshot.
func (s *session) pointer(f File) string { return s.path("snapshots", s.commit, f.Path) }

// dir is the folder of the snapshot.
func (s *session) dir() string { return s.within(s.path("snapshots", s.commit)) }

// refused names the cache in an error of the file system.
func (s *session) refused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("hub: the cache %s: %w", s.c.CacheDir, err)
}

// unwritable says what to do if the cache cannot be written to.
func (s *session) unwritable(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("hub: %s is not in the cache, which cannot be written to: %w: want HF_HOME (or cache_dir) "+
			"to name "+
			"a folder that can", s.repo, err)
	}
	return s.refused(err)
}

// read reads a small file of the cache.
func (s *session) read(name string, limit int64) ([]byte, error) {
	f, err := s.openRegular(name)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return text, s.refused(errors.Join(err, f.Close()))
}

// openRegular opens a regular file, no pipe or device.
func (s *session) openRegular(name string) (*os.File, error) {
	info, err := s.root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		return nil, s.refused(err)
	}
	f, err := s.root.Open(name)
	return f, s.refused(err)
}

// has reports whether the cache has a file of some size. A link that leads nowhere is no file, and one that leads out
// of the cache is an error.
func (s *session) has(name string, size int64) (bool, error) {
	info, err := s.root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, s.refused(err)
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("hub: %s is not a regular file", s.within(name))
	}
	return info.Size() == size, nil
}

// write puts a file into the cache in one piece.
func (s *session) write(name string, data []byte) error {
	if old, err := s.read(name, int64(len(data))); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := s.root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%08x.tmp", name, rand.Uint32())
	err := s.root.WriteFile(tmp, data, 0o666)
	if err == nil {
		err = s.root.Rename(tmp, name)
	}
	if err != nil {
		_ = s.root.Remove(tmp) // what matters is why it could not be written
	}
	return err
}

// writeRef keeps which commit the revision is. The cache may be read-only where all files are there.
func (s *session) writeRef() {
	if r := s.repo.revision(); r != s.commit && s.unasked == nil {
		if err := s.write(s.path("refs", r), []byte(s.commit)); err != nil {
			s.c.log().Debug("The commit of a revision is not kept.", "because", err)
		}
	}
}

// tree is the listing of a commit as huggingface_hub keeps it.
type tree struct {
	Version int                 `json:"format_version"`
	Files   map[string]treeFile `json:"files"`
}

type treeFile struct {
	Size    int64  `json:"size"`
	Git     string `json:"blob_id"`
	SHA256  string `json:"lfs_sha256,omitempty"`
	LFSSize *int64 `json:"lfs_size,omitempty"`
	Xet     string `json:"xet_hash,omitempty"`
}

const treeVersion = 1

func (s *session) treePath(at string) string { return s.path("trees", at+".json") }

// readTree reads the listing of a commit from the cache.
func (s *session) readTree(at string) ([]File, error) {
	text, err := s.read(s.treePath(at), maxTree)
	if err != nil {
		return nil, err
	}
	var t tree
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, s.refused(err)
	}
	if t.Version != treeVersion || t.Files == nil {
		return nil, fmt.Errorf("hub: %s has version %d: want %d", s.treePath(at), t.Version, treeVersion)
	}
	files := make([]File, 0, len(t.Files))
	for name, e := range t.Files {
		f := File{Path: name, Size: e.Size, Hash: e.Git, git: e.Git, xet: e.Xet}
		if e.SHA256 != "" {
			f.Hash = e.SHA256
		}
		if e.LFSSize != nil {
			f.Size = *e.LFSSize
		}
		if err := f.check(e.SHA256 != ""); err != nil {
			return nil, s.refused(err)
		}
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// writeTree keeps the listing of a commit, if the cache can be written to.
func (s *session) writeTree(at string, files []File) {
	t := tree{Version: treeVersion, Files: map[string]treeFile{}}
	for _, f := range files {
		e := treeFile{Size: f.Size, Git: f.git, Xet: f.xet}
		if f.large() {
			e.SHA256, e.LFSSize = f.Hash, &f.Size
		}
		t.Files[f.Path] = e
	}
	text, err := json.MarshalIndent(t, "", " ")
	if err == nil {
		err = s.write(s.treePath(at), text)
	}
	if err != nil {
		s.c.log().Debug("The listing of a commit is not kept.", "because", err)
	}
}

// lockPause is how long who waits for a lock sleeps.
const lockPause = 100 * time.Millisecond

// lock waits for the lock of a blob. alone says that no other process can have it; unlock gives it up.
func (s *session) lock(ctx context.Context, f File) (alone bool, unlock func(), err error) {
	name := path.Join(".locks", s.repo.folder(), f.Hash+".lock")
	if err := s.root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return false, nil, s.unwritable(err)
	}
	// It stays there: whoever removed it would take it from those who wait.
	file, err := s.root.OpenFile(name, os.O_RDWR|os.O_CREATE|noFollow, 0o664)
	if err != nil {
		return false, nil, s.unwritable(err)
	}
	for told := false; ; told = true {
		taken, shared, err := lockFile(file)
		if err == nil && taken {
			if !told {
				s.c.log().Info("Another process downloads a file.", "repository", s.repo.Name, "file", f.Path)
			}
			if err = s.nap(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return false, nil, errors.Join(s.refused(err), file.Close())
		}
		return !shared, func() { _ = file.Close() }, nil // which unlocks
	}
}

// nap waits before a lock is tried again.
func (s *session) nap(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(lockPause):
		return nil
	}
}

// point makes the snapshot have a file whose blob is there: by a link, or where there are none by the file itself,
// which leaves its place if it has just arrived. Links are relative, so that the cache can be moved.
func (s *session) point(f File, fresh bool) error {
	blob, pointer := s.path("blobs", f.Hash), s.pointer(f)
	if err := s.root.MkdirAll(path.Dir(pointer), 0o777); err != nil {
		return s.unwritable(err)
	}
	if err := s.root.Remove(pointer); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.unwritable(err)
	}
	if !s.c.CopyFiles {
		up := strings.Repeat("../", 2+strings.Count(f.Path, "/"))
		err := s.root.Symlink(filepath.FromSlash(up+"blobs/"+f.Hash), pointer)
		if err == nil || errors.Is(err, fs.ErrExist) {
			return nil // another process was faster
		}
	}
	if fresh {
		return s.unwritable(s.root.Rename(blob, pointer))
	}
	return s.copy(blob, pointer)
}

func (s *session) copy(from, to string) error {
	in, err := s.openRegular(from)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := fmt.Sprintf("%s.%08x.tmp", to, rand.Uint32())
	out, err := s.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return s.unwritable(err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err == nil {
		err = s.root.Rename(tmp, to)
	}
	if err != nil {
		_ = s.root.Remove(tmp) // what matters is why it could not be written
	}
	return s.refused(err)
}

// tag marks the cache for programs that make backups.
func (s *session) tag() {
	const name = "CACHEDIR.TAG"
	if _, err := s.root.Stat(name); err != nil {
		_ = s.write(name, []byte(cacheTag)) // a file that cannot be written shows with those that matter
	}
}
