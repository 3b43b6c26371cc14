// SPDX-License-Identifier: Apache-2.0

// Package jsonlines reads JSON Lines and Parquet files as a stream of samples, one line or row after the other, so
// files may be larger than memory. Use it for a training or evaluation set that is read in order: give the [Files] with
// a collator to data.NewIterableSource, and that to trainer.WithIterableTrainData. A resumed run continues at its line.
//
// data.Shuffle shuffles them by a buffer, and data.Interleave mixes several. Text that fits into memory is read by
// data/text, tables by data/tabular, and both can then be shuffled as a whole.
package jsonlines

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/compressed"
	"github.com/lockstep-ml/lockstep/internal/foreign"
	"github.com/lockstep-ml/lockstep/internal/jsontext"
	"github.com/lockstep-ml/lockstep/internal/parquet"
	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Files are the lines of JSON Lines files and the rows of Parquet files, each a sample of type T by the rules of
// encoding/json, or of T's own if it is a [Record]. It is a data.Iterable whose epochs are alike, and each of its
// cursors is a data.Seeker.
type Files[T any] struct {
	paths []string
	// seed is that of the order of the files, nil: as given.
	seed *uint64
	// columns are those that are read, nil: all.
	columns jsontext.Columns
}

// Record is a sample that reads itself.
type Record interface {
	// ParseRecord reads the sample from the text of a line, which is valid during the call. place is where it stands,
	// "FILE: line 3" or "FILE: row 3", which errors need not name.
	ParseRecord(text []byte, place string) error
}

// Open reads files in the given order. Those whose names end in .parquet are Parquet files, and those in .gz or .zst
// are decompressed. Blank lines and a byte order mark are skipped. Lines may have any length; one is in memory at a
// time, of a Parquet file a page of each column. It is an error if there is no file.
//
// Reading ends with an error that names the file and the line, or the row of a Parquet file, if a line is not UTF-8 or
// not what T needs, if the first line of a file lacks a field of T that is not omitempty, or if a file has no line.
func Open[T any](paths ...string) (*Files[T], error) {
	if len(paths) == 0 {
		return nil, errors.New("jsonlines: there is no file: want at least 1 path")
	}
	return &Files[T]{paths: append([]string{}, paths...)}, nil
}

// SelectColumns returns the same files with some columns alone, by the names that samples have for them: {"prompt":
// "question"} reads question as prompt. Of Parquet files nothing else is read. A row that lacks a column is read
// without; one that lacks all is an error, and so is a Parquet file that lacks one.
func (f *Files[T]) SelectColumns(columns map[string]string) *Files[T] {
	return &Files[T]{f.paths, f.seed, maps.Clone(columns)}
}

// ShuffleFiles returns the same files in a random order in each epoch, which depends on the seed and the epoch. So a
// shuffle buffer (data.Shuffle) sees parts of a data set that lie far apart.
func (f *Files[T]) ShuffleFiles(seed uint64) *Files[T] { return &Files[T]{f.paths, &seed, f.columns} }

// fingerprinted is how much of each file's beginning a fingerprint reads.
const fingerprinted = 1 << 16

// Fingerprint implements data.Fingerprinter: a hash of the beginnings of the files, and of the sizes of those that are
// not compressed; of Parquet files the ends count, where their metadata are. It is empty if a file cannot be read.
func (f *Files[T]) Fingerprint() string {
	h := sha256.New()
	if f.seed != nil {
		fmt.Fprintf(h, "shuffled %d\n", *f.seed)
	}
	if f.columns != nil {
		fmt.Fprintf(h, "columns %q\n", f.columns) // maps are printed in the order of their keys
	}
	for _, path := range f.paths {
		if isParquet(path) {
			if !hashParquet(h, path) {
				return ""
			}
			continue
		}
		r, err := openAt(path, 0)
		if err != nil {
			return ""
		}
		n, err := io.CopyN(h, r.Reader, fingerprinted)
		if closed := r.Close(); closed != nil || err != nil && err != io.EOF {
			return ""
		}
		_ = binary.Write(h, binary.LittleEndian, []int64{n, r.size}) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Open implements data.Iterable.
func (f *Files[T]) Open(_ context.Context, epoch int64) (data.Cursor[T], error) {
	c := &cursor[T]{paths: f.paths, columns: f.columns}
	if f.seed != nil {
		order := rng.NewPerm(rng.Key(*f.seed, "jsonlines.Files", uint64(epoch)), int64(len(f.paths)))
		c.paths = make([]string, len(f.paths))
		for i := range c.paths {
			c.paths[i] = f.paths[order.At(int64(i))]
		}
	}
	if _, own := any(new(T)).(Record); !own {
		c.wanted = fieldsOf(reflect.TypeFor[T]())
	}
	return c, nil
}

func isParquet(path string) bool { return strings.EqualFold(filepath.Ext(path), ".parquet") }

// hashParquet adds a file to a fingerprint, and reports whether it can be read.
func hashParquet(h io.Writer, path string) bool {
	f, err := vfs.OpenRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false
	}
	end := min(info.Size(), fingerprinted)
	_, err = io.Copy(h, io.NewSectionReader(f, info.Size()-end, end))
	_ = binary.Write(h, binary.LittleEndian, info.Size()) // a hash takes everything
	return err == nil
}

// place is where a cursor continues.
type place struct {
	File   int   `json:"file"`
	Line   int   `json:"line"`   // lines or rows of the file that are done with
	Offset int64 `json:"offset"` // the bytes of lines, decompressed
}

// cursor reads the lines of an epoch.
type cursor[T any] struct {
	paths   []string
	columns jsontext.Columns
	wanted  []string // the fields that the first line of a file must have; nil: lines are not objects
	at      place
	found   bool  // the file has a line that is not blank
	file    *file // nil: to be opened
	line    []byte
	table   *parquet.File // of a Parquet file; nil: to be opened
	rows    *parquet.Rows
}

// Next implements data.Cursor.
func (c *cursor[T]) Next() (sample T, err error) {
	for c.at.File < len(c.paths) {
		path := c.paths[c.at.File]
		text, ended, err := c.record(path)
		if err != nil {
			return sample, fmt.Errorf("jsonlines: %w", err)
		}
		if len(text) > 0 {
			place := fmt.Sprintf("%s: line %d", path, c.at.Line)
			if isParquet(path) {
				place = fmt.Sprintf("%s: row %d", path, c.at.Line)
			}
			if err := c.decode(text, place, &sample); err != nil {
				return sample, fmt.Errorf("jsonlines: %s: %w", place, err)
			}
			c.found = true
			return sample, nil
		}
		if ended {
			if !c.found {
				return sample, fmt.Errorf("jsonlines: %s has no line with a sample", path)
			}
			if err := c.Close(); err != nil {
				return sample, fmt.Errorf("jsonlines: %w", err)
			}
			c.at, c.found = place{File: c.at.File + 1}, false
		}
	}
	return sample, io.EOF
}

// record is the next line, which may be blank, or row; ended says that there is none after it.
func (c *cursor[T]) record(path string) (text []byte, ended bool, err error) {
	if isParquet(path) {
		return c.readRow(path)
	}
	if c.file == nil {
		if c.file, err = openAt(path, c.at.Offset); err != nil {
			return nil, false, err
		}
	}
	if ended, err = c.readLine(); err != nil {
		return nil, false, fmt.Errorf("reading %s: %w", path, err)
	}
	return bytes.TrimSpace(c.line), ended, nil
}

// readRow is the next row of a Parquet file.
func (c *cursor[T]) readRow(path string) (text []byte, ended bool, err error) {
	if c.table == nil {
		if c.table, err = parquet.Open(path); err != nil {
			return nil, false, err
		}
	}
	if c.rows == nil {
		if c.rows, err = c.table.Rows(int64(c.at.Line), c.columns.Keys()...); err != nil {
			return nil, false, err
		}
	}
	text, _, err = c.rows.Next()
	if err == io.EOF {
		return nil, true, nil
	}
	if err == nil {
		c.at.Line++
	}
	return text, false, err
}

// readLine reads the next line with its end; ended says that there is none after it.
func (c *cursor[T]) readLine() (ended bool, err error) {
	c.line = c.line[:0]
	for err = bufio.ErrBufferFull; errors.Is(err, bufio.ErrBufferFull); {
		var part []byte
		part, err = c.file.ReadSlice('\n')
		c.line = append(c.line, part...)
	}
	if err != nil && err != io.EOF {
		return false, err
	}
	c.at.Offset += int64(len(c.line))
	c.at.Line++
	if c.at.Line == 1 {
		c.line = bytes.TrimPrefix(c.line, []byte("\ufeff"))
	}
	return err == io.EOF, nil
}

// decode reads a sample out of a line that is not blank.
func (c *cursor[T]) decode(line []byte, place string, sample *T) error {
	if !utf8.Valid(line) {
		return fmt.Errorf("%.40q: want UTF-8", line)
	}
	line, err := c.columns.Select(line)
	if err != nil {
		return err
	}
	if r, own := any(sample).(Record); own {
		return r.ParseRecord(line, place)
	}
	if c.wanted != nil && line[0] != '{' {
		hint := ""
		if line[0] == '[' && c.at.Line == 1 {
			hint = " on each line: \"jq -c '.[]' FILE\" writes the objects of an array so"
		}
		return fmt.Errorf("it begins with %.20q: want a JSON object%s", line, hint)
	}
	if err := unmarshal(line, sample); err != nil {
		return fmt.Errorf("%w (want %T)", err, *sample)
	}
	if c.found || c.wanted == nil {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(jsontext.Finite(line), &object); err != nil {
		return err
	}
	for _, name := range c.wanted {
		if !has(object, name) {
			return fmt.Errorf("it has no field %q", name)
		}
	}
	return nil
}

// unmarshal is json.Unmarshal, except that NaN and infinities, as Python writes them, may stand in fields that the
// sample does not have: whatever else they are does not change it.
func unmarshal[T any](line []byte, sample *T) error {
	err := json.Unmarshal(line, sample)
	finite := jsontext.Finite(line)
	if err == nil || bytes.Equal(line, finite) {
		return err
	}
	var null, text T
	if json.Unmarshal(finite, &null) != nil || json.Unmarshal(jsontext.Replaced(line, `"NaN"`), &text) != nil ||
		!reflect.DeepEqual(null, text) {
		return err
	}
	*sample = null
	return nil
}

// has tells whether an object has a field, as encoding/json compares names.
func has(object map[string]json.RawMessage, name string) bool {
	for key := range object {
		if strings.EqualFold(key, name) {
			return true
		}
	}
	return false
}

// fieldsOf lists the fields that objects of a struct type must have; nil if it is no struct.
func fieldsOf(t reflect.Type) []string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	fields := []string{}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && !f.Anonymous && name != "-" && !strings.Contains(options, "omit") {
			fields = append(fields, cmp.Or(name, f.Name))
		}
	}
	return fields
}

// Place implements data.Seeker.
func (c *cursor[T]) Place() (json.RawMessage, error) { return json.Marshal(c.at) }

// Seek implements data.Seeker. A file that is not compressed is not read up to its place.
func (c *cursor[T]) Seek(to json.RawMessage) error {
	var at place
	if err := json.Unmarshal(to, &at); err != nil {
		return fmt.Errorf("jsonlines: the place %.100q: %w", to, err)
	}
	rows := at.File >= 0 && at.File < len(c.paths) && isParquet(c.paths[at.File])
	if at.File < 0 || at.File > len(c.paths) || at.Line < 0 || at.Offset < int64(at.Line) && !rows {
		return fmt.Errorf("jsonlines: the place %s is not in %d files", to, len(c.paths))
	}
	c.at, c.found = at, at.Line > 0
	return c.Close()
}

// Close implements data.Cursor.
func (c *cursor[T]) Close() (err error) {
	if c.file != nil {
		err = c.file.Close()
		c.file = nil
	}
	if c.rows != nil {
		c.rows.Close()
		c.rows = nil
	}
	if c.table != nil {
		err = errors.Join(err, c.table.Close())
		c.table = nil
	}
	return err
}

// file is an open file, decompressed.
type file struct {
	*bufio.Reader
	io.Closer
	size int64 // -1 if it is compressed
}

// openAt opens a file at an offset of its contents.
func openAt(path string, offset int64) (f *file, err error) {
	if compressed.TrimExt(path) != path {
		z, err := compressed.Open(path)
		if err != nil {
			return nil, err
		}
		f = &file{bufio.NewReaderSize(z, 1<<16), z, -1}
		if err := f.check(path, offset); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if n, err := io.CopyN(io.Discard, f.Reader, offset); err != nil {
			return nil, errors.Join(fmt.Errorf("%s ends after %d bytes, before the place %d: %w", path, n, offset, err),
				f.Close())
		}
		return f, nil
	}
	plain, err := vfs.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	info, err := plain.Stat()
	if err == nil && offset > info.Size() {
		err = fmt.Errorf("%s has %d bytes, fewer than the place %d", path, info.Size(), offset)
	}
	if err == nil {
		_, err = plain.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	f = &file{bufio.NewReaderSize(plain, 1<<16), plain, info.Size()}
	if err := f.check(path, offset); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// check refuses a file of another format by what it begins with.
func (f *file) check(path string, offset int64) error {
	if offset > 0 {
		return nil
	}
	head, err := f.Peek(foreign.HeadSize)
	if err != nil && err != io.EOF {
		return err
	}
	return foreign.Check(path, head)
}
