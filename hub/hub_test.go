// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
)

const secret = "hf_sEcReTtOkEn"

// noise is text of n bytes.
func noise(n int, seed uint64) string {
	r, b := rand.New(rand.NewPCG(seed, 1)), make([]byte, n)
	for i := range b {
		b[i] = byte('a' + r.IntN(26))
	}
	return string(b)
}

// chunk is the size of a request in these tests.
const chunk = 4 << 10

// tiny are the files of a model, and such as none should have.
var tiny = map[string]string{
	"config.json": `{"model_type": "gpt2"}`, "tokenizer.json": "{}", "chat_template.jinja": "{{ messages }}",
	"README.md": "a model", "model.safetensors": noise(10*chunk+123, 1), "pytorch_model.bin": noise(5000, 2),
	"modeling.py": "import os", "additional_chat_templates/tool.jinja": "x",
}

// log collects what a client tells.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// client downloads from a server into a new cache, without pauses. It collects the pauses that it would make.
func client(t *testing.T, s *hubtest.Server) (*hub.Client, *log, *[]time.Duration) {
	told, pauses, mu := &log{}, &[]time.Duration{}, &sync.Mutex{}
	c := &hub.Client{Endpoint: s.URL, CacheDir: filepath.Join(t.TempDir(), "hub"), Timeout: 5 * time.Second,
		Log: slog.New(slog.NewTextHandler(told, &slog.HandlerOptions{Level: slog.LevelDebug})), Transport: s.TLS}
	c.SetChunk(chunk)
	c.SetWait(func(ctx context.Context, d time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		*pauses = append(*pauses, d)
		return ctx.Err()
	})
	return c, told, pauses
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	require.NoError(t, err)
	return string(text)
}

// files are the paths of the files below a folder, with slashes.
func files(t *testing.T, dir string) (list []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, p)
			list = append(list, filepath.ToSlash(rel))
		}
		return err
	}))
	return list
}

// A model is what its folder needs, from a branch, a tag or a commit.
func TestModel(t *testing.T) {
	s := hubtest.New(t)
	commit := s.Add("models/org/tiny", tiny)
	s.PageSize = 3
	for _, revision := range []string{"", "main", "v1", "refs/pr/1", commit} {
		c, _, _ := client(t, s)
		dir, err := c.Model(t.Context(), "org/tiny", revision)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(c.CacheDir, "models--org--tiny", "snapshots", commit), dir)
		require.Equal(t, []string{"additional_chat_templates/tool.jinja", "chat_template.jinja", "config.json",
			"model.safetensors", "tokenizer.json"}, files(t, dir))
		for _, name := range files(t, dir) {
			require.Equal(t, tiny[name], read(t, dir, name), name)
		}
		s.Forget()
		again, err := c.Model(t.Context(), "org/tiny", revision)
		require.NoError(t, err)
		require.Equal(t, dir, again)
		asked := 1 // which commit it is
		if revision == commit {
			asked = 0
		}
		require.Len(t, s.Requests(), asked, revision)
		name, at, ok := hub.NameOf(dir)
		require.True(t, ok)
		require.Equal(t, []string{"org/tiny", commit}, []string{name, at})
	}
}

// A folder of the name wins, and what is no name stays.
func TestLocalWins(t *testing.T) {
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	c, _, _ := client(t, s)
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll(filepath.Join("org", "tiny"), 0o755))
	for _, name := range []string{"org/tiny", "/nowhere", "./org/other", "../x", "a/b/c", `a\b`, "a--b/c", "x.git",
		"~/x"} {
		got, err := c.Model(t.Context(), name, "")
		require.NoError(t, err)
		require.Equal(t, name, got)
	}
	require.Empty(t, s.Requests())
	_, err := c.Model(t.Context(), "out/clm", "")
	require.ErrorIs(t, err, hub.ErrRepository)
	require.ErrorContains(t, err, "there is no folder out/clm here, and: hub: there is no model out/clm at "+s.URL)
}

// The index says which files have the weights.
func TestShards(t *testing.T) {
	s := hubtest.New(t)
	parts := map[string]string{"config.json": "{}", "model-00001-of-00002.safetensors": noise(3000, 3),
		"model-00002-of-00002.safetensors": "small", "consolidated.safetensors": noise(2000, 4),
		"model.safetensors.index.json": `{"weight_map": {"a": "model-00001-of-00002.safetensors",
			"b": "model-00002-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"}}`}
	s.Add("models/org/shards", parts)
	c, _, _ := client(t, s)
	dir, err := c.Model(t.Context(), "org/shards", "")
	require.NoError(t, err)
	require.Equal(t, []string{"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
		"model.safetensors.index.json"}, files(t, dir))

	for index, want := range map[string]string{
		`{"weight_map": {"a": "../../x"}}`: "has no file ../../x", `{}`: "has no weight_map", "[": "has no weight_map",
	} {
		parts["model.safetensors.index.json"] = index
		s.Add("models/org/shards", parts)
		_, err = c.Model(t.Context(), "org/shards", "")
		require.ErrorContains(t, err, want)
	}
}

// What a repository has in place of safetensors.
func TestOtherWeights(t *testing.T) {
	s := hubtest.New(t)
	for name, c := range map[string]struct {
		files map[string]string
		model string
		want  string // "": it is downloaded
	}{
		"pickle":  {map[string]string{"config.json": "{}", "pytorch_model.bin": "x"}, "", "pickles are programs"},
		"nothing": {map[string]string{"config.json": "{}"}, "", "has no model.safetensors"},
		"one":     {map[string]string{"m-Q8_0.gguf": "x"}, "", ""},
		"several": {map[string]string{"m-Q4.gguf": "x", "m-Q8_0.gguf": "y"}, "", "want one of them by its name, such " +
			"as " +
			"org/several/m-Q4.gguf"},
		"named":   {map[string]string{"m-Q4.gguf": "x", "a/m-Q8_0.gguf": "y"}, "/a/m-Q8_0.gguf", ""},
		"other":   {map[string]string{"m-Q4.gguf": "x"}, "/m.gguf", "has no file m.gguf"},
		"adapter": {map[string]string{"adapter_config.json": "{}", "adapter_model.safetensors": "x"}, "", ""},
		"empty": {map[string]string{"adapter_config.json": "{}", "adapter_model.bin": "x"}, "", "pickles are " +
			"programs"},
	} {
		t.Run(name, func(t *testing.T) {
			s.Add("models/org/"+name, c.files)
			cl, _, _ := client(t, s)
			at, err := cl.Model(t.Context(), "org/"+name+c.model, "")
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			if c.model != "" {
				require.Equal(t, "y", read(t, at))
				return
			}
			require.Len(t, files(t, at), len(c.files))
		})
	}
}

// fault is one row of the table of what servers do wrong.
type fault struct {
	name  string
	fault func(n int, w http.ResponseWriter, r *http.Request) bool // n: of the request, from 1
	want  string                                                   // in the error; "": the download succeeds
	is    error
	told  string // in the log
	// pauses are those between tries; nil: none are compared.
	pauses []time.Duration
	least  time.Duration // of the first pause
}

// asks reports whether a request is about a part of the API.
func asks(r *http.Request, what string) bool { return strings.Contains(r.URL.Path, "/"+what+"/") }

// weights reports whether a request is to the server of large files.
func weights(r *http.Request) bool { return r.URL.Query().Has("Signature") }

// refuses returns a fault that answers requests of the API.
func refuses(status int, code, message string) func(int, http.ResponseWriter, *http.Request) bool {
	return func(_ int, w http.ResponseWriter, r *http.Request) bool {
		hubtest.Refuse(w, status, code, message)
		return true
	}
}

// first returns a fault of the first request for each thing.
func first(answer func(w http.ResponseWriter), of ...func(*http.Request) bool) func(int, http.ResponseWriter,
	*http.Request) bool {
	var seen sync.Map
	return func(_ int, w http.ResponseWriter, r *http.Request) bool {
		_, again := seen.LoadOrStore(r.URL.String()+r.Header.Get("Range"), true)
		if again || len(of) > 0 && !of[0](r) {
			return false
		}
		answer(w)
		return true
	}
}

// cut sends a part of a body and closes the connection.
func cut(w http.ResponseWriter, status, length int, body string) {
	w.Header().Set("Content-Length", fmt.Sprint(length))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// noRanges sends a whole file whatever is asked for.
func noRanges(_ int, w http.ResponseWriter, r *http.Request) bool {
	r.Header.Del("Range")
	return false
}

// faults is the table. Some rows remember what has been asked.
func faults() []fault {
	return []fault{
		{name: "no such repository", fault: refuses(404, "RepoNotFound", "Repository not found"), is: hub.ErrRepository,
			want: "there is no model org/tiny at"},
		{name: "401", fault: refuses(401, "", "Invalid username or password."), is: hub.ErrUnauthorized,
			want: "want its name as on the page, and a token whose account may read it"},
		{name: "an unknown token", fault: refuses(401, "", "Invalid credentials in Authorization header"),
			is: hub.ErrUnauthorized, want: "does not know the token"},
		{name: "no such revision", fault: refuses(404, "RevisionNotFound", "Invalid rev id"), is: hub.ErrRevision,
			want: "has no revision main"},
		{name: "gated", is: hub.ErrGated, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			if asks(r, "resolve") {
				hubtest.Refuse(w, 403, "GatedRepo", "Access to model org/tiny is restricted.")
			}
			return asks(r, "resolve")
		}, want: "org/tiny is gated: its owners decide who may download it. Ask for access at"},
		{name: "no such file", is: hub.ErrFile, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			if asks(r, "resolve") {
				hubtest.Refuse(w, 404, "EntryNotFound", "Entry not found")
			}
			return asks(r, "resolve")
		}, want: "has no file "},
		{name: "forbidden", fault: refuses(403, "", "Your IP is\nblocked."), is: hub.ErrUnauthorized,
			want: "does not permit reading model org/tiny: Your IP is blocked"},
		{name: "429 for a while", fault: func(n int, w http.ResponseWriter, r *http.Request) bool {
			if n <= 2 {
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(429)
			}
			return n <= 2
		}, pauses: []time.Duration{7 * time.Second, 7 * time.Second}, told: "429 Too Many Requests"},
		{name: "429 until a date", fault: func(n int, w http.ResponseWriter, r *http.Request) bool {
			if n == 1 {
				w.Header().Set("Retry-After", time.Now().Add(4*time.Minute).UTC().Format(http.TimeFormat))
				w.WriteHeader(429)
			}
			return n == 1
		}, least: 3 * time.Minute},
		{name: "429 with the Hub's own header", fault: func(n int, w http.ResponseWriter, r *http.Request) bool {
			if n == 1 {
				w.Header().Set("RateLimit", `"api";r=0;t=55`)
				w.WriteHeader(429)
			}
			return n == 1
		}, pauses: []time.Duration{56 * time.Second}},
		{name: "429 for long", fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Retry-After", "7200")
			w.WriteHeader(429)
			return true
		}, is: hub.ErrRateLimit, want: "want to try again in 2h0m0s", pauses: []time.Duration{}},
		{name: "503 at first", fault: first(func(w http.ResponseWriter) { w.WriteHeader(503) }), told: "503"},
		{name: "5xx for a while", fault: func(n int, w http.ResponseWriter, r *http.Request) bool {
			if n <= 4 {
				w.WriteHeader(499 + n)
			}
			return n <= 4
		}},
		{name: "5xx", fault: refuses(502, "", ""), is: hub.ErrServer, want: "(502 Bad Gateway)"},
		{name: "a login page", is: hub.ErrServer, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			_, _ = io.WriteString(w, "<html>Welcome to the hotel's network")
			return true
		}, want: "no JSON of the Hub's API"},
		{name: "an endless answer", is: hub.ErrServer, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			for b := make([]byte, 1<<20); ; {
				if _, err := w.Write(b); err != nil {
					return true
				}
			}
		}, want: "with more than"},
		{name: "redirects in a circle", fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
			return true
		}, is: hub.ErrServer, want: "redirects more than 10 times"},
		{name: "redirects to no address", fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(302)
			return true
		}, is: hub.ErrServer, want: "to no address"},
		{name: "connections that are cut", fault: first(func(w http.ResponseWriter) { panic(http.ErrAbortHandler) }),
			told: "cannot be reached"},
		{name: "parts that are cut", fault: func(n int, w http.ResponseWriter, r *http.Request) bool {
			var from, to int
			if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil || to-from < 1000 {
				return false
			}
			data := tiny["model.safetensors"]
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(data)))
			cut(w, 206, to-from+1, data[from:from+1000])
			return true
		}},
		{name: "a server that only cuts", is: hub.ErrUnreachable, fault: func(_ int, w http.ResponseWriter,
			r *http.Request) bool {
			if weights(r) {
				panic(http.ErrAbortHandler)
			}
			return false
		}, want: "cannot be reached for model org/tiny"},
		{name: "no ranges", fault: noRanges},
		{name: "no ranges, and cut", fault: func(n int, w http.ResponseWriter, r *http.Request) bool {
			noRanges(n, w, r)
			if weights(r) && n%2 == 1 {
				cut(w, 200, len(tiny["model.safetensors"]), tiny["model.safetensors"][:20000])
			}
			return false
		}},
		{name: "416", is: hub.ErrServer, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			if weights(r) {
				w.WriteHeader(416)
			}
			return weights(r)
		}, want: "model.safetensors of model org/tiny: the server does not support ranges of a file: 416"},
		{name: "416 of ranges alone", fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Range") != "" {
				w.WriteHeader(416)
			}
			return r.Header.Get("Range") != ""
		}},
		{name: "another part", is: hub.ErrServer, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			if weights(r) {
				r.Header.Set("Range", "bytes=5-99")
			}
			return false
		}, want: `sends the part "bytes 5-99/41083" of model.safetensors: want one from byte`},
		{name: "a shorter file", is: hub.ErrSize, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			if weights(r) {
				from, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-")
				w.Header().Set("Content-Range", "bytes "+from+"-99999/10")
				w.WriteHeader(206)
				_, _ = io.WriteString(w, "0123456789")
			}
			return weights(r)
		}, want: "has 10 bytes at"},
		{name: "a shorter file without ranges", is: hub.ErrSize,
			fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if weights(r) {
					_, _ = io.WriteString(w, "0123456789")
				}
				return weights(r)
			}, want: "has 10 bytes at"},
		{name: "a longer file without ranges", is: hub.ErrSize,
			fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if weights(r) {
					_, _ = io.WriteString(w, tiny["model.safetensors"])
					w.(http.Flusher).Flush() // no length is named
					_, _ = io.WriteString(w, "and more")
				}
				return weights(r)
			}, want: "has more bytes at"},
		{name: "another size", is: hub.ErrSize, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			if asks(r, "resolve") {
				w.Header().Set("X-Linked-Size", "5")
			}
			return false
		}, want: "has 5 bytes at"},
		{name: "another hash", is: hub.ErrHash, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			if asks(r, "resolve") {
				w.Header().Set("X-Linked-Etag", `"`+strings.Repeat("0", 64)+`"`)
			}
			return false
		}, want: "names the hash 00000"},
		{name: "other contents", is: hub.ErrHash, fault: func(_ int, w http.ResponseWriter, r *http.Request) bool {
			if weights(r) {
				http.ServeContent(w, r, "", time.Time{}, strings.NewReader(strings.ToUpper(tiny["model.safetensors"])))
			}
			return weights(r)
		}, want: "model.safetensors of model org/tiny arrived with the hash"},
		{name: "links that end", fault: first(func(w http.ResponseWriter) { w.WriteHeader(403) }, weights),
			told: "answers with 403 Forbidden"},
		{name: "links that are dead", is: hub.ErrServer, fault: func(_ int, w http.ResponseWriter,
			r *http.Request) bool {
			if weights(r) {
				w.WriteHeader(403)
			}
			return weights(r)
		}, want: "answers with 403 Forbidden"},
	}
}

// Servers may do anything: the model arrives as it is, or the error says what is wrong. Nothing wrong is in the cache.
func TestFaults(t *testing.T) {
	for _, c := range faults() {
		t.Run(c.name, func(t *testing.T) {
			s := hubtest.New(t)
			s.Token = secret
			s.Add("models/org/tiny", tiny)
			var n atomic.Int64
			s.SetFault(func(w http.ResponseWriter, r *http.Request) bool { return c.fault(int(n.Add(1)), w, r) })
			cl, told, pauses := client(t, s)
			cl.Token = secret
			dir, err := cl.Model(t.Context(), "org/tiny", "")
			if c.want == "" && c.is == nil {
				require.NoError(t, err)
				require.Equal(t, tiny["model.safetensors"], read(t, dir, "model.safetensors"))
			} else {
				require.ErrorContains(t, err, c.want)
				require.ErrorIs(t, err, c.is)
				require.NotContains(t, err.Error(), secret)
				require.NotContains(t, err.Error(), "sIgNaTuRe")
			}
			require.Contains(t, told.String(), c.told)
			require.NotContains(t, told.String(), secret)
			require.NotContains(t, told.String(), "sIgNaTuRe")
			if c.pauses != nil {
				require.Equal(t, c.pauses, *pauses)
			}
			if c.least > 0 {
				require.Greater(t, (*pauses)[0], c.least)
			}
			requireSound(t, cl, s, err == nil)
		})
	}
}

// requireSound compares what is in a cache with its names, and looks who got the token.
func requireSound(t *testing.T, c *hub.Client, s *hubtest.Server, complete bool) {
	t.Helper()
	for _, name := range files(t, c.CacheDir) {
		if hash, ok := strings.CutPrefix(name, "models--org--tiny/blobs/"); ok && !strings.HasSuffix(name,
			".incomplete") {
			require.Equal(t, hash, hubtest.Hash([]byte(read(t, c.CacheDir, name))))
		}
		if complete {
			require.NotContains(t, name, ".incomplete")
		}
	}
	for _, r := range s.Requests() {
		if weights(r) {
			require.Empty(t, r.Header.Get("Authorization"))
			continue
		}
		require.Equal(t, "Bearer "+secret, r.Header.Get("Authorization"))
	}
}
