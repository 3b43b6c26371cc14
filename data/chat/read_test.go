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
	const want = "; rows are read from JSON objects with messages, prompt and completion, text, "
	for _, c := range []struct{ name, text, want string }{
		{"a.csv", "instruction,output\na,b\n", "a.csv is a table: in Python, pandas.read_csv(FILE).to_json(\"rows." +
			"jsonl\", orient=\"records\", lines=True) writes JSON Lines" + want},
		{"a.parquet", "PAR1\x15\x00", "a.parquet is a Parquet file: in Python, pandas.read_parquet(FILE)"},
		{"b.parquet", "PAR1\x15\x00", want},
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
