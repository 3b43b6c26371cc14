// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// incomplete is where the weights of tiny arrive.
func incomplete(c *hub.Client) string {
	return filepath.Join(c.CacheDir, "models--org--tiny", "blobs",
		hubtest.Hash([]byte(tiny["model.safetensors"]))+".incomplete")
}

// rangesFrom is the range of the first request for the weights; "" without one.
func rangesFrom(s *hubtest.Server) string {
	for _, r := range s.Requests() {
		if weights(r) {
			return r.Header.Get("Range")
		}
	}
	return ""
}

// meter collects what a client shows.
type meter struct{ sum, total atomic.Int64 }

func (m *meter) Add(n int64) { m.sum.Add(n) }
func (m *meter) Close()      {}

func (m *meter) begin(_ string, total int64) hub.Meter {
	m.total.Store(total)
	m.sum.Store(0)
	return m
}

// An interrupt leaves what has arrived, and the next run continues there.
func TestInterruptAndResume(t *testing.T) {
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	c, _, _ := client(t, s)
	m := &meter{}
	c.Progress = m.begin
	ctx, interrupt := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted")
	hang := make(chan struct{})
	s.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if !weights(r) || !strings.HasPrefix(r.Header.Get("Range"), "bytes=20480-") {
			return false
		}
		for {
			info, err := os.Stat(incomplete(c))
			if err == nil && info.Size() == 20480 { // what is before the part is there
				break
			}
			time.Sleep(time.Millisecond)
		}
		interrupt(stop)
		<-hang
		return true
	})
	_, err := c.Model(ctx, "org/tiny", "")
	close(hang)
	require.ErrorIs(t, err, stop)
	require.Equal(t, tiny["model.safetensors"][:20480], read(t, incomplete(c)))

	s.SetFault(nil)
	s.Forget()
	dir, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.Equal(t, tiny["model.safetensors"], read(t, dir, "model.safetensors"))
	for _, r := range s.Requests() {
		require.NotContains(t, []string{"bytes=0-4095", "bytes=16384-20479"}, r.Header.Get("Range"))
	}
	require.EqualValues(t, len(tiny["model.safetensors"]), m.total.Load())
	require.Equal(t, m.total.Load(), m.sum.Load())
}

// What another program has left may be the beginning of something else, or longer than the file.
func TestForeignBeginnings(t *testing.T) {
	for name, begin := range map[string]string{
		"of another file": strings.Repeat("x", 9000), "too long": strings.Repeat("x", 60000),
		"complete, and another": strings.Repeat("x", len(tiny["model.safetensors"])),
		"complete":              tiny["model.safetensors"],
	} {
		t.Run(name, func(t *testing.T) {
			s := hubtest.New(t)
			s.Add("models/org/tiny", tiny)
			c, _, _ := client(t, s)
			m := &meter{}
			c.Progress = m.begin
			require.NoError(t, os.MkdirAll(filepath.Dir(incomplete(c)), 0o755))
			require.NoError(t, os.WriteFile(incomplete(c), []byte(begin), 0o644))
			dir, err := c.Model(t.Context(), "org/tiny", "")
			require.NoError(t, err)
			require.Equal(t, tiny["model.safetensors"], read(t, dir, "model.safetensors"))
			require.Equal(t, m.total.Load(), m.sum.Load())
			require.Equal(t, name != "complete", rangesFrom(s) != "")
		})
	}
}

// A server that says nothing is left, and asked for the rest.
func TestSilence(t *testing.T) {
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	c, told, _ := client(t, s)
	c.Timeout = 50 * time.Millisecond
	var silent atomic.Bool
	end := make(chan struct{})
	defer close(end)
	s.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if !weights(r) || silent.Swap(true) {
			return false
		}
		<-end
		return true
	})
	dir, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.Equal(t, tiny["model.safetensors"], read(t, dir, "model.safetensors"))
	require.Contains(t, told.String(), "it is silent for 50ms")
}

// full is a disk that takes so many bytes more.
type full struct {
	io.Writer
	left *atomic.Int64
}

func (f full) Write(b []byte) (int, error) {
	n := min(int64(len(b)), max(0, f.left.Load()))
	f.left.Add(-n)
	if _, err := f.Writer.Write(b[:n]); err != nil {
		return 0, err
	}
	if n < int64(len(b)) {
		return int(n), &os.PathError{Op: "write", Path: "blob", Err: syscall.ENOSPC}
	}
	return int(n), nil
}

// A full disk is told before the download, where its space is known, and otherwise keeps what has arrived.
func TestFullDisk(t *testing.T) {
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	c, _, _ := client(t, s)
	c.SetSpace(1000)
	_, err := c.Model(t.Context(), "org/tiny", "")
	require.ErrorContains(t, err, "model org/tiny needs 41.1 kB more and "+c.CacheDir+" has 1.0 kB free: want space "+
		"there, "+
		"or HF_HOME (or cache_dir) to name another disk")
	require.False(t, weightsWereAsked(s))

	c, _, _ = client(t, s)
	left := &atomic.Int64{}
	left.Store(30000)
	c.SetSink(func(w io.Writer) io.Writer { return full{w, left} })
	_, err = c.Model(t.Context(), "org/tiny", "")
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "has no space for model.safetensors of model org/tiny, which has 41.1 kB: ")
	require.ErrorContains(t, err, "have arrived and are kept, where the next run goes on")
	kept := read(t, incomplete(c))
	require.Equal(t, tiny["model.safetensors"][:len(kept)], kept)
	require.Greater(t, len(kept), 25000)
	c.SetSink(nil)
	c.SetSpace(20000) // enough for the rest
	dir, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.Equal(t, tiny["model.safetensors"], read(t, dir, "model.safetensors"))
}

func weightsWereAsked(s *hubtest.Server) bool { return rangesFrom(s) != "" }

// A cache that cannot be written to gives what it has, with the Hub and without.
func TestReadOnlyCache(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		lacking.Skip(t, "user", "plain", "folders that a user cannot write to")
	}
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	c, _, _ := client(t, s)
	_, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(c.CacheDir, "models--org--tiny", "refs", "main")))
	lock := func(mode os.FileMode) {
		require.NoError(t, filepath.WalkDir(c.CacheDir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = os.Chmod(p, mode)
			}
			return err
		}))
	}
	lock(0o555)
	defer lock(0o755)
	dir, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.Equal(t, tiny["model.safetensors"], read(t, dir, "model.safetensors"))
	_, err = c.File(t.Context(), hub.Repo{Kind: hub.Models, Name: "org/tiny"}, "README.md")
	require.ErrorContains(t, err, "is not in the cache, which cannot be written to: ")
	require.ErrorContains(t, err, "want HF_HOME (or cache_dir) to name a folder that can")
}

// Several processes, and goroutines of one, download a file once.
func TestOneDownload(t *testing.T) {
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	first, _, _ := client(t, s)
	var g sync.WaitGroup
	for range 4 {
		c, _, _ := client(t, s)
		c.CacheDir, c.Log = first.CacheDir, first.Log
		g.Go(func() {
			dir, err := c.Model(t.Context(), "org/tiny", "")
			if err == nil && read(t, dir, "model.safetensors") != tiny["model.safetensors"] {
				err = errors.New("another file")
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	seen := map[string]int{}
	for _, r := range s.Requests() {
		if weights(r) {
			seen[r.Header.Get("Range")]++
		}
	}
	require.Len(t, seen, 11)
	for part, n := range seen {
		require.Equal(t, 1, n, part)
	}
}

// Names and links that lead out of the cache are refused, and nothing is written there.
func TestNamesLeadNowhereElse(t *testing.T) {
	for _, name := range []string{"../evil.json", "a/../../evil.json", "/evil.json", `a\..\..\evil.json`,
		"a//evil.json", ".",
		"a/./evil.json", "evil\n.json"} {
		s := hubtest.New(t)
		s.Add("models/org/tiny", map[string]string{name: "x", "config.json": "{}"})
		c, _, _ := client(t, s)
		_, err := c.Snapshot(t.Context(), hub.Repo{Kind: hub.Models, Name: "org/tiny"})
		require.ErrorContains(t, err, "a file of model org/tiny: the name", name)
		for _, f := range files(t, filepath.Dir(c.CacheDir)) {
			require.NotContains(t, f, "evil")
		}
		_, err = c.Snapshot(t.Context(), hub.Repo{Kind: hub.Models, Name: "org/tiny"}, "config.json") // harms nobody
		require.NoError(t, err)
	}
	c, _, _ := client(t, hubtest.New(t))
	for _, r := range []hub.Repo{{hub.Models, "../x", ""}, {hub.Models, "org/tiny", "../../x"}, {"spaces", "org/tiny",
		""},
		{hub.Models, "org/..", ""}, {hub.Models, "org/tiny", "/x"}} {
		_, err := c.Snapshot(t.Context(), r)
		require.ErrorContains(t, err, "hub: ", r)
	}
}

func TestLinksLeadNowhereElse(t *testing.T) {
	if runtime.GOOS == "windows" {
		lacking.Skip(t, "links", "symbolic", "symbolic links")
	}
	outside := t.TempDir()
	target := filepath.Join(outside, "target")
	require.NoError(t, os.WriteFile(target, []byte("x"), 0o600))
	commit := hubtest.New(t).Add("models/org/tiny", tiny)
	repo := filepath.Join("models--org--tiny")
	for name, link := range map[string]struct{ at, to string }{
		"pointer":    {filepath.Join(repo, "snapshots", commit, "config.json"), target},
		"snapshot":   {filepath.Join(repo, "snapshots", commit), outside},
		"repository": {repo, outside},
		"blobs":      {filepath.Join(repo, "blobs"), outside},
		"blob":       {filepath.Join(repo, "blobs", hubtest.Hash([]byte(tiny["config.json"]))), target},
		"incomplete": {filepath.Join(repo, "blobs", hubtest.Hash([]byte(tiny["config.json"]))+".incomplete"), target},
		"locks":      {".locks", outside},
	} {
		t.Run(name, func(t *testing.T) {
			s := hubtest.New(t)
			s.Add("models/org/tiny", tiny)
			c, _, _ := client(t, s)
			at := filepath.Join(c.CacheDir, link.at)
			require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
			require.NoError(t, os.Symlink(link.to, at))
			_, err := c.Model(t.Context(), "org/tiny", "")
			require.ErrorContains(t, err, "hub: ")
			require.Equal(t, []string{"target"}, files(t, outside))
			require.Equal(t, "x", read(t, target))
		})
	}
}

// Without the network the cache is taken; what it lacks is named.
func TestOffline(t *testing.T) {
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	c, told, _ := client(t, s)
	c.Offline = true
	_, err := c.Model(t.Context(), "org/tiny", "")
	require.ErrorIs(t, err, hub.ErrOffline)
	require.ErrorContains(t, err, "model org/tiny is not in the cache "+c.CacheDir+", and the network is not used "+
		"(HF_HUB_OFFLINE)")
	require.Empty(t, s.Requests())

	c.Offline = false
	want, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	c.Offline = true
	s.Forget()
	got, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Empty(t, s.Requests())
	_, err = c.File(t.Context(), hub.Repo{Kind: hub.Models, Name: "org/tiny"}, "README.md")
	require.ErrorContains(t, err, "README.md of model org/tiny is not in the cache "+c.CacheDir+": the network is "+
		"not used")

	// without a listing the cache's files are all that is known
	require.NoError(t, os.RemoveAll(filepath.Join(c.CacheDir, "models--org--tiny", "trees")))
	got, err = c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, os.Remove(filepath.Join(want, "model.safetensors")))
	_, err = c.Model(t.Context(), "org/tiny", "")
	require.ErrorIs(t, err, hub.ErrOffline)
	require.ErrorContains(t, err, "model.safetensors of model org/tiny is not in the cache")

	// a Hub that cannot be reached, or has forgotten the model, is as none
	c.Offline = false
	for _, fault := range []func(http.ResponseWriter){
		func(w http.ResponseWriter) { w.WriteHeader(503) },
		func(w http.ResponseWriter) { hubtest.Refuse(w, 404, "RepoNotFound", "") },
		func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		s.SetFault(nil)
		_, err = c.Model(t.Context(), "org/tiny", "")
		require.NoError(t, err)
		s.SetFault(func(w http.ResponseWriter, _ *http.Request) bool { fault(w); return true })
		s.Forget()
		got, err = c.Model(t.Context(), "org/tiny", "")
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Len(t, s.Requests(), 1)
		require.Contains(t, told.String(), "The cache is used as it is.")
		require.NoError(t, os.Remove(filepath.Join(want, "model.safetensors")))
		_, err = c.Model(t.Context(), "org/tiny", "")
		require.ErrorIs(t, err, hub.ErrOffline)
		require.ErrorContains(t, err, strings.TrimPrefix(s.URL, "http://"))
	}
	s.SetFault(func(w http.ResponseWriter, _ *http.Request) bool {
		hubtest.Refuse(w, 404, "RevisionNotFound", "")
		return true
	})
	_, err = c.Model(t.Context(), "org/tiny", "")
	require.ErrorIs(t, err, hub.ErrRevision)
}

// Where there are no links, files stand in the snapshots.
func TestWithoutLinks(t *testing.T) {
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	c, _, _ := client(t, s)
	c.CopyFiles = true
	for range 2 {
		dir, err := c.Model(t.Context(), "org/tiny", "")
		require.NoError(t, err)
		for _, name := range files(t, dir) {
			info, err := os.Lstat(filepath.Join(dir, name))
			require.NoError(t, err)
			require.True(t, info.Mode().IsRegular())
			require.Equal(t, tiny[name], read(t, dir, name))
		}
		c.Offline = true
	}
}

// Over TLS neither the Hub nor its files are left for a server without, and the token goes to the Hub alone.
func TestTLS(t *testing.T) {
	s := hubtest.NewTLS(t)
	s.Token = secret
	s.Add("models/org/tiny", tiny)
	c, _, _ := client(t, s)
	c.Token = secret
	dir, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.Equal(t, tiny["model.safetensors"], read(t, dir, "model.safetensors"))
	requireSound(t, c, s, true)

	c, _, _ = client(t, s)
	c.Token = secret
	plain := hubtest.New(t)
	s.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if asks(r, "resolve") {
			http.Redirect(w, r, plain.URL+r.URL.Path, http.StatusFound)
		}
		return asks(r, "resolve")
	})
	_, err = c.Model(t.Context(), "org/tiny", "")
	require.ErrorContains(t, err, "without TLS: want https")
	require.Empty(t, plain.Requests())

	c, _, _ = client(t, s)
	c.Transport = nil // knows no such certificate
	_, err = c.Model(t.Context(), "org/tiny", "")
	require.ErrorIs(t, err, hub.ErrUnreachable)
	require.ErrorContains(t, err, "certificate")
}

// FromEnvironment reads huggingface_hub's variables as that does.
func TestFromEnvironment(t *testing.T) {
	home := t.TempDir()
	none := map[string]string{"HOME": home, "USERPROFILE": home}
	for _, name := range hubtest.Variables {
		none[name] = ""
	}
	require.NoError(t, os.MkdirAll(filepath.Join(home, "hf"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(home, "hf", "token"), []byte(" "+secret+"\r\n"), 0o600))
	for name, c := range map[string]struct {
		env   map[string]string
		check func(c *hub.Client) (got, want any)
	}{
		"nothing": {nil, func(c *hub.Client) (any, any) {
			return []string{c.Endpoint, c.CacheDir, c.Token},
				[]string{hub.DefaultEndpoint, filepath.Join(home, ".cache", "huggingface", "hub"), ""}
		}},
		"XDG_CACHE_HOME": {map[string]string{"XDG_CACHE_HOME": "/xdg"}, func(c *hub.Client) (any, any) {
			return c.CacheDir, filepath.Join("/xdg", "huggingface", "hub")
		}},
		"HF_HOME": {map[string]string{"HF_HOME": "~/hf", "XDG_CACHE_HOME": "/xdg"}, func(c *hub.Client) (any, any) {
			return []string{c.CacheDir, c.Token}, []string{filepath.Join(home, "hf", "hub"), secret}
		}},
		"HUGGINGFACE_HUB_CACHE": {map[string]string{"HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/old"},
			func(c *hub.Client) (any, any) { return c.CacheDir, "/old" }},
		"HF_HUB_CACHE": {map[string]string{"HF_HUB_CACHE": "/new$HF_HOME", "HUGGINGFACE_HUB_CACHE": "/old",
			"HF_HOME": "/x"},
			func(c *hub.Client) (any, any) { return c.CacheDir, "/new/x" }},
		"HF_TOKEN": {map[string]string{"HF_TOKEN": "hf_other\n", "HF_HOME": "~/hf"},
			func(c *hub.Client) (any, any) { return c.Token, "hf_other" }},
		"HUGGING_FACE_HUB_TOKEN": {map[string]string{"HUGGING_FACE_HUB_TOKEN": "hf_old"},
			func(c *hub.Client) (any, any) { return c.Token, "hf_old" }},
		"HF_TOKEN_PATH": {map[string]string{"HF_TOKEN_PATH": filepath.Join(home, "hf", "token")},
			func(c *hub.Client) (any, any) { return c.Token, secret }},
		"HF_HUB_DISABLE_IMPLICIT_TOKEN": {map[string]string{"HF_HOME": "~/hf", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"},
			func(c *hub.Client) (any, any) { return c.Token, "" }},
		"HF_HUB_OFFLINE": {map[string]string{"HF_HUB_OFFLINE": "yes"}, func(c *hub.Client) (any, any) {
			return c.Offline, true
		}},
		"HF_HUB_OFFLINE=0": {map[string]string{"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"},
			func(c *hub.Client) (any, any) { return c.Offline, false }},
		"TRANSFORMERS_OFFLINE": {map[string]string{"TRANSFORMERS_OFFLINE": "1"},
			func(c *hub.Client) (any, any) { return c.Offline, true }},
		"HF_HUB_DISABLE_SYMLINKS": {map[string]string{"HF_HUB_DISABLE_SYMLINKS": "true"},
			func(c *hub.Client) (any, any) { return c.CopyFiles, true }},
		"HF_HUB_DOWNLOAD_TIMEOUT": {map[string]string{"HF_HUB_DOWNLOAD_TIMEOUT": "30"},
			func(c *hub.Client) (any, any) { return c.Timeout, 30 * time.Second }},
		"HF_HUB_USER_AGENT_ORIGIN": {map[string]string{"HF_HUB_USER_AGENT_ORIGIN": "school\n", "DO_NOT_TRACK": "1"},
			func(c *hub.Client) (any, any) { return c.UserAgent, "lockstep; origin/school" }},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range none {
				t.Setenv(key, value)
			}
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			client, err := hub.FromEnvironment()
			require.NoError(t, err)
			got, want := c.check(client)
			if w, ok := want.(string); ok && strings.HasPrefix(w, "/") {
				want = filepath.FromSlash(w)
				got = filepath.FromSlash(got.(string))
			}
			require.Equal(t, want, got)
		})
	}
	t.Setenv("HF_HUB_DOWNLOAD_TIMEOUT", "soon")
	_, err := hub.FromEnvironment()
	require.ErrorContains(t, err, `HF_HUB_DOWNLOAD_TIMEOUT is "soon": want a number of seconds`)
}

// Settings that cannot be are errors before anything is sent, and a token stays out of them.
func TestSettings(t *testing.T) {
	for _, c := range []struct {
		endpoint, token, want string
	}{
		{"huggingface.co", "", `HF_ENDPOINT is "huggingface.co": want the address of a server`},
		{"https://user:" + secret + "@example.com", "", `HF_ENDPOINT is "…@example.com"`},
		{hub.DefaultEndpoint, secret + "\n" + secret, "the token has characters that no token has"},
	} {
		client := &hub.Client{Endpoint: c.endpoint, Token: c.token, CacheDir: t.TempDir()}
		_, err := client.Model(t.Context(), "org/tiny", "")
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), secret)
	}
}
