// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/foreign"
	"github.com/lockstep-ml/lockstep/internal/gzipped"
	"github.com/lockstep-ml/lockstep/internal/jsontext"
)

// ReadRows reads the rows of files, which may be compressed by gzip: JSON objects, one on each line, an array of them,
// or one after the other. All must have one form. The error names the file and the line.
func ReadRows(paths ...string) ([]Row, error) {
	var rows []Row
	for _, path := range paths {
		err := readRows(path, func(r Row) error {
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
	all := map[string]bool{}
	for _, r := range rows {
		for _, key := range r.Unread {
			all[key] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

const wantedFile = "rows are read from JSON objects with " + wantedForms + ", one on each line or in an array"

func readRows(path string, each func(Row) error) (err error) {
	f, err := gzipped.OpenSniffed(path)
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
		return fmt.Errorf("%w; %s", err, wantedFile)
	}
	if ext := strings.ToLower(filepath.Ext(gzipped.TrimExt(path))); ext == ".csv" || ext == ".tsv" {
		return fmt.Errorf("%s is a table: %s; %s", path, "in Python, pandas.read_csv(FILE).to_json(\"rows.jsonl\", "+
			"orient=\"records\", lines=True) writes JSON Lines", wantedFile)
	}
	if text := bytes.TrimLeft(head, "\ufeff \t\r\n"); len(text) > 0 && text[0] != '{' && text[0] != '[' {
		return fmt.Errorf("%s does not begin with JSON: %s", path, wantedFile)
	}
	for record, err := range jsontext.Records(in) {
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		row, err := ParseRow(record.Text)
		if err == nil {
			err = each(row)
		}
		if err != nil {
			return fmt.Errorf("%s: line %d: %w", path, record.Line, err)
		}
	}
	return nil
}
