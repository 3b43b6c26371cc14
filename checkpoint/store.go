// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// LatestFile is the name of the file that names the last complete checkpoint.
const LatestFile = "LATEST"

// Names in a store's folder. A folder that is set aside is a checkpoint still, under
// another name, until the one that takes its place is durable; temporary ones never are.
const (
	prefix       = "checkpoint-"
	asidePrefix  = ".old-" + prefix // .old-checkpoint-<step>-<save id of its successor>
	writePrefix  = ".tmp-" + prefix // .tmp-checkpoint-<step>-<save id>
	deletePrefix = ".tmp-delete-"   // .tmp-delete-<name>
	filePrefix   = ".tmp-file-"     // .tmp-file-<name>-<random>

	replacedInfix = ".replaced-" // checkpoint-<step>.replaced-<save id>: another run's, out of this one's way
)

// ErrNone is returned where there is no checkpoint at all, or none that is complete.
var ErrNone = errors.New("no checkpoint")

// noFolder is an ErrNone and an fs.ErrNotExist.
type noFolder string

// Error implements error.
func (f noFolder) Error() string {
	return fmt.Sprintf("%v: folder %s does not exist", ErrNone, string(f))
}

// Is reports what the error stands for.
func (noFolder) Is(target error) bool { return target == ErrNone || target == fs.ErrNotExist }

type (
	// FS is a file system that a Store writes to. Renames must be atomic, and what File.Sync and SyncDir have returned
	// for must outlive a crash. Errors match fs.ErrNotExist and fs.ErrExist where those apply.
	FS = vfs.FS
	// OpenFile is an open file of an FS.
	OpenFile = vfs.File
	// FileLock is a file of an FS that one process at a time holds.
	FileLock = vfs.Lock
)

// Store is the folder that a run's checkpoints are kept in, usually its output folder.
// Its methods may be called from several goroutines; saves wait for each other.
type Store struct {
	Dir string       // "" is the working folder
	FS  FS           // nil: the operating system's
	Log *slog.Logger // nil: slog.Default()

	mu           sync.Mutex // held while the folder is changed
	hold         hold
	beatInterval time.Duration // beatInterval if 0
}

// Info says where a checkpoint is and what its manifest says.
type Info struct {
	Path string // of the folder
	Manifest
}

// Name is the last element of the path: "checkpoint-500".
func (i Info) Name() string { return filepath.Base(i.Path) }

func (s *Store) fs() vfs.FS { return cmp.Or(s.FS, vfs.OS) }

func (s *Store) log() *slog.Logger { return cmp.Or(s.Log, slog.Default()) }

func (s *Store) dir() string { return filepath.Clean(s.Dir) }

func (s *Store) path(name string) string { return filepath.Join(s.Dir, name) }

// stepOf parses checkpoint-<step>.
func stepOf(name string) (step int64, ok bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	step, err := strconv.ParseInt(digits, 10, 64)
	return step, err == nil && strconv.FormatInt(step, 10) == digits && step >= 0
}

// asideOf parses the name of a folder set aside into the name that it had and the save
// id of what was to take its place.
func asideOf(name string) (original string, id int64, ok bool) {
	rest, ok := strings.CutPrefix(name, asidePrefix)
	digits, tail, found := strings.Cut(rest, "-")
	if !ok || !found {
		return "", 0, false
	}
	if _, ok := stepOf(prefix + digits); !ok {
		return "", 0, false
	}
	id, err := strconv.ParseInt(tail, 10, 64)
	return prefix + digits, id, err == nil
}

// replacedOf parses the name of another run's folder that was renamed into the id of the save that it made way for.
func replacedOf(name string) (id int64, ok bool) {
	original, digits, found := strings.Cut(name, replacedInfix)
	_, named := stepOf(original)
	id, err := strconv.ParseInt(digits, 10, 64)
	return id, found && named && err == nil
}

// listing is what lies in a store's folder.
type listing struct {
	named    []string // checkpoint-<step>
	aside    []string // folders set aside, the last set aside first
	replaced []string // other runs' folders that were renamed
	garbage  []string // temporary files and folders
}

// all is the names that may be checkpoints.
func (l listing) all() []string { return append(slices.Clone(l.named), l.aside...) }

func (s *Store) list() (listing, error) {
	entries, err := s.fs().ReadDir(s.dir())
	var l listing
	for _, e := range entries {
		name := e.Name()
		_, named := stepOf(name)
		_, _, aside := asideOf(name)
		_, replaced := replacedOf(name)
		switch folder := e.IsDir() || e.Type()&fs.ModeSymlink != 0; {
		case named && folder:
			l.named = append(l.named, name)
		case aside && folder:
			l.aside = append(l.aside, name)
		case replaced && folder:
			l.replaced = append(l.replaced, name)
		case strings.HasPrefix(name, writePrefix), strings.HasPrefix(name, deletePrefix),
			strings.HasPrefix(name, filePrefix):
			l.garbage = append(l.garbage, name)
		}
	}
	slices.SortFunc(l.aside, func(a, b string) int {
		_, idA, _ := asideOf(a)
		_, idB, _ := asideOf(b)
		return cmp.Compare(idB, idA)
	})
	return l, err
}

// inspect reads the manifest of a folder of the store and looks for its files, without
// reading them.
func (s *Store) inspect(name string) (Info, error) {
	info := Info{Path: s.path(name)}
	m, err := readManifest(s.fs(), info.Path)
	if err != nil {
		return info, err
	}
	info.Manifest = m
	var errs []error
	for _, f := range m.Files {
		errs = append(errs, checkSize(s.fs(), filepath.Join(info.Path, f.Name), f))
	}
	return info, errors.Join(errs...)
}

func checkSize(fsys vfs.FS, path string, f File) error {
	stat, err := fsys.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return corrupt(path, "missing")
	case err != nil:
		return err
	case stat.IsDir():
		return corrupt(path, "a folder: want a file of %d bytes", f.Size)
	case stat.Size() == 0 && f.Size > 0:
		return corrupt(path, "empty: want %d bytes", f.Size)
	case stat.Size() < f.Size:
		return corrupt(path, "truncated: %d of %d bytes", stat.Size(), f.Size)
	case stat.Size() > f.Size:
		return corrupt(path, "%d bytes: want %d", stat.Size(), f.Size)
	}
	return nil
}

// survey is the complete checkpoints among the names, oldest first, and an error for each
// other. Completeness is judged by manifest and sizes; only opening reads the contents.
func (s *Store) survey(names []string) (complete []Info, broken []error) {
	for _, name := range names {
		info, err := s.inspect(name)
		if err != nil {
			broken = append(broken, err)
			continue
		}
		complete = append(complete, info)
	}
	slices.SortStableFunc(complete, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.SaveID, b.SaveID), cmp.Compare(a.Step, b.Step))
	})
	return complete, broken
}

// List returns the complete checkpoints of the folder, oldest first by save id. Their
// contents are not read. A folder that is not complete is left out with a warning, one of another
// program without; an error is one of reading the store's folder, fs.ErrNotExist if there is none.
func (s *Store) List() ([]Info, error) {
	l, err := s.list()
	if err != nil {
		return nil, err
	}
	complete, broken := s.survey(l.named)
	s.warnBroken(broken)
	return complete, nil
}

// Used lists the folders of checkpoints in the store's folder, damaged ones and other programs' too; none if there is
// no such folder.
func (s *Store) Used() ([]string, error) {
	l, err := s.list()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return l.named, err
}

// Own lists the folders among Used that have a manifest of Lockstep.
func (s *Store) Own() (names []string, err error) {
	used, err := s.Used()
	for _, name := range used {
		if _, err := readManifest(s.fs(), s.path(name)); err == nil {
			names = append(names, name)
		}
	}
	return names, err
}

func (s *Store) warnBroken(broken []error) {
	for _, err := range broken {
		if of, damaged := errors.AsType[*CorruptError](err); !damaged || !of.foreign {
			s.log().Warn("checkpoint skipped", "err", err)
		}
	}
}

// pointer is the contents of LATEST.
type pointer struct {
	FormatVersion int    `json:"format_version"`
	Checkpoint    string `json:"checkpoint"`
	SaveID        int64  `json:"save_id"`
}

// readPointer returns the zero pointer, without an error, if there is no LATEST.
func (s *Store) readPointer() (pointer, error) {
	path := s.path(LatestFile)
	text, err := vfs.ReadFile(s.fs(), path, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return pointer{}, nil
	}
	if err != nil {
		return pointer{}, err
	}
	var p pointer
	if err := decodeVersioned(text, &p); err != nil {
		return pointer{}, corrupt(path, "%v", err)
	}
	if _, ok := stepOf(p.Checkpoint); !ok {
		return pointer{}, corrupt(path, "names %q: want %s<step>", p.Checkpoint, prefix)
	}
	return p, nil
}

func (s *Store) writePointer(info Info) error {
	text, err := json.Marshal(pointer{FormatVersion: formatVersion, Checkpoint: info.Name(), SaveID: info.SaveID})
	if err != nil {
		return err
	}
	if _, err := s.writeFile(context.Background(), BytesPart(LatestFile, append(text, '\n'))); err != nil {
		return err
	}
	return s.fs().SyncDir(s.dir())
}

// temporaryName is a name for a file on its way to name, which nobody can guess: a link that
// was planted under it would be followed, or would keep the file from being written.
func temporaryName(name string) string {
	return filePrefix + name + "-" + rand.Text()
}

// discard deletes a folder of the store. It loses its name first, durably, so that no
// half-deleted folder can ever be taken for a checkpoint.
func (s *Store) discard(name string) error {
	doomed := s.path(deletePrefix + strings.TrimPrefix(name, "."))
	if err := vfs.RemoveAll(s.fs(), doomed); err != nil {
		return err
	}
	if err := s.fs().Rename(s.path(name), doomed); err != nil {
		return err
	}
	if err := s.fs().SyncDir(s.dir()); err != nil {
		return err
	}
	return vfs.RemoveAll(s.fs(), doomed)
}
