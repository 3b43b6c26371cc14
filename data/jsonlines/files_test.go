// SPDX-License-Identifier: Apache-2.0

package jsonlines_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/jsonlines"
)

// review is a sample with a field that need not be there.
type review struct {
	Text  string
	Stars int
	Note  string `json:"note,omitempty"`
}

func write(t testing.TB, dir, name, content string) string {
	t.Helper()
	if strings.HasSuffix(name, ".gz") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write([]byte(content))
		require.NoError(t, err)
		require.NoError(t, z.Close())
		content = b.String()
	}
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// rest reads a cursor to its end, and the place before each sample.
func rest[T any](t testing.TB, c data.Cursor[T]) (samples []T, places []json.RawMessage, err error) {
	t.Helper()
	defer func() { require.NoError(t, c.Close()) }()
	for {
		place, err := c.(data.Seeker).Place()
		require.NoError(t, err)
		s, err := c.Next()
		if err == io.EOF {
			_, err := c.Next()
			require.Equal(t, io.EOF, err)
			return samples, append(places, place), nil
		}
		if err != nil {
			return samples, places, err
		}
		samples, places = append(samples, s), append(places, place)
	}
}

func open[T any](t testing.TB, paths ...string) data.Cursor[T] {
	t.Helper()
	f, err := jsonlines.Open[T](paths...)
	require.NoError(t, err)
	c, err := f.Open(t.Context(), 3)
	require.NoError(t, err)
	return c
}

// Every line of the files is a sample, and reading continues at any place, in compressed files too.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 200_000)
	files := []string{
		write(t, dir, "a.jsonl", "\ufeff{\"text\": \"one\", \"stars\": 1}\n\n  \n{\"TEXT\": \"two\", \"stars\": 2, "+
			"\"more\": [1]}\r\n"),
		write(t, dir, "b.jsonl.gz", `{"text": "three", "stars": 3, "note": "ö"}`+"\n"+`{"text": "`+long+
			`", "stars": 4}`),
		write(t, dir, "c.json", "\n"+`{"text": "five", "stars": 5}`+"\n\n"),
	}
	want := []review{{"one", 1, ""}, {"two", 2, ""}, {"three", 3, "ö"}, {long, 4, ""}, {"five", 5, ""}}
	samples, places, err := rest(t, open[review](t, files...))
	require.NoError(t, err)
	require.Equal(t, want, samples)
	for i, place := range places {
		c := open[review](t, files...)
		_, err := c.Next() // it may have been used
		require.NoError(t, err)
		require.NoError(t, c.(data.Seeker).Seek(place))
		again, _, err := rest(t, c)
		require.NoError(t, err)
		require.Equal(t, len(want[i:]), len(again))
		for k := range again {
			require.Equal(t, want[i+k], again[k])
		}
	}
}

// NaN, as Python writes it, is no fault of a field that nobody reads.
func TestNaNBesideTheSample(t *testing.T) {
	path := write(t, t.TempDir(), "a.jsonl", `{"text": "NaN", "stars": 1, "score": NaN, "more": [-Infinity]}`+"\n")
	samples, _, err := rest(t, open[review](t, path))
	require.NoError(t, err)
	require.Equal(t, []review{{"NaN", 1, ""}}, samples)
}

// Lines need not be objects.
func TestFilesOfOtherTypes(t *testing.T) {
	path := write(t, t.TempDir(), "a.jsonl", "[1, 2]\n[3]\n")
	samples, _, err := rest(t, open[[]int](t, path))
	require.NoError(t, err)
	require.Equal(t, [][]int{{1, 2}, {3}}, samples)
	pointers, _, err := rest(t, open[*review](t, write(t, t.TempDir(), "b.jsonl", `{"text": "a", "stars": 1}`)))
	require.NoError(t, err)
	require.Equal(t, []*review{{"a", 1, ""}}, pointers)
}

func TestFilesFaults(t *testing.T) {
	dir := t.TempDir()
	good := `{"text": "one", "stars": 1}` + "\n"
	for name, c := range map[string]struct{ content, want string }{
		"empty.jsonl":    {"", "has no line with a sample"},
		"blank.jsonl":    {"\n \n", "has no line with a sample"},
		"bytes.jsonl":    {good + "{\"text\": \"\xff\"}\n", `: want UTF-8`},
		"array.jsonl":    {"[1]\n", `line 1: it begins with "[1]": want a JSON object on each line: "jq -c '.[]' FILE"`},
		"nan.jsonl":      {`{"text": "one", "stars": NaN}`, "line 1: invalid character 'N'"},
		"text.jsonl":     {`{"text": NaN, "stars": 1}`, "line 1: invalid character 'N'"},
		"rows.jsonl":     {"PAR1\x15\x04", "rows.jsonl is a Parquet file"},
		"null.jsonl":     {good + "\nnull\n", `line 3: it begins with "null": want a JSON object`},
		"cut.jsonl":      {good + `{"text": "o`, "line 2: unexpected end of JSON input (want jsonlines_test.review)"},
		"type.jsonl":     {good + `{"stars": "five"}`, "line 2: json: cannot unmarshal string"},
		"two.jsonl":      {good + `{"stars": 1} {"stars": 2}`, "line 2: invalid character '{' after top-level value"},
		"missing.jsonl":  {`{"text": "one", "star": 1}`, `line 1: it has no field "Stars"`},
		"cut.jsonl.gz":   {good, ""},
		"gone":           {"", "gone"},
		"text.jsonl.gz2": {good, ""},
	} {
		path := write(t, dir, name, c.content)
		switch name {
		case "gone":
			require.NoError(t, os.Remove(path))
		case "cut.jsonl.gz":
			whole, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, whole[:len(whole)-2], 0o600))
			c.want = "unexpected EOF"
		}
		_, _, err := rest(t, open[review](t, path))
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "jsonlines: ")
		require.ErrorContains(t, err, path)
	}
	_, err := jsonlines.Open[review]()
	require.ErrorContains(t, err, "there is no file")

	path := write(t, dir, "a.jsonl", good)
	for place, want := range map[string]string{
		`{"file": 2}`:                            "is not in 1 files",
		`{"file": -1}`:                           "is not in 1 files",
		`{"file": 0, "line": 9}`:                 "is not in 1 files",
		`"x"`:                                    "cannot unmarshal",
		`{"file": 0, "line": 1, "offset": 4000}`: "fewer than the place 4000",
	} {
		c := open[review](t, path)
		err := c.(data.Seeker).Seek(json.RawMessage(place))
		if err == nil {
			_, err = c.Next()
		}
		require.ErrorContains(t, err, want)
		require.NoError(t, c.Close())
	}
	c := open[review](t, write(t, dir, "b.jsonl.gz", good))
	require.NoError(t, c.(data.Seeker).Seek(json.RawMessage(`{"file": 0, "line": 1, "offset": 4000}`)))
	_, err = c.Next()
	require.ErrorContains(t, err, "ends after 28 bytes, before the place 4000")
	require.NotEqual(t, io.EOF, err)
}

func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	line := `{"text": "one", "stars": 1}` + "\n"
	print := func(paths ...string) string {
		f, err := jsonlines.Open[review](paths...)
		require.NoError(t, err)
		return f.Fingerprint()
	}
	a, b := write(t, dir, "a.jsonl", line), write(t, dir, "b.jsonl", line+line)
	require.NotEmpty(t, print(a))
	require.Equal(t, print(a), print(write(t, dir, "copy.jsonl", line)))
	require.NotEqual(t, print(a), print(b))
	require.NotEqual(t, print(a, b), print(b, a))
	require.NotEqual(t, print(a), print(write(t, dir, "a.jsonl.gz", line)))
	require.Empty(t, print(a, filepath.Join(dir, "gone")))
}

// Whatever a file holds, there is no panic, errors name it, and reading continues at every place.
func FuzzFiles(f *testing.F) {
	f.Add([]byte("{\"Text\":\"a\",\"Stars\":1}\n\n{\"text\":\"\\ud800\"}"))
	f.Add([]byte("\ufeff{\"text\":\"\\ufffd\\\\\",\"stars\":0}\n\xff"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "fuzz.jsonl")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		samples, places, err := rest(t, open[review](t, path))
		if err != nil {
			require.ErrorContains(t, err, path)
		} else {
			require.NotEmpty(t, samples)
		}
		for i, place := range places {
			c := open[review](t, path)
			require.NoError(t, c.(data.Seeker).Seek(place))
			again, _, fault := rest(t, c)
			require.Equal(t, append([]review{}, samples[i:]...), append([]review{}, again...))
			require.Equal(t, err, fault)
		}
	})
}

// Rows of Parquet files are samples as lines are, and places may be in either.
func TestParquet(t *testing.T) {
	dir := t.TempDir()
	const rows = "../../internal/parquet/testdata/datasets.parquet"
	paths := []string{rows, write(t, dir, "a.jsonl.gz", `{"source": "a", "score": 1}`+"\n"), rows}
	type row struct {
		Source *string `json:"source"`
		Score  float64 `json:"score"`
	}
	files, err := jsonlines.Open[row](paths...)
	require.NoError(t, err)
	c, err := files.Open(t.Context(), 0)
	require.NoError(t, err)
	all, places, err := rest(t, c)
	require.NoError(t, err)
	require.Len(t, all, 81)
	require.InDelta(t, 39.0/3, all[80].Score, 1e-12)
	for i := 0; i < len(places); i += 7 {
		c, err := files.Open(t.Context(), 0)
		require.NoError(t, err)
		require.NoError(t, c.(data.Seeker).Seek(places[i]))
		again, _, err := rest(t, c)
		require.NoError(t, err)
		require.Equal(t, all[i:], append([]row{}, again...))
	}
	one, err := jsonlines.Open[row](rows)
	require.NoError(t, err)
	require.NotEmpty(t, files.Fingerprint())
	require.NotEqual(t, files.Fingerprint(), one.Fingerprint())
	require.NotEqual(t, files.Fingerprint(), files.ShuffleFiles(1).Fingerprint())

	wrong, err := jsonlines.Open[struct{ Sauce string }](rows)
	require.NoError(t, err)
	w, err := wrong.Open(t.Context(), 0)
	require.NoError(t, err)
	_, _, err = rest(t, w)
	require.ErrorContains(t, err, `datasets.parquet: row 1: it has no field "Sauce"`)
}

func TestShuffleFiles(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for _, name := range strings.Split("abcdefgh", "") {
		paths = append(paths, write(t, dir, name+".jsonl", `"`+name+`1"`+"\n"+`"`+name+`2"`))
	}
	files, err := jsonlines.Open[string](paths...)
	require.NoError(t, err)
	order := func(f *jsonlines.Files[string], epoch int64) string {
		c, err := f.Open(t.Context(), epoch)
		require.NoError(t, err)
		all, places, err := rest(t, c)
		require.NoError(t, err)
		c, err = f.Open(t.Context(), epoch)
		require.NoError(t, err)
		require.NoError(t, c.(data.Seeker).Seek(places[5]))
		again, _, err := rest(t, c)
		require.NoError(t, err)
		require.Equal(t, all[5:], again)
		require.Len(t, all, 16)
		return strings.Join(all, " ")
	}
	plain, shuffled := order(files, 0), order(files.ShuffleFiles(1), 0)
	require.Equal(t, plain, order(files, 1))
	require.NotEqual(t, plain, shuffled)
	require.Equal(t, shuffled, order(files.ShuffleFiles(1), 0))
	require.NotEqual(t, shuffled, order(files.ShuffleFiles(1), 1))
	require.NotEqual(t, shuffled, order(files.ShuffleFiles(2), 0))
}
