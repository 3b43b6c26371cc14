// SPDX-License-Identifier: Apache-2.0

package text_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/text"
)

func compressed(t *testing.T, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(plain)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func written(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func read(path string, o text.Options) ([]string, error) {
	var list []string
	docs, err := text.Collect(text.Read([]string{path}, o))
	for _, d := range docs {
		list = append(list, d.Text)
	}
	return list, err
}

func TestGzip(t *testing.T) {
	for name, c := range map[string]struct{ plain, want string }{
		"a.txt.gz":   {"one text\nof two lines", "one text\nof two lines"},
		"a.txt.GZ":   {"\ufeffbehind a mark", "behind a mark"},
		"a.jsonl.gz": {`{"text":"a line"}`, "a line"},
	} {
		got, err := read(written(t, name, compressed(t, []byte(c.plain))), text.Options{})
		require.NoError(t, err, name)
		require.Equal(t, []string{c.want}, got, name)
	}

	whole := compressed(t, bytes.Repeat([]byte("some text "), 1000))
	for name, content := range map[string][]byte{"plain.gz": []byte("not compressed"), "cut.gz": whole[:len(whole)/2],
		"empty.gz": compressed(t, nil)} {
		_, err := read(written(t, name, content), text.Options{})
		require.ErrorContains(t, err, name)
	}
}

func TestFilesMadeToExhaustMemoryAreRefused(t *testing.T) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	require.NoError(t, err)
	for piece := make([]byte, 1<<20); b.Len() < 1<<19; {
		_, err := z.Write(piece)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	for _, name := range []string{"bomb.txt.gz", "bomb.jsonl.gz"} {
		_, err := read(written(t, name, b.Bytes()), text.Options{})
		require.ErrorContains(t, err, "times its size", name)
	}
}

func TestColumnOfJSONLines(t *testing.T) {
	for _, c := range []struct {
		lines, column string
		want          []string
		err           string
	}{
		{`{"id":1,"body":"x","text":"y"}`, "", []string{"y"}, ""},
		{"{\"id\":1,\"body\":\"x\",\"more\":\"z\"}\n{\"body\":\"w\"}", "", []string{"x", "w"}, ""},
		{`{"id":1,"body":"x","text":"y"}`, "body", []string{"x"}, ""},
		{`{"body":"x"}`, "title", nil, `line 1 has no field "title"`},
		{`{"n":1}`, "", nil, `line 1: none of the columns n holds texts`},
		{`{"id":"q7","body":"x"}`, "", []string{"x"}, ""},
		{`{"sentence1":"x","sentence2":"y"}`, "", nil, `pairs, of sentence1 and sentence2`},
		{`{"text":null,"body":"x"}`, "", nil, `field "text" is null: want a string`},
		{"{\"body\":\"x\"}\n{\"text\":\"y\"}", "", []string{"x"}, `line 2 has no field "body"`},
		{`{"text":7,"body":"x"}`, "", []string{"x"}, ""},
		{`{"text":7,"body":"x"}`, "text", nil, `field "text" is 7: want a string`},
	} {
		got, err := read(written(t, "a.jsonl", []byte(c.lines)), text.Options{Column: c.column})
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
}
