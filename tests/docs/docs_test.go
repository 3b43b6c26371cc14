// SPDX-License-Identifier: Apache-2.0

// Package docs checks that what the documents say of the code is there: programs, paths,
// names, the lattice and the dependencies.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	_ "github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/tests/internal/gonames"
	_ "github.com/lockstep-ml/lockstep/trainer"
)

const root = "../.."

// documents are the Markdown files that are checked.
func documents(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*.md", "examples/*/*.md", "tests/*/*.md",
		"bench/*.md", "bench/*/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, name := range names {
			rel, err := filepath.Rel(root, name)
			require.NoError(t, err)
			out[filepath.ToSlash(rel)] = read(t, rel)
		}
	}
	require.NotEmpty(t, out["README.md"])
	require.NotEmpty(t, out["docs/ARCHITECTURE.md"])
	return out
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// TestReadmeProgram: the program in the README is examples/quickstart, without its license line.
func TestReadmeProgram(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "README.md"), "```go\n")
	require.True(t, ok)
	program, _, ok := strings.Cut(rest, "```\n")
	require.True(t, ok)
	require.Equal(t, strings.TrimPrefix(read(t, "examples/quickstart/main.go"),
		"// SPDX-License-Identifier: Apache-2.0\n\n"), program)
}

// TestReadmeOutput: the program prints what the README shows.
func TestReadmeOutput(t *testing.T) {
	// an input of this test for go test's cache, as are the packages imported above
	read(t, "examples/quickstart/main.go")
	program := filepath.Join(t.TempDir(), "quickstart.exe")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "./examples/quickstart")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := exec.Command(program)
	run.Dir = t.TempDir()
	out, err = run.Output()
	require.NoError(t, err)
	require.Regexp(t, `^y = 1\.9\dx \+ 2\.9\d after 160 steps`, string(out))
	require.Contains(t, read(t, "README.md"), "\n    "+string(out))
}

// TestExamplesAreListed: the tables of examples have a row for every program, and for nothing else.
func TestExamplesAreListed(t *testing.T) {
	for _, dir := range []string{"examples", "examples/by_feature"} {
		programs, err := filepath.Glob(filepath.Join(root, dir, "*", "main.go"))
		require.NoError(t, err)
		var want, got []string
		for _, p := range programs {
			want = append(want, filepath.Base(filepath.Dir(p)))
		}
		require.NotEmpty(t, want)
		for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(read(t, dir+"/README.md"),
			-1) {
			got = append(got, m[1])
		}
		require.ElementsMatch(t, want, got, dir)
	}
}

// TestSnippets: a block of code that names a file is a part of that file, unless the file is new.
func TestSnippets(t *testing.T) {
	checked := 0
	for name, text := range documents(t) {
		for _, b := range blocks(text) {
			if kind, file, ok := strings.Cut(b.kind, " "); ok && kind == "go" && !strings.HasPrefix(file, "new ") {
				require.Contains(t, read(t, file), strings.Join(b.lines, "\n")+"\n", "%s shows what %s does not have",
					name, file)
				checked++
			}
		}
	}
	require.Greater(t, checked, 3)
}

// unnamed lists the blocks of a document that show a file without its path in the line above: what stands behind the
// fence is not shown to readers.
func unnamed(text string) (list []string) {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		kind, file, ok := strings.Cut(strings.TrimPrefix(line, "```"), " ")
		if !ok || !strings.HasPrefix(line, "```") || kind == "sh" {
			continue
		}
		file = strings.TrimPrefix(file, "new ")
		above := i - 1
		for above > 0 && lines[above] == "" {
			above--
		}
		if above < 0 || !strings.Contains(lines[above], "`"+file+"`") {
			list = append(list, file)
		}
	}
	return list
}

// TestSnippetsAreNamed: the path of a file stands above the block that shows it.
func TestSnippetsAreNamed(t *testing.T) {
	for name, text := range documents(t) {
		require.Empty(t, unnamed(text), "%s: blocks without the file's path above them", name)
	}
	require.Equal(t, []string{"a/b.go", "c.yaml"}, unnamed("```go a/b.go\n```\n`a.go`:\n\n```go new a.go\n```\n"+
		"```sh hosts\n```\n```text\n```\nc.yaml\n```yaml c.yaml\n```\n"))
}

var address = regexp.MustCompile(`https?://\S+`)

// long lists the lines of a document that have more than 120 columns. Tables, code and web addresses do not count.
func long(text string) (out []int) {
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced || strings.HasPrefix(line, "    ") || strings.HasPrefix(strings.TrimSpace(line), "|") {
			continue
		}
		if utf8.RuneCountInString(address.ReplaceAllString(line, "")) > 120 {
			out = append(out, i+1)
		}
	}
	return out
}

// TestLines: the lines of documents have at most 120 columns.
func TestLines(t *testing.T) {
	for name, text := range documents(t) {
		require.Empty(t, long(text), "%s: wrap these lines at 120 columns", name)
	}
}

func TestLinesBites(t *testing.T) {
	word := strings.Repeat("x", 121)
	require.Equal(t, []int{2, 9}, long("short\n"+word+"\n```\n"+word+"\n```\n| "+word+" |\n\n    "+word+"\n- "+word[2:]+
		"\n"+
		strings.Repeat("é", 120)+"\nsee https://example.com/"+word))
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// TestLinks: every relative link leads to a file or folder.
func TestLinks(t *testing.T) {
	for name, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			if !strings.Contains(m[1], "://") {
				_, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1]))
				require.NoError(t, err, "%s links to %s", name, m[1])
			}
		}
	}
}

var (
	fence = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	code  = regexp.MustCompile("(?ms)^ *```.*?^ *```|^    [^\n]*") // also what is indented
	span  = regexp.MustCompile("`([^`\n]+)`")
	aPath = regexp.MustCompile(`^[\w.-]+(/[\w.*-]+)+/?$`)
	aName = regexp.MustCompile(`(?:^|[^\w./-])([a-z][a-z0-9]*)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
)

// spans are the pieces of code inside the sentences of a document.
func spans(text string) (out []string) {
	for _, m := range span.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		out = append(out, m[1])
	}
	return out
}

// TestPaths: a path that begins with one of the repository's folders exists, or is a new file that the document shows.
func TestPaths(t *testing.T) {
	checked := 0
	for name, text := range documents(t) {
		shown := map[string]bool{}
		for _, b := range blocks(text) {
			if file, ok := strings.CutPrefix(b.kind, "go new "); ok {
				shown[file] = true
			}
		}
		for _, s := range spans(text) {
			top, _, _ := strings.Cut(s, "/")
			if shown[s] {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, top)); err != nil || !aPath.MatchString(s) || top == "out" {
				continue
			}
			found, err := filepath.Glob(filepath.Join(root, s))
			require.NoError(t, err)
			require.NotEmpty(t, found, "%s names %s, which does not exist", name, s)
			checked++
		}
	}
	require.Greater(t, checked, 50)
}

// exported maps package names to what they export: X, and X.Y for fields and methods. A
// package name that several folders share stands for all of them.
func exported(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != root && (d.Name() == "testdata" || d.Name()[0] == '.' || d.Name()[0] == '_') {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, 0)
		if err != nil {
			return err
		}
		if out[f.Name.Name] == nil {
			out[f.Name.Name] = map[string]bool{}
		}
		gonames.Declared(out[f.Name.Name], f)
		return nil
	})
	require.NoError(t, err)
	return out
}

// TestNames: a name of one of the repository's packages exists in it, between backticks or not. Blocks of code have
// their own names, and are compiled elsewhere.
func TestNames(t *testing.T) {
	packages, checked := exported(t), 0
	for name, text := range documents(t) {
		for _, m := range aName.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if packages[m[1]] == nil {
				continue
			}
			ident := m[2]
			if m[3] != "" {
				ident += "." + m[3]
			}
			if !packages[m[1]][ident] {
				t.Errorf("%s names %s.%s, which package %s does not have", name, m[1], ident, m[1])
			}
			checked++
		}
	}
	require.Greater(t, checked, 300)
}

// TestTree: ARCHITECTURE.md lists the folders of two levels that have Go code, and no others. Benchmarks and examples
// are listed as a whole.
func TestTree(t *testing.T) {
	_, section, ok := strings.Cut(read(t, "docs/ARCHITECTURE.md"), "\n## The tree\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[string]bool{}
	for _, name := range spans(section) {
		listed[strings.TrimSuffix(name, "/")] = true
	}
	checked := map[string]bool{}
	for _, pattern := range []string{"*/*/*.go", "*/*/*/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, file := range files {
			rel, err := filepath.Rel(root, file)
			require.NoError(t, err)
			parts := strings.Split(filepath.ToSlash(rel), "/")
			if parts[0] == "bench" || parts[0] == "examples" || parts[1] == "testdata" {
				continue
			}
			folder := parts[0] + "/" + parts[1]
			checked[folder] = true
			require.True(t, listed[folder], "%s is not in the tree of docs/ARCHITECTURE.md", folder)
		}
	}
	require.Greater(t, len(checked), 80)
	for name := range listed {
		if top, _, _ := strings.Cut(name, "/"); top != name && !strings.Contains(name, ".") {
			require.DirExists(t, filepath.Join(root, filepath.FromSlash(name)))
		}
	}
}

var row = regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| (.*) \\|$")

// TestLattice: the table in ARCHITECTURE.md is the one that tests/arch holds.
func TestLattice(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "tests/arch/lattice_test.go"), nil, 0)
	require.NoError(t, err)
	want := map[string][]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || v.Names[0].Name != "lattice" {
			return true
		}
		for _, e := range v.Values[0].(*ast.CompositeLit).Elts {
			kv := e.(*ast.KeyValueExpr)
			to := []string{}
			for _, x := range kv.Value.(*ast.CompositeLit).Elts {
				to = append(to, value(x))
			}
			want[value(kv.Key)] = to
		}
		return false
	})
	require.NotEmpty(t, want)

	_, section, ok := strings.Cut(read(t, "docs/ARCHITECTURE.md"), "\n## Who may import whom\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	got := map[string][]string{}
	for _, m := range row.FindAllStringSubmatch(section, -1) {
		got[m[1]] = spans(m[2])
	}
	for folder := range want {
		require.ElementsMatch(t, want[folder], got[folder], folder)
	}
	require.Len(t, got, len(want))
}

// value is a string literal's text; a constant stands for "*".
func value(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		return "*"
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return fmt.Sprint(err)
	}
	return s
}

var required = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`)

// TestDependencies: docs/dependencies.md has a line for each direct dependency, and for
// nothing else.
func TestDependencies(t *testing.T) {
	var want []string
	for _, m := range required.FindAllStringSubmatch(read(t, "go.mod"), -1) {
		want = append(want, m[1])
	}
	require.NotEmpty(t, want)
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(read(t,
		"docs/dependencies.md"), -1) {
		got = append(got, m[1])
	}
	slices.Sort(got)
	slices.Sort(want)
	require.Equal(t, want, got)
}
