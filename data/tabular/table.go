// SPDX-License-Identifier: Apache-2.0

// Package tabular reads tables of named columns: CSV, tab-separated values and JSON, plain or compressed by gzip or
// zstd, and Parquet. Use it for sets of labelled rows that fit into memory, such as those of text classification and
// regression. Start with [Read].
//
// Values are text; the caller interprets them as numbers, classes or sentences. Corpora of running text are read by
// package data/text.
package tabular

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/internal/compressed"
	"github.com/lockstep-ml/lockstep/internal/foreign"
	"github.com/lockstep-ml/lockstep/internal/jsontext"
	"github.com/lockstep-ml/lockstep/internal/parquet"
	"github.com/lockstep-ml/lockstep/internal/textcolumn"
)

// Table is the content of a file.
type Table struct {
	Path    string
	Columns []string
	// Rows has one value for each column; one that is missing in JSON, null or NaN is "".
	Rows [][]string
	// Lines has the number of each row's first line in the file, from 1; of a Parquet file that of the row.
	Lines []int

	most   int64          // values that the table may have
	nested map[string]int // columns that hold lists or objects, in which line first
	places map[string]int // of columns
	// parquet says that Lines has numbers of rows, and unread the columns that are left out.
	parquet bool
	unread  []parquet.Unread
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
		return fmt.Errorf("it has %d columns: want at most %d", len(columns), MaxColumns)
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

// Place is where a row is in the file, for messages: "line 3", or "row 3" in a Parquet file.
func (t *Table) Place(row int) string { return t.place(t.Lines[row]) }

func (t *Table) place(number int) string {
	if t.parquet {
		return fmt.Sprint("row ", number)
	}
	return fmt.Sprint("line ", number)
}

// Read reads a file. Its format is that of its name, without .gz or .zst: .csv is comma-separated with a header (RFC
// 4180), .tsv the same with tabs and without quoting, and .jsonl, .ndjson and .json have objects of strings, numbers
// and bools: one on each line, an array of them, or one after the other. .parquet is a Parquet file of such values;
// dates and timestamps are written as in ISO 8601. Lists and objects are no values: a column that has some is an error
// of Column alone, and so is one of bytes, decimals, times of day or int96 timestamps.
//
// A .csv may have semicolons or tabs between its values, if its header has none of the commas. Blanks after the commas
// of a header are no part of the names, nor are they of the values then. A first column of whole numbers without a
// name, as pandas writes its index, is left out.
//
// A table without rows, a row of another length than the header, text that is not UTF-8 and a name of
// another format are errors that name the file and, where there is one, the line; so is a file of a format that is
// not read, such as a workbook, by its first bytes.
//
// A file that is compressed, or a Parquet file, may hold 200 times its size, or 64 MiB if that is more. A table has at
// most MaxColumns columns, and 8 values for each byte of the file, or 8 Mi if that is more.
func Read(path string) (*Table, error) {
	t := &Table{Path: path}
	var read func(raw []byte) error
	format := strings.ToLower(filepath.Ext(compressed.TrimExt(path)))
	switch format {
	case ".csv":
		read = t.readCSV
	case ".tsv":
		read = t.readTSV
	case ".jsonl", ".ndjson", ".json":
		read = t.readJSON
	case ".parquet":
		return t.readParquet()
	}
	if read == nil {
		return nil, unknownFormat(path, format)
	}
	raw, size, err := content(path)
	if err == nil {
		err = foreign.Check(path, raw)
	}
	if err != nil {
		return nil, fmt.Errorf("tabular: %w", err)
	}
	return t.fill(read, raw, size)
}

// unknownFormat is the error of a name that says no format, by what the file begins with if that is known.
func unknownFormat(path, format string) error {
	if f, err := compressed.Open(path); err == nil {
		defer f.Close()
		head := make([]byte, foreign.HeadSize)
		n, _ := io.ReadFull(f, head)
		if err := foreign.Check(path, head[:n]); err != nil {
			return fmt.Errorf("tabular: %w", err)
		}
	}
	return fmt.Errorf("tabular: %s: unknown format %q: want a file named .csv, .tsv, .jsonl or .json, or the same "+
		"with .gz or .zst, or .parquet", path, format)
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

// Column is the place of a column. The error lists those that there are, or names the line in which the column has a
// list or an object.
func (t *Table) Column(name string) (int, error) {
	if line, ok := t.nested[name]; ok {
		return 0, fmt.Errorf("tabular: %s: %s: %q is a list or an object: want a string, a number or a bool", t.Path,
			t.place(line), name)
	}
	for _, u := range t.unread {
		if u.Column == name {
			return 0, fmt.Errorf("tabular: %s: column %s is of type %s, which is not read", t.Path, name, u.Type)
		}
	}
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
	f, err := compressed.Open(path)
	if err != nil {
		return nil, 0, err
	}
	raw, err = io.ReadAll(f)
	return raw, info.Size(), errors.Join(err, f.Close())
}

// byteOrderMark begins files of some programs.
var byteOrderMark = []byte("\ufeff")

func (t *Table) readCSV(raw []byte) error {
	raw = bytes.TrimPrefix(raw, byteOrderMark)
	r := csv.NewReader(bytes.NewReader(raw))
	r.FieldsPerRecord = -1 // compared below, with the text of the row
	r.Comma, r.TrimLeadingSpace = csvStyle(raw)
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return csvFault(raw, err)
		}
		if t.Columns == nil {
			for i, name := range row {
				row[i] = strings.TrimSpace(name)
			}
			if err := t.head(row); err != nil {
				return err
			}
			continue
		}
		line, _ := r.FieldPos(0)
		if len(row) != len(t.Columns) {
			return ragged(line, row, t.Columns, r.Comma)
		}
		if err := t.add(row, line); err != nil {
			return err
		}
	}
}

// csvStyle is what separates the values of a CSV text, and whether blanks follow it, by the header.
func csvStyle(raw []byte) (separator rune, blanks bool) {
	header := ""
	for _, line := range nonBlank(raw) {
		header = line
		break
	}
	separator = ','
	if !strings.Contains(header, ",") {
		for _, other := range ";\t" {
			if strings.ContainsRune(header, other) {
				separator = other
				break
			}
		}
	}
	return separator, strings.Contains(header, string(separator)+" ")
}

// csvFault adds the line's text to an error of package csv.
func csvFault(raw []byte, err error) error {
	var at *csv.ParseError
	if !errors.As(err, &at) {
		return err
	}
	number := 0
	for line := range bytes.Lines(raw) {
		if number++; number == at.Line {
			return fmt.Errorf("%w: %s", err, clip(string(line)))
		}
	}
	return err
}

// ragged is the error of a row that has not as many values as the header.
func ragged(line int, row, columns []string, separator rune) error {
	hint := ""
	if len(row) > len(columns) && separator != '\t' {
		hint = fmt.Sprintf("; a value that has %q in it must stand in quotes", separator)
	}
	return fmt.Errorf("line %d has %d values: want %d as the header (%s): %s%s", line, len(row), len(columns),
		clip(strings.Join(columns, ", ")), clip(strings.Join(row, string(separator))), hint)
}

// clip is the beginning of a text, for messages.
func clip(s string) string {
	const most = 100
	s = strings.TrimSpace(s)
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

func (t *Table) readTSV(raw []byte) error {
	for number, line := range nonBlank(raw) {
		row := strings.Split(line, "\t")
		if t.Columns == nil {
			for i, name := range row {
				row[i] = strings.TrimSpace(name)
			}
			if err := t.head(row); err != nil {
				return err
			}
			continue
		}
		if len(row) != len(t.Columns) {
			return ragged(number, row, t.Columns, '\t')
		}
		if err := t.add(row, number); err != nil {
			return err
		}
	}
	return nil
}

// readJSON makes a column of every key that an object has, in the order in which they come up.
func (t *Table) readJSON(raw []byte) error {
	for record, err := range jsontext.Records(bytes.NewReader(raw)) {
		if err != nil {
			return err
		}
		if err := t.object(record.Text, record.Line); err != nil {
			return err
		}
	}
	t.fillUp()
	return nil
}

// object adds a row with the values of an object.
func (t *Table) object(text []byte, line int) error {
	if !utf8.Valid(text) {
		return fmt.Errorf("%s is not UTF-8", t.place(line))
	}
	fields, err := jsontext.Fields(text)
	if err != nil {
		return fmt.Errorf("%s: %w", t.place(line), err)
	}
	if len(t.Rows) == 0 && !t.parquet && columnar(fields) {
		return errors.New("it has the columns one after the other, as pandas.DataFrame.to_json writes them: " +
			`want to_json(FILE, orient="records", lines=True)`)
	}
	if t.places == nil {
		t.places, t.nested = map[string]int{}, map[string]int{}
	}
	row := make([]string, len(t.Columns))
	for _, f := range fields {
		at, known := t.places[f.Key]
		if !known {
			at = len(t.Columns)
			t.places[f.Key], t.Columns, row = at, append(t.Columns, f.Key), append(row, "")
		}
		if row[at], err = t.value(f, line); err != nil {
			return fmt.Errorf("%s: %w", t.place(line), err)
		}
	}
	return errors.Join(t.head(t.Columns), t.add(row, line))
}

// fillUp makes all rows as long as the last.
func (t *Table) fillUp() {
	for i, row := range t.Rows {
		t.Rows[i] = append(row, make([]string, len(t.Columns)-len(row))...)
	}
}

// readParquet reads a Parquet file, whose errors name it.
func (t *Table) readParquet() (_ *Table, err error) {
	f, err := parquet.Open(t.Path)
	if err != nil {
		return nil, fmt.Errorf("tabular: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	t.parquet, t.unread = true, f.Unread
	t.most = max(minCells, cellsPerByte*f.Size())
	rows, err := f.Rows(0)
	if err != nil {
		return nil, fmt.Errorf("tabular: %w", err)
	}
	defer rows.Close()
	for {
		text, number, err := rows.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			if err = t.object(text, int(number)); err != nil {
				err = fmt.Errorf("%s: %w", t.Path, err)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("tabular: %w", err)
		}
	}
	t.fillUp()
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("tabular: %s: %w", t.Path, err)
	}
	return t, nil
}

// columnar reports whether an object is a whole table by columns, {"text": {"0": …}, …}.
func columnar(fields []jsontext.Field) bool {
	for _, f := range fields {
		if !bytes.HasPrefix(f.Value, []byte(`{"0":`)) {
			return false
		}
	}
	return len(fields) > 0
}

// value is the text of a value. A list or an object has none.
func (t *Table) value(f jsontext.Field, line int) (string, error) {
	switch f.Value[0] {
	case '"':
		return f.Text()
	case '[', '{':
		if _, ok := t.nested[f.Key]; !ok {
			t.nested[f.Key] = line
		}
		return "", nil
	case 'n':
		return "", nil
	}
	return string(f.Value), nil
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
		return errors.New("there are no rows: want a header and at least one")
	}
	t.dropIndex()
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
				return fmt.Errorf("%s is not UTF-8", t.Place(i))
			}
		}
	}
	return nil
}

// dropIndex leaves a first column of whole numbers out that has no name: the index of pandas.
func (t *Table) dropIndex() {
	if len(t.Columns) < 2 || t.Columns[0] != "" {
		return
	}
	for _, row := range t.Rows {
		if _, err := strconv.Atoi(row[0]); err != nil {
			return
		}
	}
	t.Columns = t.Columns[1:]
	for i, row := range t.Rows {
		t.Rows[i] = row[1:]
	}
}

// Numbers reports whether a column holds numbers: all of its values that are not empty, and at least one.
func (t *Table) Numbers(column int) bool {
	found := false
	for _, row := range t.Rows {
		if row[column] == "" {
			continue
		}
		if _, err := strconv.ParseFloat(row[column], 64); err != nil {
			return false
		}
		found = true
	}
	return found
}

// TextColumn is the place of the column that holds the texts, as a rule: text, sentence, content or review, or else the
// first that holds neither numbers nor lists and is not named like a key. except are columns with another use.
// Columns that belong together, as sentence1 and sentence2, are an error that names the second.
func (t *Table) TextColumn(except ...string) (int, error) {
	at, err := textcolumn.Choose(t.Columns, func(i int) bool {
		_, nested := t.nested[t.Columns[i]]
		return !nested && !t.Numbers(i) && !t.empty(i)
	}, except...)
	if err != nil {
		return 0, fmt.Errorf("tabular: %s: %w", t.Path, err)
	}
	return at, nil
}

// empty reports whether a column has no value.
func (t *Table) empty(column int) bool {
	return !slices.ContainsFunc(t.Rows, func(row []string) bool { return row[column] != "" })
}
