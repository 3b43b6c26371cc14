// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/hub/hubtest"
	"github.com/lockstep-ml/lockstep/models"
)

// addFolder puts the files of a folder into a repository of a Hub.
func addFolder(t *testing.T, s *hubtest.Server, name, dir string) string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = string(text)
	}
	return s.Add(name, files)
}

// A model, its rows and an adapter come from the Hub by their names. What is saved names the model and its commit, by
// which it is found again.
func TestHub(t *testing.T) {
	const token = "hf_sEcReT"
	s := hubtest.New(t)
	s.Token = token
	commit := addFolder(t, s, "models/org/tiny", folder)
	chats, err := os.ReadFile("testdata/chats.jsonl")
	require.NoError(t, err)
	s.Add("datasets/org/chats", map[string]string{"README.md": "chats", "train.jsonl": string(chats)})
	cache, out := t.TempDir(), t.TempDir()
	hubtest.Environment(t, s.URL)
	argv := []string{"--cache_dir", cache, "--model_name_or_path", "org/tiny", "--dataset_name", "org/chats",
		"--max_steps", "2", "--max_new_tokens", "1", "--assistant_only_loss"}
	_, err = finetune(t, append(argv, "--output_dir", out)...)
	require.ErrorContains(t, err, "there is no folder org/tiny here, and: hub: there is no model org/tiny at")

	printed, err := finetune(t, append(argv, "--output_dir", out, "--token", token, "--revision", "v1",
		"--use_peft")...)
	require.NoError(t, err, printed)
	require.Contains(t, printed, "org/tiny, commit "+commit[:12])
	require.Contains(t, printed, "org/chats, train: 1 file")
	require.NotContains(t, printed, token)
	var config struct {
		Base     string `json:"base_model_name_or_path"`
		Revision string `json:"revision"`
	}
	text, err := os.ReadFile(filepath.Join(out, models.AdapterConfigFile))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &config))
	require.Equal(t, []string{"org/tiny", commit}, []string{config.Base, config.Revision})
	require.NoError(t, filepath.WalkDir(out, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		require.NotContains(t, string(text), token, path)
		return err
	}))

	addFolder(t, s, "models/org/adapter", out)
	again := t.TempDir()
	t.Setenv("HF_TOKEN", token)
	printed, err = finetune(t, append(argv, "--output_dir", again, "--adapter", "org/adapter")...)
	require.NoError(t, err, printed)
	t.Setenv("HF_HUB_OFFLINE", "1") // all is there
	printed, err = finetune(t, append(argv, "--output_dir", t.TempDir(), "--adapter", "org/adapter")...)
	require.NoError(t, err, printed)
}
