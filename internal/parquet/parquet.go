// SPDX-License-Identifier: Apache-2.0

// Package parquet reads the rows of Parquet files as JSON objects, so that whatever reads JSON Lines reads them too:
// files as datasets, pandas, polars, DuckDB and Spark write them, with nested lists and structs. A page of each column
// is in memory at a time. Use [Open].
//
// It reads values of all encodings but the deprecated packed levels, pages of both versions, plain or compressed by
// snappy, gzip or zstd. Columns of bytes, maps, decimals, times of day, and int96 timestamps are left out, and named by
// File.Unread.
package parquet

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// What the JSON of a file may take, so that a small file does not fill the memory of those who keep it: so many times
// the file's size, or MinExpanded if that is more. Pages that are in memory at a time have the same bound.
const (
	MaxExpansion = 200
	MinExpanded  = 64 << 20
)

// Magic begins Parquet files.
const Magic = "PAR1"

// Unread is a column that is left out, and its type, which is not read.
type Unread struct{ Column, Type string }

// String is "COLUMN (TYPE)".
func (u Unread) String() string { return u.Column + " (" + u.Type + ")" }

// File is an open Parquet file.
type File struct {
	// Unread are columns that are left out, those in structs too.
	Unread []Unread

	path   string
	in     io.ReaderAt
	size   int64
	closer io.Closer
	meta   *metadata
	root   *node
	leaves []*node
}

// Open opens a regular file. Errors name it.
func Open(path string) (*File, error) {
	f, err := vfs.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	var p *File
	info, err := f.Stat()
	if err == nil {
		p, err = New(path, f, info.Size())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	p.closer = f
	return p, nil
}

// New reads the metadata of a file of the given size. path stands for it in errors.
func New(path string, in io.ReaderAt, size int64) (*File, error) {
	f := &File{path: path, in: in, size: size}
	var err error
	if f.meta, err = readMetadata(in, size); err == nil {
		f.root, f.leaves, f.Unread, err = f.meta.tree()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Is reports whether a file begins as Parquet files do.
func Is(path string) bool {
	f, err := vfs.OpenRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, len(Magic))
	_, err = io.ReadFull(f, head)
	return err == nil && string(head) == Magic
}

// Close closes a file that Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Size is the number of the file's bytes.
func (f *File) Size() int64 { return f.size }

// Len is the number of rows.
func (f *File) Len() int64 { return f.meta.rows }

// Columns are the names of the columns that are read.
func (f *File) Columns() []string {
	names := make([]string, len(f.root.nodes))
	for i, n := range f.root.nodes {
		names[i] = n.name
	}
	return names
}

// most is what the JSON of the file may take.
func (f *File) most() int64 { return max(MinExpanded, MaxExpansion*f.size) }

// Rows reads rows.
type Rows struct {
	file    *File
	root    *node
	at      int64 // number of the next row
	group   int   // the next row group
	inGroup int64 // rows that are left in this one
	columns []*column
	text    []byte
	written int64
	held    int64 // bytes of pages
	zstd    *zstd.Decoder
}

// Rows reads the rows from row at on, with the given columns or, without any, all. It is an error if the file has no
// such row or column, or if the column's type is not read.
func (f *File) Rows(at int64, columns ...string) (*Rows, error) {
	root, err := f.choose(columns)
	if err == nil && (at < 0 || at > f.meta.rows) {
		err = fmt.Errorf("row %d of %d", at+1, f.meta.rows)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	r := &Rows{file: f, root: root, at: at}
	for r.group < len(f.meta.groups) && at >= f.meta.groups[r.group].rows {
		at -= f.meta.groups[r.group].rows
		r.group++
	}
	if at > 0 {
		if err := r.open(at); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// choose is the schema with some of the columns.
func (f *File) choose(columns []string) (*node, error) {
	if len(columns) == 0 {
		if len(f.root.nodes) == 0 {
			return nil, fmt.Errorf("it has no column whose type is read: %v", f.Unread)
		}
		return f.root, nil
	}
	root := *f.root
	root.nodes = nil
	for _, name := range columns {
		if i := slices.IndexFunc(f.root.nodes, func(n *node) bool { return n.name == name }); i >= 0 {
			root.nodes = append(root.nodes, f.root.nodes[i])
			continue
		}
		for _, u := range f.Unread {
			if u.Column == name || strings.HasPrefix(u.Column, name+".") {
				return nil, fmt.Errorf("column %s is of type %s, which is not read", name, u.Type)
			}
		}
		return nil, fmt.Errorf("it has no column %q: want one of %s", name, strings.Join(f.Columns(), ", "))
	}
	return &root, nil
}

// hold accounts for bytes that pages take, or give back.
func (r *Rows) hold(n int) error {
	if r.held += int64(n); r.held > r.file.most() {
		return fmt.Errorf("its pages have %d bytes, more than %d times its size: want a file that is not made to "+
			"exhaust memory, or one with smaller row groups", r.held, MaxExpansion)
	}
	return nil
}

// open opens the next row group, and passes over its first rows.
func (r *Rows) open(skip int64) error {
	g := r.file.meta.groups[r.group]
	r.group++
	r.held, r.inGroup = 0, g.rows-skip
	r.columns = make([]*column, len(r.file.leaves))
	return r.openBelow(r.root, g, skip)
}

func (r *Rows) openBelow(n *node, g group, skip int64) error {
	for _, child := range n.nodes {
		if err := r.openBelow(child, g, skip); err != nil {
			return err
		}
	}
	if n.leaf < 0 {
		return nil
	}
	c, err := r.openColumn(n, g.chunks[n.leaf])
	if err == nil {
		err = c.skip(skip)
	}
	if err != nil {
		return fmt.Errorf("%s: column %s: %w", r.file.path, n.path, unexpected(err))
	}
	r.columns[n.leaf] = c
	return nil
}

// unexpected is an error of reading: a file that ends within a column is cut off.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Next is the next row, a JSON object, which is valid until the next call, and its number from 1 on. After the last row
// the error is io.EOF. Numbers that are not finite are NaN, Infinity and -Infinity, as Python writes them; dates and
// timestamps are strings of ISO 8601.
func (r *Rows) Next() (row []byte, number int64, err error) {
	for r.inGroup == 0 {
		if r.group == len(r.file.meta.groups) {
			return nil, r.at, io.EOF
		}
		if err := r.open(0); err != nil {
			return nil, r.at + 1, err
		}
	}
	r.inGroup--
	r.at++
	r.text = r.text[:0]
	err = r.object(r.root)
	if err == nil {
		err = r.endRow(r.root)
	}
	if err == nil {
		err = r.bounded()
	}
	if err != nil {
		return nil, r.at, fmt.Errorf("%s: row %d: %w", r.file.path, r.at, unexpected(err))
	}
	r.written += int64(len(r.text))
	return r.text, r.at, nil
}

// Close ends reading.
func (r *Rows) Close() {
	if r.zstd != nil {
		r.zstd.Close()
	}
}

// The text of a row is made of its columns as in the Dremel paper (Melnik et al., 2010): at which level an entry is
// there says which of the structs and lists around it are null or empty, and its level of repetition which list
// continues.

// object appends a struct, which is there.
func (r *Rows) object(n *node) error {
	r.text = append(r.text, '{')
	for i, child := range n.nodes {
		if i > 0 {
			r.text = append(r.text, ',')
		}
		r.text = append(r.text, child.key...)
		if err := r.value(child); err != nil {
			return err
		}
	}
	r.text = append(r.text, '}')
	return nil
}

// value appends what a node has.
func (r *Rows) value(n *node) error {
	if n.repetition == repeated { // a list without the group around it, as old writers have it
		return r.list(n, r.present)
	}
	if n.leaf < 0 && n.repetition == optional {
		first := r.columns[n.first]
		if err := first.peek(); err != nil {
			return first.fault(err)
		}
		if first.def < n.def {
			r.text = append(r.text, "null"...)
			return r.drop(n)
		}
	}
	if n.list {
		return r.list(n.nodes[0], r.element)
	}
	return r.present(n)
}

// present appends a struct or a value.
func (r *Rows) present(n *node) error {
	if n.leaf < 0 {
		return r.object(n)
	}
	c := r.columns[n.leaf]
	v, err := c.take()
	switch {
	case err != nil:
	case v == nil:
		r.text = append(r.text, "null"...)
	default:
		var text []byte
		if text, err = n.format(r.text, v); err == nil {
			r.text = text
		}
	}
	if err != nil {
		return c.fault(err)
	}
	return r.bounded()
}

// element appends an element of a list: what is in the repeated group if that has one column, as all writers since 2015
// have it, and else the group.
func (r *Rows) element(n *node) error {
	if n.leaf >= 0 || n.children > 1 {
		return r.present(n)
	}
	return r.value(n.nodes[0])
}

// list appends a list, whose repeated node is n.
func (r *Rows) list(n *node, element func(*node) error) error {
	first := r.columns[n.first]
	if err := first.peek(); err != nil {
		return first.fault(err)
	}
	r.text = append(r.text, '[')
	if first.def < n.def {
		r.text = append(r.text, ']')
		return r.drop(n)
	}
	for {
		if err := element(n); err != nil {
			return err
		}
		if err := first.peek(); err != nil {
			return first.fault(err)
		}
		if first.rep < n.rep {
			r.text = append(r.text, ']')
			return nil
		}
		r.text = append(r.text, ',')
	}
}

// drop takes the entries of a node that is null or empty.
func (r *Rows) drop(n *node) error {
	for _, child := range n.nodes {
		if err := r.drop(child); err != nil {
			return err
		}
	}
	if n.leaf < 0 {
		return nil
	}
	c := r.columns[n.leaf]
	v, err := c.take()
	if err == nil && v != nil {
		err = errors.New("it has a value where the columns beside it have none")
	}
	if err != nil {
		return c.fault(err)
	}
	return nil
}

// endRow compares the columns with lists: all must be at the beginning of a row.
func (r *Rows) endRow(n *node) error {
	for _, child := range n.nodes {
		if err := r.endRow(child); err != nil {
			return err
		}
	}
	if n.leaf < 0 || n.rep == 0 {
		return nil
	}
	c := r.columns[n.leaf]
	err := c.peek()
	if err == nil && c.rep > 0 {
		err = errors.New("its lists are longer than those beside it")
	}
	if err != nil {
		return c.fault(err)
	}
	return nil
}

// fault is an error of a column.
func (c *column) fault(err error) error {
	return fmt.Errorf("column %s: %w", c.leaf.path, unexpected(err))
}

// bounded is an error if the text has become longer than it may.
func (r *Rows) bounded() error {
	if n := r.written + int64(len(r.text)); n > r.file.most() {
		return fmt.Errorf("its rows have more than %d bytes, %d times its size: want a file that is not made to "+
			"exhaust memory", r.file.most(), MaxExpansion)
	}
	return nil
}
