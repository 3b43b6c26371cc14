// SPDX-License-Identifier: Apache-2.0

package vfs

import (
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Mem is a file system in memory that tells what is durable from what is not. The zero
// value is not usable: see NewMem. Relative and absolute paths name the same files.
type Mem struct {
	mu      sync.Mutex
	root    *node
	pending []change // changes of folders not made durable yet, oldest first
	locks   map[string]*memLock
}

// node is a file or, if entries is not nil, a folder.
type node struct {
	data   []byte // of a file
	synced []byte // what of data a crash leaves

	entries map[string]*node // of a folder
	durable map[string]*node // the entries that a crash leaves
}

// change is the creation (from nil), removal (to nil) or renaming of one entry.
type change struct {
	from, to         *node // folders
	oldname, newname string
	child            *node
}

// NewMem returns an empty file system: a root folder.
func NewMem() *Mem { return &Mem{root: newFolder()} }

func newFolder() *node {
	return &node{entries: map[string]*node{}, durable: map[string]*node{}}
}

func (n *node) isDir() bool { return n.entries != nil }

// makeDurable applies c to the folders as a crash would leave them.
func (c change) makeDurable() {
	if c.from != nil && c.from.durable[c.oldname] == c.child {
		delete(c.from.durable, c.oldname)
	}
	if c.to != nil {
		c.to.durable[c.newname] = c.child
	}
}

// CrashClone returns the file system as a power failure at this moment could leave it; m itself continues. With r nil
// all that was not synced is lost. Else each unsynced change of a folder is kept or lost at random, apart from the
// others, and each file keeps a random part of the bytes written since its last Sync.
func (m *Mem) CrashClone(r *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	copies := map[*node]*node{}
	root := m.root.copyTree(copies)
	if r != nil {
		for _, p := range m.pending {
			if r.IntN(2) == 0 {
				continue
			}
			p.from, p.to, p.child = p.from.copyTree(copies), p.to.copyTree(copies), p.child.copyTree(copies)
			p.makeDurable()
		}
	}
	root.crash(r, map[*node]bool{})
	return &Mem{root: root}
}

// copyTree copies n and all that is reachable from it, each node once.
func (n *node) copyTree(copies map[*node]*node) *node {
	if n == nil {
		return nil
	}
	if c := copies[n]; c != nil {
		return c
	}
	if !n.isDir() {
		c := &node{data: slices.Clone(n.data), synced: slices.Clone(n.synced)}
		copies[n] = c
		return c
	}
	c := newFolder()
	copies[n] = c
	for name, child := range n.entries {
		c.entries[name] = child.copyTree(copies)
	}
	for name, child := range n.durable {
		c.durable[name] = child.copyTree(copies)
	}
	return c
}

// crash turns the durable state of the tree into the present one. Folders are walked in
// order of their names, so that r's numbers fall where they fell before.
func (n *node) crash(r *rand.Rand, seen map[*node]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	if !n.isDir() {
		kept := n.synced
		if extra := len(n.data) - len(n.synced); r != nil && extra > 0 {
			kept = n.data[:len(n.synced)+r.IntN(extra+1)]
		}
		n.data, n.synced = slices.Clone(kept), slices.Clone(kept)
		return
	}
	n.entries = maps.Clone(n.durable)
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		n.entries[name].crash(r, seen)
	}
}

// record notes a change that SyncDir of a folder it touches will make durable.
func (m *Mem) record(c change) { m.pending = append(m.pending, c) }

// split cuts a path into its elements, none for the root.
func split(name string) []string {
	name = filepath.ToSlash(filepath.Clean(name))
	return strings.FieldsFunc(strings.TrimPrefix(name, filepath.VolumeName(name)), func(r rune) bool {
		return r == '/'
	})
}

// find returns the node at elems.
func (m *Mem) find(elems []string) (*node, error) {
	n := m.root
	for _, e := range elems {
		if e == "." {
			continue
		}
		if !n.isDir() {
			return nil, errNotDir
		}
		child := n.entries[e]
		if child == nil {
			return nil, fs.ErrNotExist
		}
		n = child
	}
	return n, nil
}

// parent returns the folder that name lies in and its last element.
func (m *Mem) parent(name string) (dir *node, base string, err error) {
	elems := split(name)
	if len(elems) == 0 || elems[len(elems)-1] == "." {
		return nil, "", fs.ErrInvalid
	}
	dir, err = m.find(elems[:len(elems)-1])
	if err == nil && !dir.isDir() {
		err = errNotDir
	}
	return dir, elems[len(elems)-1], err
}

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Create implements FS.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, pathError("create", name, err)
	}
	if dir.entries[base] != nil {
		return nil, pathError("create", name, fs.ErrExist)
	}
	n := &node{}
	dir.entries[base] = n
	m.record(change{to: dir, newname: base, child: n})
	return &memFile{m: m, n: n, name: name, write: true}, nil
}

// Open implements FS.
func (m *Mem) Open(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(split(name))
	if err == nil && n.isDir() {
		err = errIsDir
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &memFile{m: m, n: n, name: name}, nil
}

// Mkdir implements FS.
func (m *Mem) Mkdir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err == nil && dir.entries[base] != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return pathError("mkdir", name, err)
	}
	n := newFolder()
	dir.entries[base] = n
	m.record(change{to: dir, newname: base, child: n})
	return nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(split(name))
	if err == nil && !n.isDir() {
		err = errNotDir
	}
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	var list []fs.DirEntry
	for _, base := range slices.Sorted(maps.Keys(n.entries)) {
		list = append(list, fs.FileInfoToDirEntry(n.entries[base].info(base)))
	}
	return list, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(split(name))
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return n.info(filepath.Base(name)), nil
}

// Rename implements FS.
func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.rename(oldname, newname); err != nil {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: err}
	}
	return nil
}

func (m *Mem) rename(oldname, newname string) error {
	from, oldbase, err := m.parent(oldname)
	if err != nil {
		return err
	}
	to, newbase, err := m.parent(newname)
	if err != nil {
		return err
	}
	n, target := from.entries[oldbase], to.entries[newbase]
	switch {
	case n == nil:
		return fs.ErrNotExist
	case target == n:
		return nil
	case target != nil && (target.isDir() || n.isDir()):
		return fs.ErrExist
	}
	delete(from.entries, oldbase)
	to.entries[newbase] = n
	m.record(change{from: from, to: to, oldname: oldbase, newname: newbase, child: n})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	n := dir.entries[base]
	switch {
	case n == nil:
		return pathError("remove", name, fs.ErrNotExist)
	case n.isDir() && len(n.entries) > 0:
		return pathError("remove", name, errNotEmpty)
	}
	delete(dir.entries, base)
	m.record(change{from: dir, oldname: base, child: n})
	return nil
}

// SyncDir implements FS. A rename from one folder to another becomes durable with either.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(split(name))
	if err == nil && !n.isDir() {
		err = errNotDir
	}
	if err != nil {
		return pathError("syncdir", name, err)
	}
	m.pending = slices.DeleteFunc(m.pending, func(c change) bool {
		if c.from != n && c.to != n {
			return false
		}
		c.makeDurable()
		return true
	})
	return nil
}

// Lock implements FS. Locks are no files here, and a crash takes them.
func (m *Mem) Lock(name string) (Lock, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, _, err := m.parent(name); err != nil {
		return nil, pathError("lock", name, err)
	}
	key := strings.Join(split(name), "/")
	if l := m.locks[key]; l != nil {
		return &memLock{m: m, data: l.data}, ErrLocked
	}
	l := &memLock{m: m, key: key}
	if m.locks == nil {
		m.locks = map[string]*memLock{}
	}
	m.locks[key] = l
	return l, nil
}

// memLock is a lock of a Mem; without a key it is only a look at one.
type memLock struct {
	m    *Mem
	key  string
	data []byte
}

func (l *memLock) Exclusive() bool { return true }

func (l *memLock) Read() ([]byte, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return slices.Clone(l.data), nil
}

func (l *memLock) Write(data []byte) error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.key == "" {
		return ErrLocked
	}
	l.data = slices.Clone(data)
	return nil
}

func (l *memLock) Abandon() error { return l.Close() }

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locks, l.key)
	return nil
}

// memFile is an open file of a Mem.
type memFile struct {
	m      *Mem
	n      *node
	name   string
	write  bool
	closed bool
	pos    int
}

// usable says why the file cannot be read (or written).
func (f *memFile) usable(op string, write bool) error {
	switch {
	case f.closed:
		return pathError(op, f.name, fs.ErrClosed)
	case write && !f.write:
		return pathError(op, f.name, errWriteRO)
	case !write && f.write:
		return pathError(op, f.name, errReadWO)
	}
	return nil
}

func (f *memFile) Read(p []byte) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("read", false); err != nil {
		return 0, err
	}
	if f.pos >= len(f.n.data) && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[f.pos:])
	f.pos += n
	return n, nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("read", false); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("read", f.name, fs.ErrInvalid)
	}
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) Write(p []byte) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("write", true); err != nil {
		return 0, err
	}
	f.n.data = append(f.n.data, p...)
	return len(p), nil
}

func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return pathError("sync", f.name, fs.ErrClosed)
	}
	f.n.synced = slices.Clone(f.n.data)
	return nil
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, fs.ErrClosed)
	}
	f.closed = true
	return nil
}

func (f *memFile) Stat() (fs.FileInfo, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return nil, pathError("stat", f.name, fs.ErrClosed)
	}
	return f.n.info(filepath.Base(f.name)), nil
}

// nodeInfo is the fs.FileInfo of a node; there are no modification times.
type nodeInfo struct {
	name string
	size int64
	mode fs.FileMode
}

func (n *node) info(name string) fs.FileInfo {
	if n.isDir() {
		return nodeInfo{name: name, mode: fs.ModeDir | 0o755}
	}
	return nodeInfo{name: name, size: int64(len(n.data)), mode: 0o644}
}

func (i nodeInfo) Name() string       { return i.name }
func (i nodeInfo) Size() int64        { return i.size }
func (i nodeInfo) Mode() fs.FileMode  { return i.mode }
func (i nodeInfo) ModTime() time.Time { return time.Time{} }
func (i nodeInfo) IsDir() bool        { return i.mode.IsDir() }
func (i nodeInfo) Sys() any           { return nil }
