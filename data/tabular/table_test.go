// SPDX-License-Identifier: Apache-2.0

package tabular_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/tabular"
)

func write(t *testing.T, name, content string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func zipped(t *testing.T, content string) string {
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
		{"a.xlsx", "", `unknown format ".xlsx": want a file named .csv, .tsv or .jsonl, or the same with .gz`},
		{"a.csv", "", "there are no rows"},
		{"a.csv", "a,b\n", "there are no rows"},
		{"a.csv", "a,b\n1\n", "wrong number of fields"},
		{"a.csv", "a,a\n1,2\n", `two columns are named "a"`},
		{"a.csv", "a,\n1,2\n", "column 2 has no name"},
		{"a.csv", "a\n\xff\n", "line 2 is not UTF-8"},
		{"a.csv", "a\n\"1\n", `extraneous or missing "`},
		{"a.tsv", "a\tb\n1\t2\t3\n", "line 2 has 3 values, want 2 as the header"},
		{"a.jsonl", "\n[1]\n", "line 2: want a JSON object"},
		{"a.jsonl", `{"a": {}}`, `line 1: "a" is a list or an object`},
		{"a.jsonl", `{"a": 1`, "line 1: no JSON object"},
		{"a.jsonl", `{"a": 1} {`, "line 1: there is more after the JSON object"},
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
