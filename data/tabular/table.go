// SPDX-License-Identifier: Apache-2.0

// Package tabular reads tables of named columns: CSV, tab-separated values and JSON Lines, plain or compressed
// by gzip. Use it for sets of labelled rows that fit into memory, such as those of text classification and
// regression. Start with [Read].
//
// Values are text; what they mean (a number, a class, a sentence) is the caller's to decide. Corpora of running
// text are read by package data/text.
package tabular

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/internal/gzipped"
)

// Table is the content of a file.
type Table struct {
	Path    string
	Columns []string
	// Rows has one value for each column; one that is missing in JSON Lines, or null, is "".
	Rows [][]string
	// Lines has the number of each row's first line in the file, from 1.
	Lines []int

	most int64 // values that the table may have
}

// What a table may hold, so that a small file does not fill the memory: a value takes 16 to 64 bytes, and what is
// missing in JSON Lines is a value too.
const (
	MaxColumns   = 1 << 16
	cellsPerByte = 8       // of the file as it is, compressed or not
	minCells     = 8 << 20 // which every file may have
)

// head sets the columns.
func (t *Table) head(columns []string) error {
	if len(columns) > MaxColumns {
		return fmt.Errorf("it has %d columns, want at most %d", len(columns), MaxColumns)
	}
	t.Columns = columns
	return nil
}

// add appends a row that begins in a line of the file.
func (t *Table) add(row []string, line int) error {
	if int64(len(t.Rows)+1)*int64(len(t.Columns)) > t.most {
		return fmt.Errorf("it has more than %d values, too many for the file's size: want a file that is not made to "+
			"exhaust memory",
			t.most)
	}
	t.Rows, t.Lines = append(t.Rows, row), append(t.Lines, line)
	return nil
}

// Read reads a file. Its format is that of its name, without .gz: .csv is comma-separated with a header (RFC 4180),
// .tsv the same with tabs and without quoting, and .jsonl, .ndjson or .json one object of strings, numbers and bools
// on each line. A table without rows, a row of another length than the header, text that is not UTF-8 and a name of
// another format are errors that name the file and, where there is one, the line.
//
// A file compressed by gzip may hold 200 times its size, or 64 MiB if that is more. A table has at most MaxColumns
// columns, and 8 values for each byte of the file, or 8 Mi if that is more.
func Read(path string) (*Table, error) {
	t := &Table{Path: path}
	var read func(raw []byte) error
	switch format := strings.ToLower(filepath.Ext(gzipped.TrimExt(path))); format {
	case ".csv":
		read = t.readCSV
	case ".tsv":
		read = t.readTSV
	case ".jsonl", ".ndjson", ".json":
		read = t.readJSONLines
	default:
		return nil,
			fmt.Errorf("tabular: %s: unknown format %q: want a file named .csv, .tsv or .jsonl, or the same with .gz",
				path, format)
	}
	raw, size, err := content(path)
	if err != nil {
		return nil, fmt.Errorf("tabular: %w", err)
	}
	return t.fill(read, raw, size)
}

// Parse reads CSV text with a header, as a file that a program embeds. name stands for its path in errors.
func Parse(name string, text []byte) (*Table, error) {
	t := &Table{Path: name}
	return t.fill(t.readCSV, text, int64(len(text)))
}

// fill reads the table and checks it.
func (t *Table) fill(read func(raw []byte) error, raw []byte, size int64) (*Table, error) {
	t.most = max(minCells, cellsPerByte*size)
	err := read(raw)
	if err == nil {
		err = t.check()
	}
	if err != nil {
		return nil, fmt.Errorf("tabular: %s: %w", t.Path, err)
	}
	return t, nil
}

// Column is the place of a column. The error lists those that there are.
func (t *Table) Column(name string) (int, error) {
	if i := slices.Index(t.Columns, name); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("tabular: %s has no column %q: want one of %s", t.Path, name, strings.Join(t.Columns, ", "))
}

// content is the file's text, decompressed if its name says so, and the file's own size.
func content(path string) (raw []byte, size int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	f, err := gzipped.Open(path)
	if err != nil {
		return nil, 0, err
	}
	raw, err = io.ReadAll(f)
	return raw, info.Size(), errors.Join(err, f.Close())
}

// byteOrderMark begins files of some programs.
var byteOrderMark = []byte("\ufeff")

func (t *Table) readCSV(raw []byte) error {
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(raw, byteOrderMark)))
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if t.Columns == nil {
			if err := t.head(row); err != nil {
				return err
			}
			continue
		}
		line, _ := r.FieldPos(0)
		if err := t.add(row, line); err != nil {
			return err
		}
	}
}

func (t *Table) readTSV(raw []byte) error {
	for number, line := range nonBlank(raw) {
		row := strings.Split(line, "\t")
		if t.Columns == nil {
			if err := t.head(row); err != nil {
				return err
			}
			continue
		}
		if len(row) != len(t.Columns) {
			return fmt.Errorf("line %d has %d values, want %d as the header", number, len(row), len(t.Columns))
		}
		if err := t.add(row, number); err != nil {
			return err
		}
	}
	return nil
}

// readJSONLines makes a column of every key that a line has, in the order in which they come up.
func (t *Table) readJSONLines(raw []byte) error {
	places := map[string]int{}
	for number, line := range nonBlank(raw) {
		keys, values, err := object(line)
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		row := make([]string, len(t.Columns))
		for i, key := range keys {
			at, known := places[key]
			if !known {
				at = len(t.Columns)
				places[key], t.Columns, row = at, append(t.Columns, key), append(row, "")
			}
			row[at] = values[i]
		}
		if err := errors.Join(t.head(t.Columns), t.add(row, number)); err != nil {
			return err
		}
	}
	for i, row := range t.Rows {
		t.Rows[i] = append(row, make([]string, len(t.Columns)-len(row))...)
	}
	return nil
}

// object reads the keys and values of a JSON object, in their order.
func object(line string) (keys, values []string, err error) {
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, nil, errors.New("want a JSON object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, nil, fmt.Errorf("no JSON object: %w", err)
		}
		value, err := d.Token()
		if err != nil {
			return nil, nil, fmt.Errorf("no JSON object: %w", err)
		}
		text := ""
		switch v := value.(type) {
		case nil:
		case json.Delim:
			return nil, nil, fmt.Errorf("%q is a list or an object, want a string, a number or a bool", key)
		default:
			text = fmt.Sprint(v)
		}
		keys, values = append(keys, key.(string)), append(values, text) // a key is a string, or Token had failed
	}
	if _, err := d.Token(); err != nil {
		return nil, nil, fmt.Errorf("no JSON object: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("there is more after the JSON object, want one object on each line")
	}
	return keys, values, nil
}

// nonBlank yields the lines that are not blank, without their ends, with their numbers from 1.
func nonBlank(raw []byte) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		number := 0
		for line := range strings.Lines(string(bytes.TrimPrefix(raw, byteOrderMark))) {
			number++
			line = strings.TrimRight(line, "\r\n")
			if strings.TrimSpace(line) != "" && !yield(number, line) {
				return
			}
		}
	}
}

// check refuses tables that no format may have.
func (t *Table) check() error {
	if len(t.Rows) == 0 {
		return errors.New("there are no rows, want a header and at least one")
	}
	seen := make(map[string]bool, len(t.Columns))
	for i, name := range t.Columns {
		switch {
		case name == "":
			return fmt.Errorf("column %d has no name", i+1)
		case seen[name]:
			return fmt.Errorf("two columns are named %q", name)
		}
		seen[name] = true
	}
	for i, row := range t.Rows {
		for _, value := range row {
			if !utf8.ValidString(value) {
				return fmt.Errorf("line %d is not UTF-8", t.Lines[i])
			}
		}
	}
	return nil
}
