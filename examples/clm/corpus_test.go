package main

import (
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
