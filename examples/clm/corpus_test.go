package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireSplit checks that no file is in both splits, and that neither is empty.
func requireSplit(t *testing.T, train, eval []string) {
	require.NotEmpty(t, train)
	require.NotEmpty(t, eval)
	require.NoError(t, requireDisjoint(train, eval))
}

func TestGoSourceSplits(t *testing.T) {
	_, _, d, _ := defaults()
	train, eval, err := listFiles(d)
	require.NoError(t, err)
	requireSplit(t, train, eval)
	var bytes int64
	for _, f := range eval {
		n, err := fileSize(f)
		require.NoError(t, err)
		bytes += n
	}
	require.GreaterOrEqual(t, bytes, int64(256<<10), "what the example is judged on")

	d.MaxEvalBytes = 0
	all, whole, err := listFiles(d)
	require.NoError(t, err)
	requireSplit(t, all, whole)
	require.Equal(t, train, all, "a limit for the evaluation does not change the training")
	require.Subset(t, whole, eval)
	require.InDelta(t, 1.0/20, float64(len(whole))/float64(len(all)+len(whole)), 0.02)
}

// folder makes a folder with files of the given names.
func folder(t *testing.T, names ...string) string {
	dir := t.TempDir()
	for _, n := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), []byte("text of "+n), 0o600))
	}
	return dir
}

func TestUsersFilesSplit(t *testing.T) {
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "c", "d", "e"}} {
		dir := folder(t, names...)
		train, eval, err := listFiles(&DataArguments{TrainFile: []string{dir}})
		require.NoError(t, err)
		requireSplit(t, train, eval)
		require.Len(t, append(train, eval...), len(names))
	}
	_, _, err := listFiles(&DataArguments{TrainFile: []string{folder(t, "a")}})
	require.ErrorContains(t, err, "want --validation_file, or at least two training files")
}

// The split is of the files' names below the folder that they share, wherever it lies and
// however it is named.
func TestUsersFilesSplitAnywhere(t *testing.T) {
	var names []string
	for i := range 60 {
		names = append(names, fmt.Sprintf("file%d", i))
	}
	split := func(path string) (held []string) {
		_, eval, err := listFiles(&DataArguments{TrainFile: []string{path}})
		require.NoError(t, err)
		for _, f := range eval {
			held = append(held, filepath.Base(f))
		}
		return held
	}
	dir := folder(t, names...)
	want := split(dir)
	require.Greater(t, len(want), 1)
	require.Equal(t, want, split(folder(t, names...)))
	t.Chdir(dir)
	require.Equal(t, want, split("."))
	require.Equal(t, want, split(filepath.Join(dir, "file*")))
}

func TestCommonFolder(t *testing.T) {
	root := filepath.VolumeName(t.TempDir()) + string(filepath.Separator)
	path := func(names ...string) string { return root + filepath.Join(names...) }
	require.Equal(t, path("none", "a")+string(filepath.Separator), commonFolder([]string{path("none", "a", "x"), path("none", "a", "b", "y")}))
	require.Equal(t, path("none")+string(filepath.Separator), commonFolder([]string{path("none", "ab", "x"), path("none", "a", "y")}))
	require.Equal(t, root, commonFolder([]string{path("none", "x"), path("other")}))
}

func TestFilesOfBothSplitsAreRefused(t *testing.T) {
	dir := folder(t, "a", "b")
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Join(dir, "b"), link))
	t.Chdir(dir)
	for _, again := range []string{"b", filepath.Join(dir, "b"), dir, filepath.Join(dir, "..", filepath.Base(dir), "b"), link} {
		_, _, err := listFiles(&DataArguments{TrainFile: []string{"a", "b"}, ValidationFile: []string{again}})
		require.ErrorContains(t, err, "is both in train_file and in validation_file", again)
	}
	_, _, err := listFiles(&DataArguments{TrainFile: []string{"a"}, ValidationFile: []string{link}})
	require.NoError(t, err)
}
