// SPDX-License-Identifier: Apache-2.0

package text

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// write makes a file in a new folder.
func write(t testing.TB, name, content string) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func readAll(path string) ([]Document, error) { return Collect(Read([]string{path}, Options{})) }

func TestReadPlain(t *testing.T) {
	path := write(t, "a.txt", "Grüße\r\n\x00\ufeff日本\n")
	docs, err := readAll(path)
	require.NoError(t, err)
	require.Equal(t, []Document{{Path: path, Text: "Grüße\r\n\x00\ufeff日本\n"}}, docs, "nothing is changed")
}

func TestReadRefusesBadText(t *testing.T) {
	for content, want := range map[string]string{
		"":                      "a.txt is empty",
		"good\xffbad":           "is not UTF-8: byte 0xFF at offset 4",
		"日本\xe6\x97":            "byte 0xE6 at offset 6",
		"\xff\xfeh\x00":         "is UTF-16, not UTF-8: convert it with iconv",
		"\u00e9\xed\xa0\x80end": "byte 0xED at offset 2", // a surrogate
	} {
		_, err := readAll(write(t, "a.txt", content))
		require.ErrorContains(t, err, want)
	}
	_, err := readAll(filepath.Join(t.TempDir(), "absent.txt"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = readAll(filepath.Join(t.TempDir(), "absent.jsonl"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestReadAnyBytes(t *testing.T) {
	path := write(t, "a.bin", "good\xffbad")
	docs, err := Collect(Read([]string{path}, Options{AnyBytes: true}))
	require.NoError(t, err)
	require.Equal(t, "good\xffbad", docs[0].Text)
	_, err = Collect(Read([]string{write(t, "a.jsonl", "{\"text\":\"\xff\"}")}, Options{AnyBytes: true}))
	require.ErrorContains(t, err, "not UTF-8")
}

func TestReadJSONLines(t *testing.T) {
	long := strings.Repeat("long ", 100_000) // far beyond the buffer
	path := write(t, "a.JSONL", "\ufeff"+`{"text": "one\n\"\u00e9\ud83d\ude00", "id": 1}`+"\r\n\n"+
		`{"text":""}`+"\n"+`{"Text":"no","text":"`+long+`"}`+"\n"+`{"text":"\ufffd \\ufffd"}`)
	docs, err := readAll(path)
	require.NoError(t, err)
	require.Equal(t, []Document{
		{Path: path, Line: 1, Column: "text", Text: "one\n\"é😀"},
		{Path: path, Line: 3, Column: "text", Text: ""},
		{Path: path, Line: 4, Column: "text", Text: long},
		{Path: path, Line: 5, Column: "text", Text: "\ufffd \\ufffd"},
	}, docs)
}

func TestReadJSONLinesRefuses(t *testing.T) {
	const good = `{"text":"good"}` + "\n"
	for content, want := range map[string]string{
		"":                                    "is empty",
		"\n \n":                               "is empty",
		good + `{"text":"cut`:                 "line 2 is not a JSON object",
		good + "\n[1,2]":                      "line 3 is not a JSON object",
		good + `{"body":"x"}`:                 `line 2 has no field "text"`,
		good + `{"text":7}`:                   `line 2: field "text" is 7: want a string`,
		good + `{"text":null}`:                `field "text" is null: want a string`,
		good + `null`:                         `line 2 is not a JSON object`,
		good + "{\"text\":\"a\xff\"}":         "is not UTF-8: byte 0xFF at offset 26 (line 2)",
		good + `{"text":"x\ud800y"}`:          "line 2: field \"text\" has an escape",
		good + `{"text":"\\ufffd\ud8"}`:       "line 2",
		good + `{"text":"\\ufffd\udc00"}`:     "has an escape",
		"[{\"text\":\"a\"},\n{\"text\":\"b\"": "line 2: the JSON object that begins here ends too early",
		"PAR1\x15\x04":                        "a.jsonl is a Parquet file",
	} {
		path := write(t, "a.jsonl", content)
		_, err := readAll(path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
	}
}

func TestReadStopsAtTheFirstError(t *testing.T) {
	good, bad := write(t, "good.txt", "good"), write(t, "bad.txt", "")
	var texts []string
	var errs []error
	for text, err := range Texts(Read([]string{good, bad, good}, Options{})) {
		texts, errs = append(texts, text), append(errs, err)
	}
	require.Equal(t, []string{"good", ""}, texts)
	require.NoError(t, errs[0])
	require.Error(t, errs[1])
	for range Read([]string{good, good}, Options{}) {
		break // the sequence must bear being left
	}
}

// The ways in which data sets for language models are written.
func TestReadRows(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    []Document
	}{
		"array.json": {"[\n  {\"id\": \"a1\", \"content\": \"one\"},\n  {\"id\": \"a2\", \"content\": \"two\", " +
			"\"score\": NaN}\n]\n",
			[]Document{{Line: 2, Column: "content", Text: "one"}, {Line: 3, Column: "content", Text: "two"}}},
		"objects.json": {"{\n\"text\": \"one\",\n\"meta\": {\"n\": [1]}\n}\n{\n\"text\": \"two\"\n}",
			[]Document{{Line: 1, Column: "text", Text: "one"}, {Line: 5, Column: "text", Text: "two"}}},
		"nan.jsonl": {"{\"perplexity\": NaN, \"text\": \"no NaN\"}\n",
			[]Document{{Line: 1, Column: "text", Text: "no NaN"}}},
		"table.csv": {"id,Review,stars\n0,\"one, two\",5\n1,three,4\n",
			[]Document{{Line: 2, Column: "Review", Text: "one, two"}, {Line: 3, Column: "Review", Text: "three"}}},
		"table.tsv": {"id\tbody\n0\tone\n", []Document{{Line: 2, Column: "body", Text: "one"}}},
	} {
		path := write(t, name, c.content)
		docs, err := readAll(path)
		require.NoError(t, err, name)
		for i := range c.want {
			c.want[i].Path = path
		}
		require.Equal(t, c.want, docs, name)
	}
	alpaca := `[{"instruction": "Say hi.", "input": "", "output": "Hi."}]`
	for name, content := range map[string]string{"a.json": alpaca, "a.csv": "premise,hypothesis,label\na,b,0\n"} {
		path := write(t, name, content)
		_, err := readAll(path)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "the texts are pairs, of ")
	}
	docs, err := Collect(Read([]string{write(t, "a.json", alpaca)}, Options{Column: "output"}))
	require.NoError(t, err)
	require.Equal(t, "Hi.", docs[0].Text)
	docs, err = Collect(Read([]string{write(t, "a.csv", "a,b\n1,2\n")}, Options{Column: "b"}))
	require.NoError(t, err)
	require.Equal(t, "2", docs[0].Text)
	_, err = Collect(Read([]string{write(t, "a.csv", "a,b\n1,2\n")}, Options{Column: "c"}))
	require.ErrorContains(t, err, `has no column "c"`)
}

// firstLine is the first line that is not blank.
func firstLine(content []byte) []byte {
	content = bytes.TrimLeft(bytes.TrimPrefix(content, []byte("\ufeff")), " \t\r\n")
	line, _, _ := bytes.Cut(content, []byte("\n"))
	return line
}

// FuzzJSONLines: what is read is what encoding/json reads, and errors name the file.
func FuzzJSONLines(f *testing.F) {
	f.Add([]byte("{\"text\":\"a\"}\n\n{\"text\":\"\\ud800\"}"))
	f.Add([]byte("\ufeff{\"text\":\"\\ufffd\\\\\"}\n\xff"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "fuzz.jsonl")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		docs, err := Collect(Read([]string{path}, Options{Column: "text"}))
		if err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		require.NotEmpty(t, docs)
		if bytes.HasPrefix(bytes.TrimLeft(content, "\ufeff \t\r\n"), []byte("[")) || !json.Valid(firstLine(content)) {
			return // its objects are not its lines
		}
		require.True(t, utf8.Valid(content))
		rows := strings.Split(strings.TrimPrefix(string(content), "\ufeff"), "\n")
		for _, doc := range docs {
			var want struct{ Text string }
			object := map[string]any{}
			require.NoError(t, json.Unmarshal([]byte(rows[doc.Line-1]), &object))
			want.Text, _ = object["text"].(string)
			require.Equal(t, want.Text, doc.Text)
		}
	})
}
