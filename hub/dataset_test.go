// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
)

// list makes files of some names.
func list(names ...string) map[string]string {
	out := map[string]string{}
	for _, name := range names {
		out[name] = "data of " + name
	}
	return out
}

func with(files map[string]string, name, text string) map[string]string {
	files = maps.Clone(files)
	files[name] = text
	return files
}

// The files of a split are those that datasets.load_dataset takes.
func TestDataset(t *testing.T) {
	all := []string{hub.Train, hub.Validation, hub.Test}
	card := func(configs string) string { return "---\nlicense: mit\nconfigs:\n" + configs + "---\n# A data set\n" }
	two := with(list("en/a.jsonl", "en/dev.jsonl", "de/a.jsonl", "x.jsonl"), "README.md", card("- config_name: en\n"+
		"  data_files:\n  - split: train\n    path: en/*.jsonl\n- config_name: de\n  data_dir: de\n"))
	for name, c := range map[string]struct {
		files  map[string]string
		config string
		want   string // split: files
		fails  string
	}{
		"names": {files: list("train.jsonl", "dev.csv", "my-test-2.jsonl.gz", "README.md", "script.py", "latest.json"),
			want: "train: train.jsonl, validation: dev.csv, test: my-test-2.jsonl.gz"},
		"folders": {files: list("train/a.jsonl", "train/b.jsonl", "data/valid/a.jsonl", "test.jsonl"),
			want: "train: train/a.jsonl train/b.jsonl, validation: data/valid/a.jsonl"},
		"sharded": {files: list("data/train-00000-of-00002.json", "data/train-00001-of-00002.json",
			"data/test-00000-of-00001-0123456789abcdef.json", "train.json"),
			want: "train: data/train-00000-of-00002.json data/train-00001-of-00002.json, " +
				"test: data/test-00000-of-00001-0123456789abcdef.json"},
		"none of them": {files: list("a.jsonl", "b/c.jsonl", ".hidden.jsonl", "__x/d.jsonl", "dataset_infos.json"),
			want: "train: a.jsonl b/c.jsonl"},
		"a card": {files: with(list("x/one.csv", "x/two.csv"), "README.md", card("- config_name: default\n  "+
			"data_files:\n"+
			"  - split: train\n    path: [x/one.csv]\n  - split: test\n    path: '**/two.csv'\n")),
			want: "train: x/one.csv, test: x/two.csv"},
		"a pattern": {files: with(list("a.csv", "b.csv"), "README.md", card("- data_files: '[a]*.csv'\n")),
			want: "train: a.csv"},
		"a config":     {files: two, config: "en", want: "train: en/a.jsonl en/dev.jsonl"},
		"a folder":     {files: two, config: "de", want: "train: de/a.jsonl"},
		"which config": {files: two, fails: "has several configurations: want one of en, de"},
		"other config": {files: two, config: "fr", fails: "has no configuration fr in its README.md: want en, de"},
		"no config": {files: list("a.csv"), config: "fr", fails: "has no configuration fr in its README.md: want " +
			"none"},
		"other formats": {files: list("a.parquet", "README.md"), fails: "has files that end in .parquet: want " +
			".jsonl, .json, .csv"},
		"no data": {files: list("README.md"), fails: "has no files of data"},
		"other splits": {files: list("data/extra-00000-of-00001.csv"), fails: "has no split train or validation or " +
			"test: want one of extra"},
		"broken card": {files: with(list("a.csv"), "README.md", "---\na: [\n---\n"), fails: "README.md of data set " +
			"org/set"},
		"away": {files: with(list("a.csv"), "README.md", card("- data_files: ../../a.csv\n")),
			fails: "leads out of its folder"},
		"elsewhere": {files: with(list("a.csv"), "README.md", card("- data_files: https://example.com/a.csv\n")),
			fails: "has data at https://example.com/a.csv: want files of the repository"},
		"no list": {files: with(list("a.csv"), "README.md", card("- data_files: 7\n")), fails: "want names of files"},
	} {
		t.Run(name, func(t *testing.T) {
			s := hubtest.New(t)
			commit := s.Add("datasets/org/set", c.files)
			cl, _, _ := client(t, s)
			got, err := cl.Dataset(t.Context(), "org/set", hub.Selection{Config: c.config, Splits: all,
				Extensions: []string{".jsonl", ".json", ".csv"}})
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			top := filepath.Join(cl.CacheDir, "datasets--org--set", "snapshots", commit)
			var splits []string
			for _, split := range all {
				var names []string
				for _, file := range got[split] {
					rel, err := filepath.Rel(top, file)
					require.NoError(t, err)
					names = append(names, filepath.ToSlash(rel))
					require.Equal(t, c.files[filepath.ToSlash(rel)], read(t, file))
				}
				if names != nil {
					splits = append(splits, split+": "+strings.Join(names, " "))
				}
			}
			require.Equal(t, c.want, strings.Join(splits, ", "))
		})
	}
	s := hubtest.New(t)
	s.Add("datasets/org/set", list("train.csv", "test.csv"))
	cl, _, _ := client(t, s)
	got, err := cl.Dataset(t.Context(), "org/set", hub.Selection{Splits: []string{hub.Train},
		Extensions: []string{".csv"}})
	require.NoError(t, err)
	require.Equal(t, []string{hub.Train}, slices.Collect(maps.Keys(got)))
	for _, f := range files(t, cl.CacheDir) {
		require.NotContains(t, f, "test.csv") // is not wanted
	}
}

// Patterns are those of huggingface_hub.
func TestSnapshot(t *testing.T) {
	s := hubtest.New(t)
	commit := s.Add("models/org/tiny", list("a.json", "b/c.json", "b/d.txt", "e[1].json", "f.txt"))
	c, _, _ := client(t, s)
	for pattern, want := range map[string][]string{
		"*.json": {"a.json", "b/c.json", "e[1].json"}, "b/": {"b/c.json", "b/d.txt"}, "?.txt": {"f.txt"},
		"e[[]1].json": {"e[1].json"}, "e[1].json": nil, "": nil,
		"*": {"a.json", "b/c.json", "b/d.txt", "e[1].json", "f.txt"},
	} {
		got, err := c.Snapshot(t.Context(), hub.Repo{Kind: hub.Models, Name: "org/tiny"}, pattern)
		require.NoError(t, err)
		require.Equal(t, want, got.Files, pattern)
		require.Equal(t, commit, got.Commit)
	}
	list, err := c.Files(t.Context(), hub.Repo{Kind: hub.Models, Name: "org/tiny"})
	require.NoError(t, err)
	require.Len(t, list, 5)
	require.Equal(t, hub.File{Path: "a.json", Size: 14, Hash: hubtest.Hash([]byte("data of a.json"))}.Hash,
		list[0].Hash)
	_, err = c.File(t.Context(), hub.Repo{Kind: hub.Models, Name: "org/tiny"}, "absent")
	require.ErrorIs(t, err, hub.ErrFile)
}
