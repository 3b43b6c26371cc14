// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/text"
)

// requireSplit checks that no file is in both splits, and that neither is empty.
func requireSplit(t *testing.T, train, eval []string) {
	require.NotEmpty(t, train)
	require.NotEmpty(t, eval)
	require.NoError(t, requireDisjoint(train, eval))
}

func TestGoSourceSplits(t *testing.T) {
	d := newSettings().data
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

// The text of the demonstration is functions: whole, without comments, and of packages that programs import.
func TestFunctions(t *testing.T) {
	d := newSettings().data
	c, err := readCorpus(nil, d, false, true)
	require.NoError(t, err)
	require.Empty(t, c.train)
	require.Greater(t, len(c.eval), 200)
	for _, doc := range c.eval {
		require.True(t, strings.HasPrefix(doc.Text, "func "), doc.Text)
		require.True(t, strings.HasSuffix(doc.Text, "}\n"), doc.Text)
		require.NotContains(t, filepath.ToSlash(doc.Path), "/internal/")
		require.NotContains(t, filepath.ToSlash(doc.Path), "/runtime/")
	}

	file := filepath.Join(t.TempDir(), "a.go")
	require.NoError(t,
		os.WriteFile(file,
			[]byte("package a\n\n// F is.\nfunc F() int {\n\treturn 1 // one\n}\nfunc asm()\nvar x = 1\nfunc (T) "+
				"M() {}\n"), 0o600))
	docs, err := readFunctions(nil, []string{file})
	require.NoError(t, err)
	require.Equal(t, []text.Document{{Path: file, Line: 4, Text: "func F() int {\n\treturn 1\n}\n"},
		{Path: file, Line: 9, Text: "func (T) M() {}\n"}}, docs)

	require.NoError(t, os.WriteFile(file, []byte("package a\nfunc {"), 0o600))
	_, err = readFunctions(nil, []string{file})
	require.ErrorContains(t, err, "a.go:2")
}

// Limits of blocks hold, and what the figures per byte are of is what is evaluated on.
func TestMaxSamples(t *testing.T) {
	c := &corpus{train: []text.Document{{Text: strings.Repeat("some words. ", 40)}},
		eval: []text.Document{{Text: "one"}, {Text: strings.Repeat("two ", 40)}}}
	tok, err := c.trainTokenizer(t.Context(), nil, 257)
	require.NoError(t, err)
	train, eval, err := c.blocks(t.Context(), nil, tok, 8,
		&DataArguments{MaxTrainSamples: new(3), MaxEvalSamples: new(2)})
	require.NoError(t, err)
	require.Equal(t, []int{3, 2}, []int{int(train.Len()), int(eval.Len())})
	require.Equal(t, []text.Document{{Text: "one"}, {Text: "two two tw"}}, c.eval,
		"14 tokens are predicted, one of which ends a text")

	_, eval, err = c.blocks(t.Context(), nil, tok, 8, &DataArguments{MaxEvalSamples: new(300)})
	require.NoError(t, err)
	require.EqualValues(t, 3, eval.Len(), "15 tokens and an end: the last block is short")
	require.Len(t, c.eval, 2)
}

// folder makes a folder with files of the given names.
func folder(t *testing.T, names ...string) string {
	dir := t.TempDir()
	for _, n := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), []byte("text of "+n), 0o600))
	}
	return dir
}

// held is what readCorpus holds out of a user's files.
func held(t *testing.T, d *DataArguments) (train, eval []text.Document) {
	t.Helper()
	d.ValidationSplitPercentage = max(d.ValidationSplitPercentage, 5)
	c, err := readCorpus(nil, d, true, true)
	require.NoError(t, err)
	require.NotEmpty(t, c.train)
	require.NotEmpty(t, c.eval)
	return c.train, c.eval
}

func TestUsersFilesSplit(t *testing.T) {
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "c", "d", "e"}} {
		train, eval := held(t, &DataArguments{TrainFile: []string{folder(t, names...)}})
		require.Len(t, append(train, eval...), len(names))
		for _, d := range eval {
			require.NotContains(t, train, d)
		}
	}
}

func TestOneFileSplits(t *testing.T) {
	write := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	var whole, lines strings.Builder
	for i := range 200 {
		fmt.Fprintf(&whole, "line %d\n", i)
		fmt.Fprintf(&lines, "{\"text\":\"line %d\"}\n", i)
	}
	train,
		eval := held(t, &DataArguments{TrainFile: []string{write("a.txt", whole.String())},
		ValidationSplitPercentage: 10})
	require.Equal(t, whole.String(), train[0].Text+eval[0].Text, "nothing is lost, and nothing is in both")
	require.True(t, strings.HasPrefix(eval[0].Text, "line 1"), "lines are whole")
	require.InDelta(t, 0.1, float64(len(eval[0].Text))/float64(whole.Len()), 0.01)

	train,
		eval = held(t, &DataArguments{TrainFile: []string{write("a.jsonl", lines.String())},
		ValidationSplitPercentage: 10})
	require.Len(t, train, 180)
	require.Equal(t, "line 180", eval[0].Text)

	train,
		eval = held(t, &DataArguments{TrainFile: []string{write("a.txt", "words in a line")},
		ValidationSplitPercentage: 35})
	require.Equal(t, []string{"words in ", "a line"}, []string{train[0].Text, eval[0].Text})
	train,
		eval = held(t, &DataArguments{TrainFile: []string{write("a.txt", "一二三四五六七八九十")}, ValidationSplitPercentage: 40})
	require.Equal(t, []string{"一二三四五六", "七八九十"}, []string{train[0].Text, eval[0].Text})

	d := &DataArguments{TrainFile: []string{write("a.txt", "one line")}, ValidationSplitPercentage: 5}
	_, err := readCorpus(nil, d, true, true)
	require.ErrorContains(t, err, "too short")
	c, err := readCorpus(nil, d, true, false)
	require.NoError(t, err, "who does not evaluate needs nothing to evaluate on")
	require.Len(t, c.train, 1)
	require.Empty(t, c.eval)
}

// The share is of so many percent, whatever the percentage.
func TestShareOfFiles(t *testing.T) {
	var files []string
	for i := range 1000 {
		files = append(files, filepath.Join("folder", fmt.Sprintf("file%d", i)))
	}
	for _, percent := range []int{1, 5, 30, 60, 99} {
		require.InDelta(t, float64(percent)/100, float64(len(holdOutFiles(files, percent)))/1000, 0.05, percent)
	}
}

// The split is of the files' names below the folder that they share, wherever it lies and
// however it is named.
func TestUsersFilesSplitAnywhere(t *testing.T) {
	var names []string
	for i := range 60 {
		names = append(names, fmt.Sprintf("file%d", i))
	}
	split := func(path string) (list []string) {
		_, eval := held(t, &DataArguments{TrainFile: []string{path}})
		for _, d := range eval {
			list = append(list, filepath.Base(d.Path))
		}
		return list
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
	require.Equal(t, path("none", "a")+string(filepath.Separator),
		commonFolder([]string{path("none", "a", "x"), path("none", "a", "b", "y")}))
	require.Equal(t, path("none")+string(filepath.Separator),
		commonFolder([]string{path("none", "ab", "x"), path("none", "a", "y")}))
	require.Equal(t, root, commonFolder([]string{path("none", "x"), path("other")}))
}

func TestFilesOfBothSplitsAreRefused(t *testing.T) {
	dir := folder(t, "a", "b")
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Join(dir, "b"), link))
	t.Chdir(dir)
	for _, again := range []string{"b", filepath.Join(dir, "b"), dir, filepath.Join(dir, "..", filepath.Base(dir), "b"),
		link} {
		_, _, err := listFiles(&DataArguments{TrainFile: []string{"a", "b"}, ValidationFile: []string{again}})
		require.ErrorContains(t, err, "is both in train_file and in validation_file", again)
	}
	_, _, err := listFiles(&DataArguments{TrainFile: []string{"a"}, ValidationFile: []string{link}})
	require.NoError(t, err)
}
