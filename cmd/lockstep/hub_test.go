// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/hub/hubtest"
)

// startHub is a Hub whose cache is empty.
func startHub(t *testing.T) *hubtest.Server {
	s := hubtest.New(t)
	hubtest.Environment(t, s.URL)
	return s
}

// Models of the Hub are exported by their names, at a revision too, and without the Hub from the cache.
func TestExportOfTheHub(t *testing.T) {
	raw, err := os.ReadFile("../../models/testdata/gguf/llama.gguf")
	require.NoError(t, err)
	s := startHub(t)
	commit := s.Add("models/org/tiny", map[string]string{"tiny.gguf": string(raw), "README.md": "read me"})
	t.Chdir(t.TempDir())
	for _, argv := range [][]string{{}, {"--revision", "main"}, {"--revision", commit}} {
		code, stdout, stderr := output(nil, append([]string{"export", "org/tiny", "--dtype", "q8_0", "-o", "a.gguf",
			"--overwrite"}, argv...)...)
		require.Equal(t, exitOK, code, stderr)
		require.Contains(t, stdout, "a.gguf: 20 tensors")
	}
	code, _, stderr := output(nil, "export", "org/tiny", "--revision", "v2")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "v2")
	code, _, stderr = output(nil, "export", "org/none")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "there is no folder org/none here, and: ")

	s.Forget()
	t.Setenv("HF_HUB_OFFLINE", "1")
	code, _, stderr = output(nil, "export", "org/tiny", "-o", "b.gguf")
	require.Equal(t, exitOK, code, stderr)
	require.FileExists(t, "b.gguf")
	code, _, stderr = output(nil, "export", "org/other", "-o", "c.gguf")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "HF_HUB_OFFLINE")
	require.Empty(t, s.Requests())
}

// An estimate needs the configuration of a model of the Hub, and downloads nothing else.
func TestEstimateOfTheHub(t *testing.T) {
	s := startHub(t)
	s.Add("models/org/tiny", map[string]string{"model.safetensors": strings.Repeat("x", 1<<16), "config.json": `{
		"model_type": "gpt2", "vocab_size": 50, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}`})
	for _, argv := range [][]string{{"estimate-memory", "org/tiny"}, {"estimate-memory", "org/tiny", "--revision=main"},
		{"estimate-memory", "--model_name_or_path=org/tiny", "--json"},
		{"simulate", "org/tiny", "--mesh", "dp_replicate=2"}} {
		code, stdout, stderr := output(nil, argv...)
		require.Equal(t, exitOK, code, "%v: %s", argv, stderr)
		require.NotEmpty(t, stdout)
	}
	for _, r := range s.Requests() {
		require.NotContains(t, r.URL.Path, "safetensors")
	}
	code, _, stderr := output(nil, "estimate-memory", "org/none")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "org/none")
	code, _, stderr = output(nil, "estimate-memory", "org/tiny", "--revision", "v2")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "v2")
	s.Forget()
	t.Setenv("HF_HUB_OFFLINE", "1")
	code, _, stderr = output(nil, "estimate-memory", "org/tiny")
	require.Equal(t, exitOK, code, stderr)
	require.Empty(t, s.Requests())
}

// A folder becomes a repository; the same again changes nothing.
func TestUpload(t *testing.T) {
	s := startHub(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), []byte(strings.Repeat("x", 1<<20)), 0o644))
	code, _, stderr := output(nil, "upload", "org/tuned", dir)
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "needs a token")
	t.Setenv("HF_TOKEN", "hf_x")
	s.Token = "hf_x"
	code, stdout, stderr := output(nil, "upload", "org/tuned", dir, "--private", "--exclude=*.bin")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "org/tuned: 2 files, 1.0 MiB sent in ")
	require.Contains(t, stdout, s.URL+"/org/tuned/commit/")
	require.Equal(t, "{}", s.Contents("models/org/tuned")["config.json"])
	_, private := s.Branches("models/org/tuned")
	require.True(t, private)
	code, stdout, _ = output(nil, "upload", "org/tuned", dir)
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "org/tuned: nothing has changed")
	code, _, stderr = output(nil, "upload", "org/data", filepath.Join(dir, "config.json"), "/a/b.json", "--repo-type",
		"dataset")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "{}", s.Contents("datasets/org/data")["a/b.json"])

	for want, argv := range map[string][]string{
		"1 word: want ORG/NAME, PATH": {"org/tuned"}, "not the name of a repository": {"../x", dir},
		`repo_type "space": want model or dataset`: {"org/tuned", dir, "--repo_type", "space"},
	} {
		code, _, stderr := output(nil, append([]string{"upload"}, argv...)...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, want)
	}
	code, _, stderr = output(nil, "upload", "org/tuned", filepath.Join(dir, "none"))
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "none: no such file")
}
