// SPDX-License-Identifier: Apache-2.0

// Package text reads text corpora: plain files, JSON Lines, folders and glob patterns, also compressed by gzip.
// Use it to load the texts on which a tokenizer or a language model is trained: [Expand] lists the files, and
// [Read] yields their documents one by one.
//
// It checks that text is UTF-8 and says where it is not, lists source trees ([GoSource], [Walk]), and divides
// files into training and held-out ones ([HeldOut]).
//
// It does not tokenize (see package data/tokenizers), does not cut text into samples (package data) and does
// not read tables of texts with labels (data/tabular).
package text

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/internal/gzipped"
)

// Document is one text of a corpus: a whole file, or one line of a JSON Lines file.
type Document struct {
	Path string
	Line int // 1-based line of a JSON Lines file, 0 for a whole file
	Text string
}

// Options are the settings of Read.
type Options struct {
	// Column is the field of JSON Lines that holds the text. "" is "text", or, where the file's first object has no
	// such field, the first one that holds a string, as in transformers' run_clm.py.
	Column string
	// AnyBytes takes plain files as they are: a file that is not UTF-8 is no error. A
	// byte-level tokenizer can be evaluated on such files; for training they are
	// nearly always a mistake.
	AnyBytes bool
}

// MaxExpansion bounds what a file compressed by gzip may hold: so many times its size, or 64 MiB if that is more.
// Text seldom shrinks to less than a tenth; a file that holds more is made to exhaust memory.
const MaxExpansion = gzipped.MaxExpansion

// Read yields the documents of the files in the given order. Files whose names end in
// .jsonl, .ndjson or .json hold one JSON object a line, with the text in one of its fields (Options.Column);
// all others are plain text and one document each. With .gz behind their names they are compressed by gzip. A byte
// order mark at the beginning is no part of the text. Lines may have any length; one line is in memory at a time.
//
// The sequence ends after the first error. It is an error if a file is empty or has
// no document, is not UTF-8 (with the offset of the first bad byte), or has a line that is
// not such an object (with the line's number).
func Read(paths []string, o Options) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		for _, path := range paths {
			for doc, err := range readOne(path, o) {
				if !yield(doc, err) || err != nil {
					return
				}
			}
		}
	}
}

// Texts is the texts of docs alone, the form in which a tokenizer is trained.
func Texts(docs iter.Seq2[Document, error]) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for doc, err := range docs {
			if !yield(doc.Text, err) {
				return
			}
		}
	}
}

// Collect returns all documents, or the first error.
func Collect(docs iter.Seq2[Document, error]) ([]Document, error) {
	var all []Document
	for doc, err := range docs {
		if err != nil {
			return nil, err
		}
		all = append(all, doc)
	}
	return all, nil
}

func readOne(path string, o Options) iter.Seq2[Document, error] {
	if isJSONLines(path) {
		return readJSONLines(path, o.Column)
	}
	return func(yield func(Document, error) bool) {
		text, err := readPlain(path, o)
		yield(Document{Path: path, Text: text}, err)
	}
}

func isJSONLines(path string) bool {
	switch strings.ToLower(filepath.Ext(gzipped.TrimExt(path))) {
	case ".jsonl", ".ndjson", ".json":
		return true
	}
	return false
}

// byteOrderMark begins files of some programs.
const byteOrderMark = "\ufeff"

func readPlain(path string, o Options) (string, error) {
	f, err := gzipped.Open(path)
	if err != nil {
		return "", fmt.Errorf("text: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return "", fmt.Errorf("text: %w", err)
	}
	if at := invalidUTF8(data); at >= 0 && !o.AnyBytes {
		return "", notUTF8(path, data, at, 0)
	}
	if !o.AnyBytes {
		data = bytes.TrimPrefix(data, []byte(byteOrderMark))
	}
	if len(data) == 0 {
		return "", fmt.Errorf("text: %s is empty", path)
	}
	return string(data), nil
}

// invalidUTF8 is the offset of the first byte that is not part of valid UTF-8, or -1.
func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; ; {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
}

// notUTF8 names the bad byte data[at]; data starts at the given offset of the file.
func notUTF8(path string, data []byte, at int, offset int64) error {
	hint := ""
	if offset == 0 && (bytes.HasPrefix(data, []byte{0xFF, 0xFE}) || bytes.HasPrefix(data, []byte{0xFE, 0xFF})) {
		hint = "; it looks like UTF-16"
	}
	return fmt.Errorf("text: %s is not UTF-8: byte 0x%02X at offset %d%s", path, data[at], offset+int64(at), hint)
}

func readJSONLines(path, column string) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		f, err := gzipped.Open(path)
		if err != nil {
			yield(Document{}, fmt.Errorf("text: %w", err))
			return
		}
		defer f.Close()
		documents := 0
		for line, err := range lines(f) {
			doc := Document{Path: path, Line: line.number}
			if err != nil {
				err = fmt.Errorf("text: reading %s: %w", path, err)
			} else {
				if column == "" {
					column = line.column()
				}
				doc.Text, err = line.text(path, column)
			}
			documents++
			if !yield(doc, err) || err != nil {
				return
			}
		}
		if documents == 0 {
			yield(Document{}, fmt.Errorf("text: %s is empty: it has no line with a JSON object", path))
		}
	}
}

// line is one line of a file that is not blank, without its end.
type line struct {
	data   []byte // valid until the next line
	number int    // 1-based
	offset int64  // of the line's first byte in the file
}

// lines yields the lines of r that are not blank, of any length. A byte order mark
// at the start is skipped.
func lines(r io.Reader) iter.Seq2[line, error] {
	return func(yield func(line, error) bool) {
		buffered := bufio.NewReaderSize(r, 1<<16)
		var l line
		for at := int64(0); ; {
			l.data, l.offset = l.data[:0], at
			l.number++
			err := bufio.ErrBufferFull
			for errors.Is(err, bufio.ErrBufferFull) {
				var part []byte
				part, err = buffered.ReadSlice('\n')
				l.data = append(l.data, part...)
			}
			at += int64(len(l.data))
			if err != nil && err != io.EOF {
				yield(l, err)
				return
			}
			if mark := []byte(byteOrderMark); l.number == 1 && bytes.HasPrefix(l.data, mark) {
				l.data, l.offset = l.data[len(mark):], int64(len(mark))
			}
			if len(bytes.TrimSpace(l.data)) > 0 && !yield(l, nil) {
				return
			}
			if err == io.EOF {
				return
			}
		}
	}
}

// column is the field that holds the text of a file whose first object the line is.
func (l line) column() string {
	const usual = "text"
	d := json.NewDecoder(bytes.NewReader(l.data))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return usual
	}
	first := ""
	for d.More() {
		key, err := d.Token()
		var value any
		if err != nil || d.Decode(&value) != nil || key == usual {
			return usual
		}
		if _, ok := value.(string); ok && first == "" {
			first = key.(string) // the keys of an object are strings
		}
	}
	return cmp.Or(first, usual)
}

// text decodes the line's object and returns its field of the given name.
func (l line) text(path, column string) (string, error) {
	if at := invalidUTF8(l.data); at >= 0 {
		return "", fmt.Errorf("%w (line %d)", notUTF8(path, l.data, at, l.offset), l.number)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(l.data, &object); err != nil {
		return "", fmt.Errorf("text: %s: line %d is not a JSON object: %w", path, l.number, err)
	}
	raw, ok := object[column]
	if !ok {
		return "", fmt.Errorf("text: %s: line %d has no field %q", path, l.number, column)
	}
	var text *string
	if err := json.Unmarshal(raw, &text); err != nil || text == nil {
		return "", fmt.Errorf("text: %s: line %d: field %q is %.40s, want a string", path, l.number, column, raw)
	}
	if loneSurrogate(raw, *text) {
		return "", fmt.Errorf(`text: %s: line %d: field %q has an escape \uD800 to \uDFFF that is not half of a pair`,
			path, l.number, column)
	}
	return *text, nil
}

// loneSurrogate reports whether decoding put a replacement character where raw has
// none, which is what package json makes of half a surrogate pair.
func loneSurrogate(raw json.RawMessage, text string) bool {
	const replacement = "\ufffd"
	n := strings.Count(text, replacement)
	if n == 0 {
		return false
	}
	written := bytes.Count(raw, []byte(replacement))
	for i := 0; i+6 <= len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if bytes.EqualFold(raw[i:i+6], []byte(`\ufffd`)) {
			written++
		}
		i++ // the character after a backslash does not start an escape
	}
	return n > written
}
