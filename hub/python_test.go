// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/hub/hubtest"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

var (
	python  = flag.String("python", "", "a Python with huggingface_hub, for TestPython")
	rewrite = flag.Bool("rewrite", false, "with python: rewrite testdata/layout.txt")
)

const layoutFile = "testdata/layout.txt"

// wanted are the files that Model takes of tiny.
var wanted = []string{"*.json", "*.jinja", "model.safetensors"}

// layout lists what a cache has: files by hash, links by where they lead.
func layout(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	for _, name := range files(t, dir) {
		if to, err := os.Readlink(filepath.Join(dir, name)); err == nil {
			fmt.Fprintf(&b, "%s -> %s\n", name, filepath.ToSlash(to))
			continue
		}
		switch text := read(t, dir, name); {
		case strings.HasPrefix(name, ".locks"):
			fmt.Fprintf(&b, "%s\n", name)
		case strings.Contains(name, "/trees/"):
			var v any
			require.NoError(t, json.Unmarshal([]byte(text), &v))
			plain, err := json.Marshal(v)
			require.NoError(t, err)
			fmt.Fprintf(&b, "%s %s\n", name, plain)
		case strings.Contains(name, "/refs/"):
			fmt.Fprintf(&b, "%s %s\n", name, text)
		case name == "CACHEDIR.TAG":
			signature, _, _ := strings.Cut(text, "\n")
			fmt.Fprintf(&b, "%s %s\n", name, signature)
		default:
			fmt.Fprintf(&b, "%s %s\n", name, hubtest.Hash([]byte(text)))
		}
	}
	return b.String()
}

// makeCache writes a cache that a layout describes.
func makeCache(t *testing.T, dir, text string) {
	t.Helper()
	contents := map[string]string{}
	for _, data := range tiny {
		contents[hubtest.Hash([]byte(data))] = data
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		name, rest, _ := strings.Cut(line, " ")
		at := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if to, ok := strings.CutPrefix(rest, "-> "); ok {
			require.NoError(t, os.Symlink(filepath.FromSlash(to), at))
			continue
		}
		if data, ok := contents[rest]; ok {
			rest = data
		}
		require.NoError(t, os.WriteFile(at, []byte(rest), 0o644))
	}
}

// Caches are laid out as huggingface_hub's, and its are read.
func TestLayout(t *testing.T) {
	if runtime.GOOS == "windows" {
		lacking.Skip(t, "links", "symbolic", "symbolic links")
	}
	golden := read(t, layoutFile)
	s := hubtest.New(t)
	s.Add("models/org/tiny", tiny)
	c, _, _ := client(t, s)
	_, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.Equal(t, golden, layout(t, c.CacheDir))

	c, _, _ = client(t, s)
	makeCache(t, c.CacheDir, golden)
	c.Offline = true
	dir, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	for _, name := range files(t, dir) {
		require.Equal(t, tiny[name], read(t, dir, name))
	}
}

// script calls testdata/cache.py with a cache.
func script(t *testing.T, s *hubtest.Server, cache string, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), *python, append([]string{"testdata/cache.py"}, argv...)...)
	cmd.Env = append(os.Environ(), "HF_ENDPOINT="+s.URL, "HF_HUB_CACHE="+cache, "HF_HUB_DISABLE_XET=1",
		"HF_HUB_DISABLE_TELEMETRY=1")
	cmd.Stderr = os.Stderr
	return cmd
}

// With huggingface_hub itself: each reads the other's cache, and waits for the other's locks.
func TestPython(t *testing.T) {
	if *python == "" {
		t.Skip("wants -python")
	}
	s := hubtest.New(t)
	commit := s.Add("models/org/tiny", tiny)
	c, _, _ := client(t, s)
	_, err := script(t, s, c.CacheDir, slices.Concat([]string{"write", "org/tiny"}, wanted)...).Output()
	require.NoError(t, err)
	theirs := layout(t, c.CacheDir)
	if *rewrite {
		require.NoError(t, os.WriteFile(layoutFile, []byte(theirs), 0o644))
	}
	require.Equal(t, theirs, read(t, layoutFile))
	c.Offline = true
	dir, err := c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	require.Equal(t, tiny["model.safetensors"], read(t, dir, "model.safetensors"))

	c, _, _ = client(t, s)
	dir, err = c.Model(t.Context(), "org/tiny", "")
	require.NoError(t, err)
	out, err := script(t, s, c.CacheDir, slices.Concat([]string{"read", "org/tiny"}, wanted)...).Output()
	require.NoError(t, err)
	var got struct {
		Commit          string
		Files           map[string]string
		Warnings, Repos []string
	}
	require.NoError(t, json.Unmarshal(out, &got))
	require.Equal(t, commit, got.Commit)
	require.Len(t, got.Files, len(files(t, dir)))
	for name, text := range got.Files {
		require.Equal(t, tiny[name], text)
	}
	require.Empty(t, got.Warnings)
	require.Equal(t, []string{"org/tiny"}, got.Repos)
	requireLocks(t, s)
}

// requireLocks has each wait for the other.
func requireLocks(t *testing.T, s *hubtest.Server) {
	c, told, _ := client(t, s)
	lock := filepath.Join(c.CacheDir, ".locks", "models--org--tiny",
		hubtest.Hash([]byte(tiny["model.safetensors"]))+".lock")
	require.NoError(t, os.MkdirAll(filepath.Dir(lock), 0o755))
	cmd := script(t, s, c.CacheDir, "hold", lock)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	says, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = io.ReadAtLeast(says, make([]byte, 5), 5)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Model(t.Context(), "org/tiny", "")
		ended <- err
	}()
	for !strings.Contains(told.String(), "Another process downloads a file.") {
		select {
		case err := <-ended:
			require.Fail(t, "it did not wait", err)
		default:
		}
	}
	require.NoError(t, in.Close())
	require.NoError(t, <-ended)
	require.NoError(t, cmd.Wait())

	c, _, _ = client(t, s)
	lock = strings.Replace(lock, filepath.Dir(filepath.Dir(filepath.Dir(lock))), c.CacheDir, 1)
	asked, answer := make(chan bool, 1), make(chan bool)
	s.SetFault(func(_ http.ResponseWriter, r *http.Request) bool {
		if weights(r) && strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
			asked <- true
			<-answer
		}
		return false
	})
	go func() {
		_, err := c.Model(t.Context(), "org/tiny", "")
		ended <- err
	}()
	<-asked
	out, err := script(t, s, c.CacheDir, "try", lock).Output()
	close(answer)
	require.NoError(t, err)
	require.Equal(t, "taken\n", string(out))
	require.NoError(t, <-ended)
	out, err = script(t, s, c.CacheDir, "try", lock).Output()
	require.NoError(t, err)
	require.Equal(t, "free\n", string(out))
}
