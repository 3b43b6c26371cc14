// SPDX-License-Identifier: Apache-2.0

package tabular_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/tabular"
)

func write(t *testing.T, name, content string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func zipped(t testing.TB, content string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(content))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.String()
}

// The same table in every format.
func TestRead(t *testing.T) {
	csv := "\ufefftext,stars\r\n\"good, \"\"very\"\"\nindeed\",5\r\nbad,\r\n"
	for name, c := range map[string]struct {
		content, first string
		lines          []int
	}{
		"a.csv":    {csv, "good, \"very\"\nindeed", []int{2, 4}},
		"a.CSV.gz": {zipped(t, csv), "good, \"very\"\nindeed", []int{2, 4}},
		"a.tsv":    {"text\tstars\n\"good\t5\n\nbad\t\n", `"good`, []int{2, 4}},
		"a.jsonl": {"{\"text\": \"good\\n\", \"stars\": 5}\n\n{\"text\": \"bad\", \"stars\": null}", "good\n",
			[]int{1, 3}},
		"a.jsonl.gz": {zipped(t, `{"text":"x"}`+"\n"+`{"text":"y","stars":5}`), "x", []int{1, 2}},
	} {
		table, err := tabular.Read(write(t, name, c.content))
		require.NoError(t, err, name)
		require.Equal(t, []string{"text", "stars"}, table.Columns, name)
		require.Equal(t, c.lines, table.Lines, name)
		require.Equal(t, c.first, table.Rows[0][0], name)
		if name == "a.jsonl.gz" {
			require.Equal(t, [][]string{{"x", ""}, {"y", "5"}}, table.Rows,
				"a missing value is empty, in whatever line the key first is")
			continue
		}
		require.Equal(t, "5", table.Rows[0][1], name)
		require.Equal(t, []string{"bad", ""}, table.Rows[1], name)
	}
	table, err := tabular.Parse("embedded", []byte("a,b\n1,2\n"))
	require.NoError(t, err)
	at, err := table.Column("b")
	require.NoError(t, err)
	require.Equal(t, 1, at)
	_, err = table.Column("c")
	require.EqualError(t, err, `tabular: embedded has no column "c": want one of a, b`)
	long, err := tabular.Read(write(t, "a.jsonl", `{"n": 12345678901234567890, "yes": true}`))
	require.NoError(t, err)
	require.Equal(t, []string{"12345678901234567890", "true"}, long.Rows[0])
}

func TestReadRefuses(t *testing.T) {
	for _, c := range [][3]string{
		{"a.xlsx", "", `unknown format ".xlsx": want a file named .csv, .tsv, .jsonl or .json, or the same with .gz`},
		{"a.csv", "", "there are no rows"},
		{"a.csv", "a,b\n", "there are no rows"},
		{"a.csv", "a,b\n1,2\n1\n", "line 3 has 1 values: want 2 as the header (a, b): 1"},
		{"a.csv", "text,label\nwell, well,1\n", `line 2 has 3 values: want 2 as the header (text, label): well, well,1; ` +
			`a value that has ',' in it must stand in quotes`},
		{"a.csv", "a,a\n1,2\n", `two columns are named "a"`},
		{"a.csv", "a,\n1,2\n", "column 2 has no name"},
		{"a.csv", "a\n\xff\n", "line 2 is not UTF-8"},
		{"a.csv", "a\n\"1\n", `extraneous or missing "`},
		{"a.csv", "a,b\n1,2 \"x\"\n", `bare " in non-quoted-field: 1,2 "x"`},
		{"a.csv", ",a\nx,1\n", "column 1 has no name"},
		{"a.csv", "PAR1\x15\x04", "a.csv is a Parquet file: what reads"},
		{"a.parquet", "PAR1\x15\x04", "a.parquet: it has 6 bytes: want a Parquet file"},
		{"a.csv.zst", "\x28\xb5\x2f\xfd", "a.csv.zst: "},
		{"a.csv", "\xff\xfea\x00", "a.csv is UTF-16, not UTF-8"},
		{"a.jsonl", "version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"},
		{"a.tsv", "a\tb\n1\t2\t3\n", "line 2 has 3 values: want 2 as the header"},
		{"a.jsonl", "\n[1]\n", "line 2 has '1': want a JSON object"},
		{"a.jsonl", "{}\n[1]\n", "line 2: want a JSON object, got [1]"},
		{"a.jsonl", `{"a": 1`, "line 1: the JSON object that begins here ends too early"},
		{"a.jsonl", `{"a": 1, }`, "line 1: no JSON object: invalid character"},
		{"a.json", "[\n{\"a\": 1}\n{\"a\": 2}]", "line 3: the JSON array has '{': want a comma or ]"},
		{"a.json", `{"a":{"0":1,"1":2},"b":{"0":1,"1":2}}`, `want to_json(FILE, orient="records", lines=True)`},
		{"a.jsonl", `{"a": "\ud800"}`, "line 1: field \"a\" has an escape"},
		{"a.jsonl", "{\"a\": \"\xff\"}", "line 1 is not UTF-8"},
		{"a.jsonl", `{"a": 1} {`, "line 1: more text after the JSON object"},
		{"a.jsonl.gz", "this is plain text", "gzip: invalid header"},
	} {
		path := write(t, c[0], c[1])
		_, err := tabular.Read(path)
		require.ErrorContains(t, err, c[2])
		require.ErrorContains(t, err, path)
	}
	_, err := tabular.Read(filepath.Join(t.TempDir(), "none.csv"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// What pandas and datasets write, and what people write by hand: testdata/frames.py made most of it.
func TestReadWhatOthersWrite(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "frames", "*"))
	require.NoError(t, err)
	require.Len(t, files, 12)
	for _, path := range files {
		table, err := tabular.Read(path)
		require.NoError(t, err, path)
		require.Equal(t, []string{"text", "label", "score"}, table.Columns, path)
		require.Len(t, table.Rows, 3, path)
		for i, want := range [][2]string{{"good, \"very\"", "1"}, {"schön\nund gut", "0"}, {"", "1"}} {
			require.Equal(t, want, [2]string{table.Rows[i][0], table.Rows[i][1]}, path)
		}
		at, err := table.TextColumn("label")
		require.NoError(t, err)
		require.Zero(t, at)
		require.True(t, table.Numbers(2), path)
	}
}

// Lists and objects are no values; they matter only to who needs their column.
func TestNestedColumns(t *testing.T) {
	table, err := tabular.Read(write(t, "a.json", `[{"instruction": "Say hi.", "history": []},
		{"instruction": "Again.", "history": [["a", NaN]], "score": NaN}]`))
	require.NoError(t, err)
	require.Equal(t, [][]string{{"Say hi.", "", ""}, {"Again.", "", ""}}, table.Rows)
	require.Equal(t, []int{1, 2}, table.Lines)
	_, err = table.Column("history")
	require.ErrorContains(t, err, `line 1: "history" is a list or an object: want a string`)
	at, err := table.TextColumn()
	require.NoError(t, err)
	require.Zero(t, at)
	table, err = tabular.Read(write(t, "a.jsonl", `{"messages": [{"role": "user"}], "id": "x"}`))
	require.NoError(t, err)
	_, err = table.TextColumn()
	require.ErrorContains(t, err, "the column messages holds chats, which are not read yet")
}

func TestTextColumn(t *testing.T) {
	table, err := tabular.Parse("a", []byte("idx,sentence1,sentence2,label\n0,a,b,1\n1,c,d,0\n"))
	require.NoError(t, err)
	_, err = table.TextColumn("label")
	require.ErrorContains(t, err, "tabular: a: the texts are pairs, of sentence1 and sentence2")
	require.True(t, table.Numbers(0))
	require.False(t, table.Numbers(1))
	table, err = tabular.Parse("a", []byte("a,idx,b\n,1.5,\n,,x\n"))
	require.NoError(t, err)
	at, err := table.TextColumn()
	require.NoError(t, err)
	require.Equal(t, 2, at, "a has nothing")
	require.True(t, table.Numbers(1))
	require.False(t, table.Numbers(0))
}

// Small files whose table would fill the memory are refused: zeros that gzip has made a thousand times smaller, rows of
// hardly any bytes, and rows that each bring their own column, which all others would have to have too.
func TestTablesMadeToExhaustMemoryAreRefused(t *testing.T) {
	var columns strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&columns, "{\"c%d\":1}\n", i)
	}
	var header strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&header, "%d\t", i)
	}
	for name, c := range map[string]struct{ content, want string }{
		"bomb.csv.gz": {zipped(t, "a\n"+strings.Repeat("0", 65<<20)), "holds more than 200 times its size"},
		"rows.tsv.gz": {zipped(t, strings.TrimSuffix(header.String(), "\t")+"\n"+
			strings.Repeat(strings.Repeat("\t", 59_999)+"0\n", 140)), "more than 8388608 values"},
		"columns.jsonl": {columns.String(), "more than 8388608 values"},
		"header.csv":    {strings.Repeat("x,", 70_000) + "\n1\n", "70001 columns: want at most 65536"},
		"header.tsv":    {strings.Repeat("x\t", 70_000) + "\n1\n", "70001 columns: want at most 65536"},
	} {
		path := write(t, name, c.content)
		_, err := tabular.Read(path)
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, err, path)
	}
	pipe := filepath.Join(t.TempDir(), "device.csv")
	require.NoError(t, os.Symlink(os.DevNull, pipe))
	_, err := tabular.Read(pipe)
	require.ErrorContains(t, err, "neither a file nor a folder")
}

// FuzzRead: a file is refused by name, or it is a table whose rows have a value for each column.
func FuzzRead(f *testing.F) {
	for name, content := range map[string]string{
		"a.csv": "a,b\n\"x\ny\",\"\"\"\"\n", "a.tsv": "a\tb\n\n1\t2\r\n",
		"a.jsonl": "{\"a\":1}\n{\"b\":null,\"a\":true}\n", "a.csv.gz": zipped(f, "a\n1\n"),
	} {
		f.Add(name, []byte(content))
	}
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		format := filepath.Ext(name)
		if strings.ContainsAny(name, "/\x00") || len(name) > 50 {
			return
		}
		path := filepath.Join(t.TempDir(), "table"+format)
		if strings.HasSuffix(name, ".gz") {
			path = filepath.Join(t.TempDir(), "table"+filepath.Ext(strings.TrimSuffix(name, ".gz"))+".gz")
		}
		require.NoError(t, os.WriteFile(path, content, 0o600))
		table, err := tabular.Read(path)
		if err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		require.NotEmpty(t, table.Rows)
		require.Len(t, table.Lines, len(table.Rows))
		for _, row := range table.Rows {
			require.Len(t, row, len(table.Columns))
		}
	})
}

func TestParquet(t *testing.T) {
	const testdata = "../../internal/parquet/testdata/"
	table, err := tabular.Read(testdata + "pandas.parquet")
	require.NoError(t, err)
	require.Equal(t, []string{"text", "label", "weight", "__index_level_0__"}, table.Columns)
	require.Equal(t, []string{"a \"quoted\"\ttext\n\\", "2", "2.0", "2"}, table.Rows[1])
	require.Equal(t, "row 2", table.Place(1))
	at, err := table.TextColumn("label")
	require.NoError(t, err)
	require.Zero(t, at)

	table, err = tabular.Read(testdata + "unread.parquet")
	require.NoError(t, err)
	_, err = table.Column("price")
	require.ErrorContains(t, err, "unread.parquet: column price is of type decimal, which is not read")
	_, err = table.Column("image")
	require.ErrorContains(t, err, `unread.parquet: row 1: "image" is a list or an object`)
	_, err = tabular.Read(testdata + "empty.parquet")
	require.ErrorContains(t, err, "empty.parquet: there are no rows")
}
