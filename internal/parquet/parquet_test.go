// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldens are the files of testdata/golden.py with their rows.
var goldens = []string{"datasets", "pandas", "polars", "duckdb", "nested", "plain", "zstd", "delta", "unread"}

// decoded is a value for comparison: NaN and infinities are strings.
func decoded(t testing.TB, text string) (v any) {
	for _, n := range []string{"-Infinity", "NaN", "Infinity"} {
		text = strings.ReplaceAll(text, ": "+n, `: "`+n+`"`)
		text = strings.ReplaceAll(text, ":"+n, `:"`+n+`"`)
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	require.NoError(t, d.Decode(&v), text)
	return numbers(v)
}

// numbers are those of a value with one spelling.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if _, err := strconv.ParseInt(string(v), 10, 64); err != nil && strings.ContainsAny(string(v), ".e") {
			f, _ := v.Float64()
			return float32(f)
		}
		return string(v)
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	}
	return v
}

func open(t testing.TB, name string) *File {
	f, err := Open(filepath.Join("testdata", name+".parquet"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// all are the rows of a file from one on.
func all(f *File, at int64, columns ...string) (list []string, err error) {
	r, err := f.Rows(at, columns...)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		row, _, err := r.Next()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		list = append(list, string(row))
	}
}

// Rows are those that pyarrow reads, from the first on and from any other.
func TestRowsAreThoseOfPyarrow(t *testing.T) {
	for _, name := range goldens {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", name+".jsonl"))
			require.NoError(t, err)
			want := strings.Split(strings.TrimSpace(string(text)), "\n")
			f := open(t, name)
			require.EqualValues(t, len(want), f.Len())
			got, err := all(f, 0)
			require.NoError(t, err)
			require.Len(t, got, len(want))
			for i := range want {
				require.Equal(t, decoded(t, want[i]), decoded(t, got[i]), "row %d: %s", i+1, got[i])
			}
			for at := range f.Len() + 1 {
				rest, err := all(f, at)
				require.NoError(t, err)
				require.Equal(t, got[at:], append([]string{}, rest...), "from row %d on", at)
			}
		})
	}
}

func TestColumns(t *testing.T) {
	f := open(t, "datasets")
	require.Equal(t, []string{"messages", "source", "score"}, f.Columns())
	rows, err := all(f, 4, "score", "source")
	require.NoError(t, err)
	require.Equal(t, `{"score":1.3333333333333333,"source":null}`, rows[0])
	_, err = f.Rows(0, "sauce")
	require.ErrorContains(t, err, `datasets.parquet: it has no column "sauce": want one of messages, source, score`)
	_, err = f.Rows(41)
	require.ErrorContains(t, err, "row 42 of 40")

	f = open(t, "unread")
	var names []string
	for _, u := range f.Unread {
		names = append(names, u.String())
	}
	require.Equal(t, []string{"raw (bytes)", "image.bytes (bytes)", "price (decimal)", "pairs (map)", "at (time)"},
		names)
	_, err = f.Rows(0, "raw")
	require.ErrorContains(t, err, "unread.parquet: column raw is of type bytes, which is not read")
}

func TestFaults(t *testing.T) {
	read := func(name string, raw []byte) error {
		f, err := New(name, bytes.NewReader(raw), int64(len(raw)))
		if err == nil {
			_, err = all(f, 0)
		}
		return err
	}
	f := open(t, "brotli")
	_, err := all(f, 0)
	require.ErrorContains(t, err, "brotli.parquet: column text: it is compressed by Brotli, which is not read: want "+
		"none, snappy, gzip or zstd")
	rows, err := all(open(t, "empty"), 0)
	require.NoError(t, err)
	require.Empty(t, rows)

	good, err := os.ReadFile("testdata/nested.parquet")
	require.NoError(t, err)
	require.NoError(t, read("good", good))
	for want, raw := range map[string][]byte{
		"a: it has 3 bytes: want a Parquet file":               []byte("PAR"),
		"a: it does not end as a Parquet file does: it is cut": good[:len(good)-9],
		"a: it is encrypted":                                   append(bytes.Clone(good[:len(good)-4]), "PARE"...),
		"a: its footer has 4294967295 bytes": append(bytes.Clone(good[:len(good)-8]),
			"\xff\xff\xff\xffPAR1"...),
	} {
		require.ErrorContains(t, read("a", raw), want)
	}
	damaged := bytes.Clone(good)
	damaged[60] ^= 1
	require.ErrorContains(t, read("a", damaged), "column ")
	swapped := bytes.ReplaceAll(readFile(t, "unread"), []byte("a.png"), []byte("b.png"))
	require.ErrorContains(t, read("a", swapped), "column image.path: a page has another checksum than it says")
	text := bytes.Replace(readFile(t, "plain"), []byte("日本語"), []byte("日\xff\xff本\xff"), -1)
	require.ErrorContains(t, read("a", text), "a: row 4: column text: ")
	require.ErrorContains(t, read("a", text), ": want UTF-8")
}

func readFile(t testing.TB, name string) []byte {
	raw, err := os.ReadFile(filepath.Join("testdata", name+".parquet"))
	require.NoError(t, err)
	return raw
}

// A byte more or less anywhere is an error, or other rows, but neither a panic nor memory that the file does not
// account for.
func FuzzRows(f *testing.F) {
	for _, name := range append(goldens, "brotli", "empty") {
		f.Add(readFile(f, name), int64(0))
	}
	f.Fuzz(func(t *testing.T, raw []byte, at int64) {
		p, err := New("a", bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			return
		}
		r, err := p.Rows(at)
		if err != nil {
			return
		}
		defer r.Close()
		size := 0
		for {
			row, _, err := r.Next()
			if err != nil {
				return
			}
			size += len(row)
			require.LessOrEqual(t, size, MinExpanded+len(raw)*MaxExpansion)
			if size > 1<<20 {
				return // the bound has a test of its own
			}
		}
	})
}

// endless is a file of rows whose pages are runs: some bytes stand for any number of equal values.
func endless(t *testing.T, rows int64) []byte {
	varint := func(n int64) []byte { return binary.AppendVarint(nil, n) }
	field := func(delta, kind byte, value ...byte) []byte { return append([]byte{delta<<4 | kind}, value...) }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	stop := []byte{0}
	text := strings.Repeat("x", 1<<16)
	dict := append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)
	index := append([]byte{1}, binary.AppendUvarint(nil, uint64(rows)<<1)...)
	index = append(index, 0)
	size := func(n int) [][]byte {
		return [][]byte{field(1, 5, varint(int64(n))...), field(1, 5, varint(int64(n))...)}
	}
	dictHead := join(field(1, 5, varint(pageDictionary)...), size(len(dict))[0], size(len(dict))[1],
		field(4, 12), field(1, 5, varint(1)...), field(1, 5, varint(0)...), stop, stop)
	pageHead := join(field(1, 5, varint(pageData)...), size(len(index))[0], size(len(index))[1],
		field(2, 12), field(1, 5, varint(rows)...), field(1, 5, varint(encodingDictionary)...), stop, stop)
	body := join([]byte(Magic), dictHead, dict, pageHead, index)
	dataPage := int64(4 + len(dictHead) + len(dict))
	chunk := join(field(3, 12), field(1, 5, varint(typeBytes)...), field(3, 5, varint(0)...),
		field(1, 6, varint(rows)...), field(2, 6, varint(int64(len(body)-4))...), field(2, 6, varint(dataPage)...),
		field(2, 6, varint(4)...), stop, stop)
	schema := join([]byte{2<<4 | 12}, field(4, 8, 1, 'r'), field(1, 5, varint(1)...), stop,
		field(1, 5, varint(typeBytes)...), field(2, 5, 0), field(1, 8, 1, 'a'), field(2, 5, 0), stop)
	group := join([]byte{1<<4 | 12}, field(1, 9, 1<<4|12), chunk, field(2, 6, varint(rows)...), stop)
	footer := join(field(2, 9), schema, field(1, 6, varint(rows)...), field(1, 9), group, stop)
	return join(body, footer, binary.LittleEndian.AppendUint32(nil, uint32(len(footer))), []byte(Magic))
}

// Rows of a small file are bounded in number and text, in pages as in the footer.
func TestBounds(t *testing.T) {
	read := func(raw []byte) (n int, err error) {
		f, err := New("a", bytes.NewReader(raw), int64(len(raw)))
		require.NoError(t, err)
		r, err := f.Rows(0)
		require.NoError(t, err)
		defer r.Close()
		for {
			if _, _, err := r.Next(); err != nil {
				return n, err
			}
			n++
		}
	}
	n, err := read(endless(t, 3))
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 3, n)
	n, err = read(endless(t, 1<<20))
	require.ErrorContains(t, err, "its rows have more than 67108864 bytes, 200 times its size")
	require.Less(t, n, 1<<10)
	_, err = read(endless(t, 1<<30))
	require.ErrorContains(t, err, "a page of 1073741824 values: want at most 67108864")
	f := &File{size: 10}
	require.NoError(t, (&Rows{file: f}).hold(MinExpanded))
	require.ErrorContains(t, (&Rows{file: f}).hold(MinExpanded+1), "want a file that is not made to exhaust memory")
}
