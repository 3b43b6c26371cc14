// SPDX-License-Identifier: Apache-2.0

package jsontext

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// all are the records of a file, as "LINE@OFFSET TEXT".
func all(t testing.TB, file string) (list []Record, err error) {
	t.Helper()
	for r, err := range Records(iotest.OneByteReader(strings.NewReader(file))) {
		if err != nil {
			return list, err
		}
		r.Text = bytes.Clone(r.Text)
		require.True(t, strings.HasPrefix(file[r.Offset:], string(r.Text)), "%q at %d of %q", r.Text, r.Offset, file)
		require.Equal(t, r.Line, 1+strings.Count(file[:r.Offset], "\n"))
		list = append(list, r)
	}
	return list, nil
}

func TestRecords(t *testing.T) {
	long := `{"a": "` + strings.Repeat("]}\\\"", 50_000) + `"}`
	for file, want := range map[string][]string{
		"":                            nil,
		" \n\ufeff":                   {"\ufeff"}, // a mark is one at the beginning alone
		"\ufeff{\"a\": 1}\n\n {}\r\n": {"{\"a\": 1}\n", "{}\r\n"},
		"{\"a\": 1}\n[2]\n3":          {"{\"a\": 1}\n", "[2]\n", "3"},
		"[]":                          nil,
		"\ufeff\n [{\"a\": [\"]\"]},\n{\"b\": {}}\n]\n": {`{"a": ["]"]}`, `{"b": {}}`},
		"{\n  \"a\": 1\n}\n{\n\"b\": {\n}}":             {"{\n  \"a\": 1\n}", "{\n\"b\": {\n}}"},
		"[" + long + "," + long + "]":                   {long, long},
		long + "\n" + long:                              {long + "\n", long},
		"{\"a\":\nNaN}":                                 {"{\"a\":\nNaN}"},
	} {
		got, err := all(t, file)
		require.NoError(t, err, "%.50q", file)
		var texts []string
		for _, r := range got {
			texts = append(texts, string(r.Text))
		}
		require.Equal(t, want, texts, "%.50q", file)
	}
	for file, want := range map[string]string{
		"[{}\n{}]":        "line 2: the JSON array has '{': want a comma or ]",
		"[{},\n3]":        "line 2 has '3': want a JSON object",
		"[{},]":           "line 1 has ']': want a JSON object",
		"[{}":             "line 1: the JSON array ends too early",
		"[{},\n":          "line 2: the JSON array ends too early",
		"[\n{\"a\":\n":    "line 2: the JSON object that begins here ends too early",
		"[]\n[]":          "line 2: there is more after the JSON array",
		"{\n\"a\": 1}\n7": "line 3 has '7': want a JSON object",
	} {
		_, err := all(t, file)
		require.EqualError(t, err, want, file)
	}
	_, err := all(t, "[1]")
	require.ErrorContains(t, err, "want a JSON object")
	for _, err := range Records(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("{\n}")))) {
		require.ErrorIs(t, err, iotest.ErrTimeout)
	}
}

func TestFields(t *testing.T) {
	fields, err := Fields([]byte(`{"b": "x", "a": [NaN, {"NaN": "NaN \" -Infinity"}], "c": -Infinity, "d": Infinity, "b": 1e3, "e": true}`))
	require.NoError(t, err)
	var kinds []string
	for _, f := range fields {
		kinds = append(kinds, f.Key+" is "+f.Kind())
	}
	require.Equal(t, []string{"b is a string", "a is a list", "c is null", "d is null", "b is a number",
		"e is a bool"}, kinds)
	require.Equal(t, `[null, {"NaN": "NaN \" -Infinity"}]`, string(fields[1].Value))
	text, err := fields[0].Text()
	require.NoError(t, err)
	require.Equal(t, "x", text)
	_, err = fields[4].Text()
	require.EqualError(t, err, `field "b" is 1e3: want a string`)
	for text, want := range map[string]string{
		`[1]`:          "want a JSON object, got [1]",
		`{"a": nan}`:   "no JSON object: invalid character",
		`{"a": 1`:      "no JSON object: it ends too early",
		`{"a"`:         "no JSON object: it ends too early",
		`{} {}`:        "more text after the JSON object",
		`{"a": [}`:     "no JSON object: invalid character",
		``:             "no JSON object: it ends too early",
		`{"a": -Inf}`:  "no JSON object",
		`{"a": {"b":]`: "no JSON object",
	} {
		_, err := Fields([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

func TestLoneSurrogate(t *testing.T) {
	for text, want := range map[string]bool{
		``: false, `"\ud83d\ude00"`: false, `"\uD83D"`: true, `"\ude00"`: true, `"\ud83d\ud83d\ude00"`: true,
		`"\\ud83d"`: false, `"\\\ud83d"`: true, `"\ufffd \u00e9"`: false, `"\ud83d\n"`: true, `\ud83`: false,
		`"\ud83d`: true, `"\uD83D\uDE00\uDE00"`: true, `"\/ud83d"`: false,
	} {
		require.Equal(t, want, LoneSurrogate([]byte(text)), text)
	}
}

// FuzzRecords: whatever a file holds, its records are parts of it, and what encoding/json takes is read the same.
func FuzzRecords(f *testing.F) {
	f.Add("[{\"a\": \"]\"},\n{\"b\": NaN}]")
	f.Add("{\n\"a\": {}}\n{}")
	f.Add("{\"a\": 1}\n{\"b\": \"\\ud83d\"}\n")
	f.Fuzz(func(t *testing.T, file string) {
		list, err := all(t, file)
		var want []map[string]any
		if json.Unmarshal([]byte(file), &want) == nil && want != nil {
			require.NoError(t, err)
			require.Len(t, list, len(want))
		}
		for _, r := range list {
			var object map[string]any
			fields, err := Fields(r.Text)
			if json.Unmarshal(r.Text, &object) == nil && object != nil {
				require.NoError(t, err)
				for _, f := range fields {
					require.Contains(t, object, f.Key)
				}
			}
			LoneSurrogate(r.Text)
		}
	})
}
