// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/internal/compressed"
	"github.com/lockstep-ml/lockstep/internal/foreign"
	"github.com/lockstep-ml/lockstep/internal/jsontext"
	"github.com/lockstep-ml/lockstep/internal/parquet"
)

// ReadRows reads the rows of files: JSON objects, one on each line, an array of them, or one after the other, which may
// be compressed by gzip or zstd; Parquet files; and tables of texts named .csv or .tsv. All must have one form. The
// error names the file and the line, or the row of a Parquet file. A Parquet file may hold 200 times its size, or 64
// MiB if that is more.
func ReadRows(paths ...string) ([]Row, error) { return Columns(nil).ReadRows(paths...) }

// Columns are the columns of files that are read, by the keys that rows have for them; nil: all. {"prompt": "question",
// "completion": "answer"} makes rows of a data set of questions and answers.
type Columns map[string]string

// ParseColumns reads the words of a flag: the name of a column, or key=name for one that is read as another key.
func ParseColumns(words ...string) (Columns, error) {
	if len(words) == 0 {
		return nil, nil
	}
	c := Columns{}
	for _, word := range words {
		key, name, renamed := strings.Cut(word, "=")
		if !renamed {
			name = key
		}
		if key == "" || name == "" {
			return nil, fmt.Errorf("chat: the column %q: want the name of one, or key=name", word)
		}
		if _, twice := c[key]; twice {
			return nil, fmt.Errorf("chat: two columns are %s: want one", key)
		}
		c[key] = name
	}
	return c, nil
}

// ReadRows is the function ReadRows for rows of these columns.
func (c Columns) ReadRows(paths ...string) ([]Row, error) {
	var rows []Row
	for _, path := range paths {
		err := c.readRecords(path, wantedFile, func(text []byte, place string, unread ...string) error {
			r, err := ParseRow(text)
			if err != nil {
				return err
			}
			r.Unread, r.Place = append(r.Unread, unread...), place
			if len(rows) > 0 && r.Form != rows[0].Form {
				return fmt.Errorf("the row has %s, and those before it %s: want one form", r.Form, rows[0].Form)
			}
			rows = append(rows, r)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("chat: %w", err)
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("chat: no rows in %q: want at least one", paths)
	}
	return rows, nil
}

// Unread are the keys of rows that their form has no use for, sorted.
func Unread(rows []Row) []string {
	return allOf(rows, func(r Row) []string { return r.Unread })
}

// UnreadOfPairs are the keys of rows of preferences that have no use, sorted.
func UnreadOfPairs(pairs []Pair) []string {
	return allOf(pairs, func(p Pair) []string { return p.Unread })
}

// allOf are the keys of all rows, sorted.
func allOf[T any](rows []T, of func(T) []string) []string {
	all := map[string]bool{}
	for _, r := range rows {
		for _, key := range of(r) {
			all[key] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

const (
	wantedFile    = "rows are read from JSON objects with " + wantedForms + wantedFormats
	wantedFormats = ", one on each line or in an array, from Parquet files, and from tables named .csv or .tsv"
)

// recordFunc gets the JSON of a row, its place, and what the file has of types that are not read.
type recordFunc func(text []byte, place string, unread ...string) error

// readRecords calls each for the rows of a file, and gives its errors the place of the row, with that of the file.
// wanted says what files should have, for other errors.
func (c Columns) readRecords(path, wanted string, each recordFunc) error {
	at := func(text []byte, place string, unread ...string) error {
		place = path + ": " + place
		text, err := jsontext.Columns(c).Select(text)
		if err == nil {
			err = each(text, place, unread...)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
		return nil
	}
	switch ext := strings.ToLower(filepath.Ext(compressed.TrimExt(path))); {
	case ext == ".csv", ext == ".tsv":
		return readTable(path, at)
	case parquet.Is(path):
		return readParquet(path, jsontext.Columns(c).Keys(), at)
	}
	return readJSON(path, wanted, at)
}

func readJSON(path, wanted string, at recordFunc) (err error) {
	f, err := compressed.OpenSniffed(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	in := bufio.NewReaderSize(f, 1<<16)
	head, err := in.Peek(foreign.HeadSize)
	if err != nil && err != io.EOF {
		return err
	}
	if err := foreign.Check(path, head); err != nil {
		return fmt.Errorf("%w; %s", err, wanted)
	}
	if text := bytes.TrimLeft(head, "\ufeff \t\r\n"); len(text) > 0 && text[0] != '{' && text[0] != '[' {
		return fmt.Errorf("%s does not begin with JSON: %s", path, wanted)
	}
	for record, err := range jsontext.Records(in) {
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := at(record.Text, fmt.Sprint("line ", record.Line)); err != nil {
			return err
		}
	}
	return nil
}

// readParquet reads columns of a Parquet file, all without any. What it has then of types that are not read is among
// the keys that are not.
func readParquet(path string, columns []string, at recordFunc) (err error) {
	f, err := parquet.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	rows, err := f.Rows(0, columns...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var unread []string
	for _, u := range f.Unread {
		if len(columns) > 0 {
			break
		}
		unread = append(unread, u.String())
	}
	for {
		text, number, err := rows.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = at(text, fmt.Sprint("row ", number), unread...)
		}
		if err != nil {
			return err
		}
	}
}

// readTable reads a table, each row as an object of texts.
func readTable(path string, at recordFunc) error {
	t, err := tabular.Read(path)
	if err != nil {
		return err
	}
	for i, row := range t.Rows {
		object := make(map[string]string, len(row))
		for k, value := range row {
			object[t.Columns[k]] = value
		}
		text, err := json.Marshal(object)
		if err == nil {
			err = at(text, t.Place(i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
