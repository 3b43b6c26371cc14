// SPDX-License-Identifier: Apache-2.0

// Package text reads text corpora: plain files, JSON, tables, Parquet, folders and glob patterns, also compressed by
// gzip or zstd. Use it to load the texts on which a tokenizer or a language model is trained: [Expand] lists the files,
// and [Read] yields their documents one by one.
//
// It reports where text is not UTF-8, lists source trees ([GoSource], [Walk]), and divides files into training and
// held-out ones ([HeldOut]).
//
// It does not tokenize (see package data/tokenizers), does not cut text into samples (package data) and does
// not read tables of texts with labels (data/tabular).
package text

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/internal/compressed"
	"github.com/lockstep-ml/lockstep/internal/foreign"
	"github.com/lockstep-ml/lockstep/internal/jsontext"
	"github.com/lockstep-ml/lockstep/internal/textcolumn"
)

// Document is one text of a corpus: a whole file, or a value in a row of a file that has rows.
type Document struct {
	Path   string
	Line   int    // in which the row begins, from 1; of a Parquet file the row; 0 for a whole file
	Column string // of the row; "" for a whole file
	Text   string
}

// Options are the settings of Read.
type Options struct {
	// Column is the field of JSON, or the column of a table, that holds the text. "" is text, sentence, content or
	// review, the first that the file's first row has, or else the first that holds a string, is no number and is not
	// named like a key, as id is. Columns of which each holds a part of the text, as instruction and output, are an
	// error then, which names the second.
	Column string
	// AnyBytes reads plain files without checks: a file that is not UTF-8 is no error. A byte-level tokenizer can be
	// evaluated on such files; for training they are nearly always a mistake.
	AnyBytes bool
}

// MaxExpansion bounds what a compressed file may hold: so many times its size, or 64 MiB if that is more.
// Text seldom shrinks to less than a tenth; a file that holds more is made to exhaust memory.
const MaxExpansion = compressed.MaxExpansion

// Read yields the documents of the files in the given order. Files whose names end in .jsonl, .ndjson or .json hold
// JSON objects, with the text in one of their fields (Options.Column): one on each line, an array of them, or one after
// the other. Those whose names end in .csv, .tsv or .parquet are tables, which tabular.Read reads. All others are plain
// text and one document each. With .gz or .zst behind their names they are compressed. A byte order mark at the
// beginning is no part of the text. Rows may have any length; one is in memory at a time, except of tables.
//
// The sequence ends after the first error. It is an error if a file is empty or has
// no document, is not UTF-8 (with the offset of the first bad byte), has a row that is
// not such an object (with its line), or is of another format, such as a workbook, by its first bytes.
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
	switch strings.ToLower(filepath.Ext(compressed.TrimExt(path))) {
	case ".jsonl", ".ndjson", ".json":
		return readJSON(path, o.Column)
	case ".csv", ".tsv", ".parquet":
		return readTable(path, o.Column)
	}
	return func(yield func(Document, error) bool) {
		text, err := readPlain(path, o)
		yield(Document{Path: path, Text: text}, err)
	}
}

// byteOrderMark begins files of some programs.
const byteOrderMark = "\ufeff"

func readPlain(path string, o Options) (string, error) {
	f, err := compressed.Open(path)
	if err != nil {
		return "", fmt.Errorf("text: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return "", fmt.Errorf("text: %w", err)
	}
	if !o.AnyBytes {
		if err := foreign.Check(path, data); err != nil {
			return "", fmt.Errorf("text: %w", err)
		}
		if at := jsontext.InvalidUTF8(data); at >= 0 {
			return "", notUTF8(path, data, at, 0)
		}
		data = bytes.TrimPrefix(data, []byte(byteOrderMark))
	}
	if len(data) == 0 {
		return "", fmt.Errorf("text: %s is empty", path)
	}
	return string(data), nil
}

// notUTF8 names the bad byte data[at]; data starts at the given offset of the file.
func notUTF8(path string, data []byte, at int, offset int64) error {
	return fmt.Errorf("text: %s is not UTF-8: byte 0x%02X at offset %d", path, data[at], offset+int64(at))
}

func readTable(path, column string) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		t, err := tabular.Read(path)
		at := 0
		if err == nil && column == "" {
			at, err = t.TextColumn()
		} else if err == nil {
			at, err = t.Column(column)
		}
		if err != nil {
			yield(Document{}, fmt.Errorf("text: %w", err))
			return
		}
		for i, row := range t.Rows {
			if !yield(Document{Path: path, Line: t.Lines[i], Column: t.Columns[at], Text: row[at]}, nil) {
				return
			}
		}
	}
}

func readJSON(path, column string) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		f, err := compressed.Open(path)
		if err != nil {
			yield(Document{}, fmt.Errorf("text: %w", err))
			return
		}
		defer f.Close()
		buffered := bufio.NewReader(f)
		head, _ := buffered.Peek(foreign.HeadSize) // what goes wrong does so again
		if err := foreign.Check(path, head); err != nil {
			yield(Document{}, fmt.Errorf("text: %w", err))
			return
		}
		documents := 0
		for record, err := range jsontext.Records(buffered) {
			doc := Document{Path: path, Line: record.Line}
			if err != nil {
				err = fmt.Errorf("text: reading %s: %w", path, err)
			} else {
				doc.Column, doc.Text, err = fieldOf(path, record, column)
				column = doc.Column
			}
			documents++
			if !yield(doc, err) || err != nil {
				return
			}
		}
		if documents == 0 {
			yield(Document{}, fmt.Errorf("text: %s is empty: it has no JSON object", path))
		}
	}
}

// fieldOf decodes an object and returns its field of the given name, or of the name that it chooses.
func fieldOf(path string, record jsontext.Record, column string) (name, text string, err error) {
	if at := jsontext.InvalidUTF8(record.Text); at >= 0 {
		return "", "", fmt.Errorf("%w (line %d)", notUTF8(path, record.Text, at, record.Offset), record.Line)
	}
	fields, err := jsontext.Fields(record.Text)
	if err != nil {
		return "", "", fmt.Errorf("text: %s: line %d is not a JSON object: %w", path, record.Line, err)
	}
	if column == "" {
		if column, err = choose(fields); err != nil {
			return "", "", fmt.Errorf("text: %s: line %d: %w", path, record.Line, err)
		}
	}
	for i := len(fields) - 1; i >= 0; i-- { // of a duplicate key the last counts
		if fields[i].Key != column {
			continue
		}
		if text, err = fields[i].Text(); err != nil {
			err = fmt.Errorf("text: %s: line %d: %w", path, record.Line, err)
		}
		return column, text, err
	}
	return "", "", fmt.Errorf("text: %s: line %d has no field %q", path, record.Line, column)
}

// choose is the field that holds the text of a file whose first object has the given ones.
func choose(fields []jsontext.Field) (string, error) {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Key
	}
	at, err := textcolumn.Choose(names, func(i int) bool {
		if fields[i].Value[0] == 'n' {
			return textcolumn.Usual(names[i]) // null may be a text in other rows
		}
		s, err := fields[i].Text()
		_, number := strconv.ParseFloat(s, 64)
		return err == nil && number != nil
	})
	if err != nil {
		return "", err
	}
	return names[at], nil
}
