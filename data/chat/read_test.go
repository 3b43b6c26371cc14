// SPDX-License-Identifier: Apache-2.0

package chat_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/stretchr/testify/require"
)

func TestReadRows(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	rows, err := chat.ReadRows(write("a.jsonl", `{"text": "a", "id": 1}`+"\n"+`{"text": "b", "n": 1, "id": null}`),
		write("b.json", "\ufeff"+` [{"text": "c"}]`))
	require.NoError(t, err)
	require.Len(t, rows, 3)
	require.Equal(t, []string{"id", "n"}, chat.Unread(rows))
	require.Equal(t, filepath.Join(dir, "b.json")+": line 1", rows[2].Place)
	for _, c := range []struct{ name, text, want string }{
		{"a.csv", "instruction,input\na,b\n", "a.csv: line 2: the row has the keys"},
		{"a.parquet", "PAR1\x15\x00", "a.parquet: it has 6 bytes: want a Parquet file"},
		{"utf.jsonl", `{"text": "a"}` + "\n" + `{"text": "b` + "\xe9" + `"}`,
			`utf.jsonl: line 2: byte 0xE9 of the row is not UTF-8, after "{\"text\": \"b"`},
		{"a.txt", "Hello", "a.txt does not begin with JSON: rows are read from JSON objects with "},
		{"c.jsonl", `{"text": "a"}` + "\n" + `{"messages": [{"role": "user", "content": "b"}]}`,
			"c.jsonl: line 2: the row has messages, and those before it text: want one form"},
		{"d.jsonl", "", "no rows in"},
	} {
		_, err := chat.ReadRows(write(c.name, c.text))
		require.ErrorContains(t, err, c.want)
	}
	_, err = chat.ReadRows(dir)
	require.ErrorContains(t, err, "chat: open "+dir+": is a folder")
}

// Parquet files and tables have the rows of JSON Lines.
func TestReadRowsOfTables(t *testing.T) {
	dir := t.TempDir()
	table := filepath.Join(dir, "a.csv")
	require.NoError(t, os.WriteFile(table, []byte("instruction,output,id\n\"a, b\",c,1\n"), 0o600))
	rows, err := chat.ReadRows(table)
	require.NoError(t, err)
	require.Equal(t, table+": line 2", rows[0].Place)
	require.Equal(t, []string{"id"}, rows[0].Unread)
	require.JSONEq(t, `[{"role": "user", "content": "a, b"}]`, string(rows[0].PromptMessages))

	const testdata = "../../internal/parquet/testdata/"
	rows, err = chat.ReadRows(testdata + "unread.parquet")
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, chat.Row{Form: chat.Text, Text: "b", Place: testdata + "unread.parquet: row 2", Unread: []string{
		"image", "raw (bytes)", "image.bytes (bytes)", "price (decimal)", "pairs (map)", "at (time)"}}, rows[1])
	_, err = chat.ReadRows(testdata + "datasets.parquet")
	require.ErrorContains(t, err, "datasets.parquet: row 1: messages")
}
