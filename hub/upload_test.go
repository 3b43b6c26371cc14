// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// model are the files of a folder that a training saved.
var model = map[string]string{
	"config.json": `{"model_type": "gpt2"}`, "tokenizer.json": "{}", "README.md": "a model", "empty": "",
	"model.safetensors": noise(10*chunk+123, 1), "checkpoint-2/model.safetensors": noise(2*chunk, 3),
	".git/HEAD":            "ref",
	".cache/huggingface/x": "x", "checkpoint-2/.git": "x",
}

// saved writes files into a folder.
func saved(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, []byte(text), 0o644))
	}
	return dir
}

// uploader is a client with a token.
func uploader(t *testing.T, s *hubtest.Server) (*hub.Client, *log) {
	c, told, _ := client(t, s)
	c.Token, s.Token = secret, secret
	return c, told
}

// puts counts the requests that sent contents.
func puts(s *hubtest.Server) (n int) {
	for _, r := range s.Requests() {
		if r.Method == http.MethodPut {
			n++
		}
	}
	return n
}

// sentOf are the files that an upload of the model sends.
func sentOf(exclude ...string) map[string]string {
	files := maps.Clone(model)
	for name := range model {
		if strings.Contains(name, ".git") || strings.Contains(name, ".cache") || slices.Contains(exclude, name) {
			delete(files, name)
		}
	}
	return files
}

// An upload makes the repository, sends what the Hub lacks, and makes one commit.
func TestUpload(t *testing.T) {
	for _, part := range []int{0, chunk, 100} {
		s := hubtest.New(t)
		s.PartSize = part
		c, _ := uploader(t, s)
		bar := &meter{}
		c.Progress = func(name string, n int64) hub.Meter {
			require.Equal(t, "uploading org/tuned", name)
			return bar.begin(name, n)
		}
		u := hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/tuned"}, Path: saved(t, model), Private: true}
		got, err := c.Upload(t.Context(), u)
		require.NoError(t, err)
		require.Equal(t, s.URL+"/org/tuned/commit/"+got.ID, got.URL)
		want := sentOf()
		require.Equal(t, len(want), got.Files)
		want[".gitattributes"] = s.Contents("models/org/tuned")[".gitattributes"]
		require.Equal(t, want, s.Contents("models/org/tuned"))
		require.EqualValues(t, 12*chunk+123, bar.total.Load())
		require.Equal(t, bar.total.Load(), bar.sum.Load())
		_, private := s.Branches("models/org/tuned")
		require.True(t, private)

		s.Forget()
		again, err := c.Upload(t.Context(), u)
		require.NoError(t, err)
		require.Equal(t, &hub.Commit{Repo: u.Repo, ID: got.ID, URL: got.URL}, again)
		require.Zero(t, puts(s))

		require.NoError(t, os.WriteFile(filepath.Join(u.Path, "config.json"), []byte("{}"), 0o644))
		again, err = c.Upload(t.Context(), u)
		require.NoError(t, err)
		require.NotEqual(t, got.ID, again.ID)
		require.Equal(t, 1, again.Files)
		require.EqualValues(t, 2, again.Bytes)
		require.Equal(t, "{}", s.Contents("models/org/tuned")["config.json"])
	}
}

// What is sent, and where to.
func TestUploadOfAPart(t *testing.T) {
	s := hubtest.New(t)
	c, _ := uploader(t, s)
	dir := saved(t, model)
	u := hub.Upload{Repo: hub.Repo{Kind: hub.Datasets, Name: "org/data", Revision: "next/one"}, Path: dir, To: "a/b",
		Include: []string{"*.json", "checkpoint-2/"}, Exclude: []string{"token*"}, Message: "two files"}
	_, err := c.Upload(t.Context(), u)
	require.NoError(t, err)
	got := s.Contents("datasets/org/data")
	delete(got, ".gitattributes")
	require.Equal(t, map[string]string{"a/b/config.json": model["config.json"],
		"a/b/checkpoint-2/model.safetensors": model["checkpoint-2/model.safetensors"]}, got)
	branches, private := s.Branches("datasets/org/data")
	require.Equal(t, []string{"main", "next/one"}, branches)
	require.False(t, private)
	_, err = c.Upload(t.Context(), u) // the branch exists
	require.NoError(t, err)

	u = hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "alone"}, Path: filepath.Join(dir, "config.json")}
	made, err := c.Upload(t.Context(), u)
	require.NoError(t, err)
	require.Equal(t, hubtest.Owner+"/alone", made.Repo.Name)
	require.Contains(t, s.Contents("models/me/alone"), "config.json")
	u.To = "x/y.json"
	_, err = c.Upload(t.Context(), u)
	require.NoError(t, err)
	require.Contains(t, s.Contents("models/me/alone"), "x/y.json")

	s.Add("models/org/ignoring", map[string]string{".gitignore": "README.md"})
	_, err = c.Upload(t.Context(), hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/ignoring"}, Path: dir})
	require.NoError(t, err)
	require.NotContains(t, s.Contents("models/org/ignoring"), "README.md")
}

// A snapshot of a cache, whose files are links, is a folder like others.
func TestUploadOfASnapshot(t *testing.T) {
	if runtime.GOOS == "windows" {
		lacking.Skip(t, "links", "symbolic", "symbolic links")
	}
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	c, _ := uploader(t, s)
	dir, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	_, err = c.Upload(t.Context(), hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/copy"}, Path: link})
	require.NoError(t, err)
	require.Equal(t, tiny["model.safetensors"], s.Contents("models/org/copy")["model.safetensors"])
}

// What cannot be uploaded is refused before anything is sent.
func TestUploadIsRefused(t *testing.T) {
	s := hubtest.New(t)
	dir := saved(t, model)
	for _, k := range []struct {
		change func(c *hub.Client, u *hub.Upload)
		want   error
		text   string
	}{
		{func(c *hub.Client, _ *hub.Upload) { c.Token = "" }, hub.ErrUnauthorized, "needs a token"},
		{func(c *hub.Client, _ *hub.Upload) { c.Offline = true }, hub.ErrOffline, "HF_HUB_OFFLINE"},
		{func(_ *hub.Client, u *hub.Upload) { u.Path = filepath.Join(dir, "none") }, os.ErrNotExist, "nothing to"},
		{func(_ *hub.Client, u *hub.Upload) { u.Include = []string{"*.gguf"} }, nil, "has no file that is included"},
		{func(_ *hub.Client, u *hub.Upload) { u.To = "../up" }, nil, "leads out of its folder"},
		{func(_ *hub.Client, u *hub.Upload) { u.Repo.Name = "a/b/c" }, nil, "not the name of a repository"},
		{func(_ *hub.Client, u *hub.Upload) { u.Repo.Revision = "../x" }, nil, "the revision"},
		{func(_ *hub.Client, u *hub.Upload) { u.Path = os.DevNull }, nil, "not a regular file"},
	} {
		c, _ := uploader(t, s)
		u := hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/tuned"}, Path: dir}
		k.change(c, &u)
		_, err := c.Upload(t.Context(), u)
		require.ErrorContains(t, err, k.text)
		if k.want != nil {
			require.ErrorIs(t, err, k.want)
		}
	}
	require.Empty(t, s.Requests())
}

// Servers fail in many ways; what may pass is tried again, and what was sent is not sent again.
func TestUploadThroughFaults(t *testing.T) {
	const name = "models/org/tuned"
	isPut := func(r *http.Request) bool { return r.Method == http.MethodPut }
	isCommit := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/commit/") }
	isCreate := func(r *http.Request) bool { return r.URL.Path == "/api/repos/create" }
	cut := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	refuse := func(status int, said string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { hubtest.Refuse(w, status, "", said) }
	}
	for what, k := range map[string]struct {
		of    func(*http.Request) bool
		fault func(http.ResponseWriter, *http.Request)
		times int
		want  error // nil: the upload ends well
	}{
		"a store that fails":       {isPut, refuse(500, ""), 3, nil},
		"a store that is down":     {isPut, refuse(503, ""), 1000, hub.ErrServer},
		"a link that breaks":       {isPut, cut, 2, nil},
		"an address that expired":  {isPut, refuse(403, ""), 2, nil},
		"no address that is taken": {isPut, refuse(403, ""), 1000, errors.ErrUnsupported},
		"another commit":           {isCommit, refuse(412, "A commit has happened since"), 2, nil},
		"many commits":             {isCommit, refuse(409, ""), 1000, hub.ErrConflict},
		"too many requests":        {isCommit, refuse(429, ""), 2, nil},
		"a commit that is lost":    {isCommit, cut, 1000, hub.ErrUnreachable},
		"a commit that fails":      {isCommit, refuse(500, ""), 1000, hub.ErrServer},
		"no right to write":        {isCommit, refuse(403, "Forbidden"), 1000, hub.ErrUnauthorized},
		"no right to create":       {isCreate, refuse(403, "no rights"), 1000, hub.ErrUnauthorized},
		"a name that is refused":   {isCreate, refuse(400, "Invalid name"), 1000, hub.ErrRefused},
		"creation that waits":      {isCreate, refuse(409, "another conflicting operation is in progress"), 2, nil},
	} {
		t.Run(what, func(t *testing.T) {
			s := hubtest.New(t)
			s.PartSize = chunk
			c, _ := uploader(t, s)
			bar := &meter{}
			c.Progress = bar.begin
			u := hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/tuned"}, Path: saved(t, model)}
			var mu sync.Mutex
			left := k.times
			s.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
				mu.Lock()
				hit := k.of(r) && left > 0
				if hit {
					left--
				}
				mu.Unlock()
				if hit {
					_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 1000))
					k.fault(w, r)
				}
				return hit
			})
			_, err := c.Upload(t.Context(), u)
			if k.want != nil {
				require.Error(t, err)
				require.NotContains(t, err.Error(), secret)
				require.NotContains(t, err.Error(), "sIgNaTuRe")
				if k.want != errors.ErrUnsupported {
					require.ErrorIs(t, err, k.want)
				}
				require.NotContains(t, s.Contents(name), "config.json", "all or nothing")
				s.SetFault(nil)
				s.Forget()
				_, err = c.Upload(t.Context(), u)
				require.NoError(t, err)
				if strings.Contains(what, "commit") {
					require.Zero(t, puts(s), "the Hub has the large files")
				}
			}
			require.NoError(t, err)
			require.Equal(t, model["model.safetensors"], s.Contents(name)["model.safetensors"])
			if k.want == nil {
				require.Equal(t, bar.total.Load(), bar.sum.Load())
			}
		})
	}

	s := hubtest.New(t) // a token that may not create, and a repository that exists
	s.Add(name, nil)
	c, _ := uploader(t, s)
	s.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if isCreate(r) {
			hubtest.Refuse(w, http.StatusForbidden, "", "no rights")
		}
		return isCreate(r)
	})
	u := hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/tuned"}, Path: saved(t, model)}
	_, err := c.Upload(t.Context(), u)
	require.NoError(t, err)
}

// A server that says what none should is an error, and gets neither the token nor a file elsewhere.
func TestUploadToAHostileServer(t *testing.T) {
	oid := hubtest.Hash([]byte(model["model.safetensors"]))
	batch := func(actions string) string {
		return fmt.Sprintf(`{"objects": [{"oid": %q, "size": 1, "actions": %s}]}`, oid, actions)
	}
	for path, answers := range map[string]map[string]string{
		"/api/repos/create": {"no JSON": "no JSON of the Hub's API", `{"url": "x"}`: "does not say whose"},
		"/api/models/me/tuned/preupload/main": {
			`{"files": [{"path": "../x", "uploadMode": "lfs"}]}`:              "one of the files it was asked about",
			`{"files": [{"path": "model.safetensors", "uploadMode": "xet"}]}`: "regular or lfs",
			`{"files": []}`: "does not say how it stores",
		},
		"/me/tuned.git/info/lfs/objects/batch": {
			`{"objects": []}`:                        "does not say where",
			`{"objects": [{"oid": "x", "size": 1}]}`: "does not say where",
			fmt.Sprintf(`{"objects": [{"oid": %q, "error": {"code": 422, "message": "too\nlarge"}}]}`, oid): "(422): too large",
			batch(`{"upload": {"href": "file:///etc/passwd"}}`):                                             "to no address",
			batch(`{"upload": {"href": "http://127.0.0.1:1/x", "header": {"chunk_size": "0"}}}`):            "in parts of",
			batch(`{"upload": {"href": "http://127.0.0.1:1/x", "header": {"chunk_size": "1"}}}`):            "at most 10000 parts",
			batch(`{"upload": {"href": "http://127.0.0.1:1/x", "header": {"chunk_size": "8192"}}}`):         "no address for part 1",
		},
		"/api/models/me/tuned/commit/main": {`{"commitOid": "x"}`: "want 40 hex digits"},
	} {
		for answer, want := range answers {
			s := hubtest.New(t)
			c, _ := uploader(t, s)
			s.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == path {
					_, _ = io.WriteString(w, answer)
				}
				return r.URL.Path == path
			})
			_, err := c.Upload(t.Context(), hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "tuned"},
				Path: saved(t, map[string]string{"model.safetensors": model["model.safetensors"]})})
			require.ErrorContains(t, err, want, answer)
		}
	}
	s, other := hubtest.New(t), hubtest.New(t)
	c, _ := uploader(t, s)
	s.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	})
	_, err := c.Upload(t.Context(), hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "tuned"}, Path: saved(t, model)})
	require.ErrorContains(t, err, "redirects an upload")
	require.Empty(t, other.Requests())
}

// The token goes to the Hub, and not to the store.
func TestUploadKeepsTheToken(t *testing.T) {
	s := hubtest.New(t)
	s.PartSize = chunk
	c, _ := uploader(t, s)
	_, err := c.Upload(t.Context(), hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "tuned"}, Path: saved(t, model)})
	require.NoError(t, err)
	for _, r := range s.Requests() {
		require.Equal(t, r.Method == http.MethodPut, r.Header.Get("Authorization") == "", r.URL.Path)
	}
}

// A file that shrinks while it is sent, and a context that ends.
func TestUploadIsInterrupted(t *testing.T) {
	s := hubtest.New(t)
	c, _ := uploader(t, s)
	u := hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/tuned"}, Path: saved(t, model)}
	s.SetFault(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/batch") {
			require.NoError(t, os.Truncate(filepath.Join(u.Path, "model.safetensors"), 5000))
		}
		return false
	})
	_, err := c.Upload(t.Context(), u)
	require.ErrorContains(t, err, "changed while it was uploaded")

	ctx, cancel := context.WithCancel(t.Context())
	s.SetFault(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			cancel()
		}
		return false
	})
	_, err = c.Upload(ctx, u)
	require.ErrorIs(t, err, context.Canceled)
}

// requestsOf writes down what an upload asks for.
type requestsOf struct {
	mu    sync.Mutex
	lines []string
}

func (l *requestsOf) watch(s *hubtest.Server) {
	s.SetFault(func(_ http.ResponseWriter, r *http.Request) bool {
		text, _ := io.ReadAll(r.Body) // the handler fails on what is broken off
		r.Body = io.NopCloser(bytes.NewReader(text))
		line := r.Method + " " + r.URL.Path
		switch {
		case r.Method == http.MethodPut:
			line = "PUT " + hubtest.Hash(text)
		case r.Method == http.MethodPost && r.URL.Path != "/api/validate-yaml":
			for part := range bytes.Lines(text) {
				line += "\n  " + plainJSON(part)
			}
		default:
			return false // each asks once more for what it has been told
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, line)
		return false
	})
}

// plainJSON is JSON with sorted keys, without what may differ: the texts of commits, and optional keys.
func plainJSON(text []byte) string {
	var v map[string]any
	if json.Unmarshal(text, &v) != nil {
		return string(text)
	}
	if v["key"] == "header" {
		return `header`
	}
	delete(v, "ref")
	if v["name"] != nil {
		delete(v, "type") // a model is what is meant without it
	}
	var lines []string
	objects, _ := v["objects"].([]any)
	for _, o := range objects { // asked about together, or each when its turn comes
		v["objects"] = []any{o}
		plain, _ := json.Marshal(v) // it was JSON
		lines = append(lines, string(plain))
	}
	if lines == nil {
		plain, _ := json.Marshal(v) // it was JSON
		lines = []string{string(plain)}
	}
	return strings.Join(lines, "\n  ")
}

// String has the requests in an order that does not depend on time, those of one address together.
func (l *requestsOf) String() string {
	bodies := map[string][]string{}
	for _, line := range l.lines {
		address, body, _ := strings.Cut(line, "\n")
		bodies[address] = append(bodies[address], body)
	}
	var b strings.Builder
	for _, address := range slices.Sorted(maps.Keys(bodies)) {
		slices.Sort(bodies[address])
		fmt.Fprintln(&b, strings.TrimSpace(address+"\n"+strings.Join(bodies[address], "\n")))
	}
	return b.String()
}

// Uploads make the requests that huggingface_hub makes, which testdata/upload.txt has.
func TestUploadRequests(t *testing.T) {
	const golden = "testdata/upload.txt"
	start := func() (*hubtest.Server, *requestsOf, string) {
		s, list := hubtest.New(t), &requestsOf{}
		s.PartSize, s.Token = 2*chunk, secret
		list.watch(s)
		files := maps.Clone(model)
		files[".gitignore"], files["secret.env"] = "secret.env\n", "x"
		return s, list, saved(t, files)
	}
	if *python != "" {
		s, theirs, dir := start()
		cmd := script(t, s, t.TempDir(), "upload", "org/tuned", dir)
		cmd.Env = append(cmd.Env, "HF_TOKEN="+secret)
		require.NoError(t, cmd.Run())
		require.Equal(t, model["model.safetensors"], s.Contents("models/org/tuned")["model.safetensors"])
		if *rewrite {
			require.NoError(t, os.WriteFile(golden, []byte(theirs.String()), 0o644))
		}
		require.Equal(t, theirs.String(), read(t, golden))
	}
	s, ours, dir := start()
	c, _ := uploader(t, s)
	_, err := c.Upload(t.Context(), hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/tuned"}, Path: dir})
	require.NoError(t, err)
	require.Equal(t, read(t, golden), ours.String())
}

// Patterns are those of Python's fnmatch, which huggingface_hub uses: want is what it said.
func TestPatterns(t *testing.T) {
	s := hubtest.New(t)
	names := []string{"checkpoint-1/x", "checkpoint-a/x", "a[1].txt", "a1.txt", "b.json", "c.txt", "d^.txt", "e]f", "é"}
	files := map[string]string{}
	for _, name := range names {
		files[name] = name
	}
	s.Add("models/org/many", files)
	c, _, _ := client(t, s)
	for pattern, want := range map[string][]string{
		"checkpoint-[0-9]*": {"checkpoint-1/x"}, "checkpoint-[!0-9]*": {"checkpoint-a/x"},
		"*.[jt]*": {"a1.txt", "a[1].txt", "b.json", "c.txt", "d^.txt"}, "a[[]1].txt": {"a[1].txt"},
		"a[1].txt": {"a1.txt"}, "a[1*": {"a[1].txt"},
		"[^a]*.txt": {"a1.txt", "a[1].txt"}, "d[\\^].txt": {"d^.txt"}, "e[]]f": {"e]f"}, "[]": {},
		"?": {"é"}, "\xff*": {}, "[!]": {}, "a[1-]*": {"a1.txt"},
	} {
		got, err := c.Snapshot(t.Context(), hub.Repo{Kind: hub.Models, Name: "org/many"}, pattern)
		require.NoError(t, err, pattern)
		require.ElementsMatch(t, want, got.Files, pattern)
	}
}

// What a folder says about itself is heeded: its .gitignore, links that lead nowhere, what is excluded unread.
func TestUploadOfAnOddFolder(t *testing.T) {
	if runtime.GOOS == "windows" {
		lacking.Skip(t, "links", "symbolic", "symbolic links")
	}
	s := hubtest.New(t)
	c, told := uploader(t, s)
	dir := saved(t, map[string]string{".gitignore": "secret.env", "secret.env": "x", "a.txt": "a", "locked/b.txt": "b"})
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	require.NoError(t, os.Symlink(".", filepath.Join(dir, "loop")))
	require.NoError(t, os.Chmod(filepath.Join(dir, "locked"), 0))
	defer os.Chmod(filepath.Join(dir, "locked"), 0o700)
	u := hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/odd", Revision: "refs/pr/1"}, Path: dir,
		Exclude: []string{"locked/"}}
	s.Add("models/org/odd", nil)
	_, err := c.Upload(t.Context(), u)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a.txt": "a", ".gitignore": "secret.env"}, s.Contents("models/org/odd"))
	require.Contains(t, told.String(), "leads nowhere")
	require.Contains(t, told.String(), ".gitignore names it")

	one := hub.Upload{Repo: u.Repo, Path: filepath.Join(dir, "a.txt"), Exclude: []string{"*.txt"}}
	_, err = c.Upload(t.Context(), one)
	require.ErrorContains(t, err, "not excluded")
	one.Exclude, one.To = nil, "sub/"
	_, err = c.Upload(t.Context(), one)
	require.NoError(t, err)
	require.Contains(t, s.Contents("models/org/odd"), "sub/a.txt")
	one.To = "x/.git/config"
	_, err = c.Upload(t.Context(), one)
	require.ErrorContains(t, err, "without .git")
}

// A file that grows, or changes where it is, while it is sent is no part of a commit.
func TestUploadOfAFileThatChanges(t *testing.T) {
	for _, change := range []func(name string) error{
		func(name string) error {
			f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(t, err)
			defer f.Close()
			_, err = f.WriteString("more")
			return err
		},
		func(name string) error { return os.WriteFile(name, []byte(noise(10*chunk+123, 9)), 0o644) },
	} {
		s := hubtest.New(t)
		c, _ := uploader(t, s)
		u := hub.Upload{Repo: hub.Repo{Kind: hub.Models, Name: "org/tuned"}, Path: saved(t, model)}
		var once sync.Once
		s.SetFault(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut {
				once.Do(func() { require.NoError(t, change(filepath.Join(u.Path, "model.safetensors"))) })
			}
			return false
		})
		_, err := c.Upload(t.Context(), u)
		require.ErrorContains(t, err, "model.safetensors changed while it was uploaded")
	}
}
