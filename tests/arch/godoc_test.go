// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/doc"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tests/internal/gonames"
)

// shown are the packages that have a runnable example of their most usual use.
var shown = []string{"accelerate", "args", "callbacks", "checkpoint", "data", "data/text", "data/tokenizers", "comm",
	"models",
	"models/mlp", "nn", "optim", "samplers", "tensor", "trainer"}

// introduction is how many words the first paragraph of a public package's comment has at least.
const introduction = 25

// public reports whether a file belongs to a package that programs import.
func public(f file) bool {
	return !f.test && f.ast.Name.Name != "main" && importable(f.dir)
}

// unintroduced reports comments that leave a newcomer alone: those of public packages that begin with less than a
// paragraph, and those of programs that do not begin with the program's name.
func unintroduced(f file) []string {
	text := f.ast.Doc.Text()
	first, _, _ := strings.Cut(text, "\n\n")
	switch n := len(strings.Fields(first)); {
	case text == "" || f.test:
	case f.ast.Name.Name == "main":
		if name := path.Base(f.dir); !strings.HasPrefix(text, strings.ToUpper(name[:1])+name[1:]+" ") {
			return []string{
				fmt.Sprintf("%s: the comment begins %.20q: want the program's name and what it does, \"%s%s does …\"",
					f.name, text, strings.ToUpper(name[:1]), name[1:])}
		}
	case public(f) && n < introduction:
		return []string{
			fmt.Sprintf("%s: the comment's first paragraph has %d words: want what the package is for, when to use "+
				"it and where "+
				"to start, in at least %d", f.name, n, introduction)}
	}
	return nil
}

func TestPackageCommentsIntroduce(t *testing.T) { requireNone(t, unintroduced) }

func TestPackageCommentsIntroduceBites(t *testing.T) {
	short := "// Package a has " + strings.Repeat("word ", introduction-4)
	const few = "a/a.go: the comment's first paragraph has 24 words: want what the package is for, when to use it " +
		"and where to start, in at least 25"
	requireBites(t, unintroduced, "a/a.go", short+"\n//\n// And more.\npackage a", few)
	requireBites(t, unintroduced, "a/a.go", short+"\n// and more.\npackage a", "")
	requireBites(t, unintroduced, "a/internal/a.go", short+"\npackage a", "")
	requireBites(t, unintroduced, "bench/a/a.go", short+"\npackage a", "")
	requireBites(t, unintroduced, "a/a.go", "package a", "")
	requireBites(t, unintroduced, "examples/run_it/a.go", "// Run_it runs.\npackage main", "")
	requireBites(t, unintroduced, "examples/run_it/a.go", "// Command run_it runs.\npackage main",
		`examples/run_it/a.go: the comment begins "Command run_it runs.": want the program's name and what it does, "Run_it does …"`)
}

// unshown lists the given folders whose tests have no example that runs, which is one with an output.
func unshown(files []file, dirs []string) []string {
	var bad []string
	for _, dir := range dirs {
		ran := false
		for _, f := range files {
			if f.test && f.dir == dir {
				ran = ran || slices.ContainsFunc(doc.Examples(f.ast), func(e *doc.Example) bool {
					return e.Output != ""
				})
			}
		}
		if !ran {
			bad = append(bad, dir+": no test file has an Example with an output")
		}
	}
	return bad
}

func TestPackagesHaveExamples(t *testing.T) {
	files, err := tree()
	require.NoError(t, err)
	require.Empty(t, unshown(files, shown))
}

func TestPackagesHaveExamplesBites(t *testing.T) {
	files := parsed(t, map[string]string{
		"a/a_test.go": "package a_test\n\nfunc Example() {\n\t// Output: 1\n}\n",
		"b/b_test.go": "package b_test\n\nfunc Example() {\n\t// no output, so it is compiled only\n}\n",
		"c/c.go":      "package c\n\nfunc Example() {\n\t// Output: 1\n}\n",
	})
	const fault = ": no test file has an Example with an output"
	require.Equal(t, []string{"b" + fault, "c" + fault, "d" + fault}, unshown(files, []string{"a", "b", "c", "d"}))
}

// exports maps each folder to what its package exports: "Name", and "Type.Member" for methods and fields.
func exports(files []file) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for _, f := range files {
		if f.test {
			continue
		}
		names := all[f.dir]
		if names == nil {
			names = map[string]bool{}
			all[f.dir] = names
		}
		gonames.Declared(names, f.ast)
	}
	return all
}

var (
	ownName   = regexp.MustCompile(`\[\*?([A-Z]\w+(?:\.[A-Z]\w*)?)\]`)
	otherName = regexp.MustCompile(`(\[\*?)?\b([a-z]\w*)\.([A-Z]\w*(?:\.[A-Z]\w*)?)`)
)

// misnamed lists names in package comments that do not exist, and links that go doc would not make because the package
// does not import the other one.
func misnamed(files []file) []string {
	exported, folders, imported := exports(files), map[string][]string{}, map[string]map[string]bool{}
	for _, f := range files {
		if !f.test && f.ast.Name.Name != "main" && !slices.Contains(folders[f.ast.Name.Name], f.dir) {
			folders[f.ast.Name.Name] = append(folders[f.ast.Name.Name], f.dir)
		}
		if imported[f.dir] == nil {
			imported[f.dir] = map[string]bool{}
		}
		if !f.test {
			for name := range f.importNames() {
				imported[f.dir][name] = true
			}
		}
	}
	var bad []string
	for _, f := range files {
		text := f.ast.Doc.Text()
		for _, m := range ownName.FindAllStringSubmatch(text, -1) {
			if !exported[f.dir][m[1]] {
				bad = append(bad, fmt.Sprintf("%s: the comment links to %s, which the package does not have", f.name,
					m[1]))
			}
		}
		for _, m := range otherName.FindAllStringSubmatch(text, -1) {
			in, known := folders[m[2]]
			switch {
			case !known:
			case !slices.ContainsFunc(in, func(dir string) bool { return exported[dir][m[3]] }):
				bad = append(bad, fmt.Sprintf("%s: the comment names %s.%s, which does not exist", f.name, m[2], m[3]))
			case m[1] != "" && !imported[f.dir][m[2]]:
				bad = append(bad,
					fmt.Sprintf("%s: the comment links to %s.%s, but the package does not import %s: leave the "+
						"brackets out",
						f.name, m[2], m[3], m[2]))
			}
		}
	}
	slices.Sort(bad)
	return bad
}

func TestPackageCommentsNameWhatExists(t *testing.T) {
	files, err := tree()
	require.NoError(t, err)
	require.Empty(t, misnamed(files))
}

func TestPackageCommentsNameWhatExistsBites(t *testing.T) {
	files := parsed(t, map[string]string{
		"a/a.go": "// Package a has [New], [Thing.Do], [*Thing], [Thing.Size], [Able.Do], [Limit], tensors [B,T], " +
			"and\n" +
			"// [Gone], [Thing.Gone], b.New, [b.New], b.Gone and os.Args.\npackage a\n" +
			"func New() {}\ntype Thing struct{ Size int }\nfunc (t *Thing) Do() {}\ntype Able interface{ Do() " +
			"}\nconst Limit = 1",
		"b/b.go": "// Package b has [New], unlike [a.New] and a.New.\npackage b\nimport \"" + module +
			"/a\"\nfunc New() { a.New() }",
		"b/b_test.go": "package b_test\nfunc Gone() {}",
	})
	require.Equal(t, []string{
		"a/a.go: the comment links to Gone, which the package does not have",
		"a/a.go: the comment links to Thing.Gone, which the package does not have",
		"a/a.go: the comment links to b.New, but the package does not import b: leave the brackets out",
		"a/a.go: the comment names b.Gone, which does not exist",
	}, misnamed(files))
}

// parsed are made-up files, in the order of their names.
func parsed(t *testing.T, sources map[string]string) []file {
	t.Helper()
	var files []file
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		f, err := parse(name, sources[name])
		require.NoError(t, err)
		files = append(files, f)
	}
	return files
}
