// SPDX-License-Identifier: Apache-2.0

// Package arch holds what the architecture promises as data and checks every Go file of
// the main module against it: who imports whom, that modules run inside Units, how
// packages are named and documented, that libraries neither print nor exit, and that
// programs are static. The files are parsed; a list made by the go command would be
// served stale from the test cache.
package arch

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// file is one parsed Go file.
type file struct {
	name string // with slashes, from the module's root
	dir  string // of name; "." at the root
	test bool
	set  *token.FileSet
	ast  *ast.File

	source []byte
}

func parse(name string, source any) (file, error) {
	f := file{name: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), set: token.NewFileSet()}
	at, err := name, error(nil)
	if text, ok := source.(string); ok {
		f.source = []byte(text)
	} else {
		at = filepath.Join(root, filepath.FromSlash(name))
		if f.source, err = os.ReadFile(at); err != nil {
			return f, err
		}
	}
	f.ast, err = parser.ParseFile(f.set, at, f.source, parser.ParseComments)
	return f, err
}

// imports lists the import paths.
func (f file) imports() []string {
	var paths []string
	for _, s := range f.ast.Imports {
		if p, err := strconv.Unquote(s.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// importNames maps the names under which the file knows packages to their paths.
func (f file) importNames() map[string]string {
	names := map[string]string{}
	for _, s := range f.ast.Imports {
		p, err := strconv.Unquote(s.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(p)
		if s.Name != nil {
			name = s.Name.Name
		}
		names[name] = p
	}
	return names
}

// line is where a node begins, as "file:line".
func (f file) line(n ast.Node) string {
	return f.name + ":" + strconv.Itoa(f.set.Position(n.Pos()).Line)
}

// constrained reports whether a build constraint stands above the package clause.
func (f file) constrained() bool {
	for _, g := range f.ast.Comments {
		for _, c := range g.List {
			if c.Pos() < f.ast.Package && constraint.IsGoBuild(c.Text) {
				return true
			}
		}
	}
	return false
}

// tree is every Go file of the main module and of bench: other folders with their own go.mod, testdata and those that
// the go command passes over are left out.
var tree = sync.OnceValues(func() ([]file, error) {
	var files []file
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			return passOver(p, name, d.Name())
		}
		if !strings.HasSuffix(name, ".go") || strings.HasPrefix(d.Name(), "_") || strings.HasPrefix(d.Name(), ".") {
			return nil
		}
		f, err := parse(name, nil)
		files = append(files, f)
		return err
	})
	return files, err
})

func passOver(p, name, base string) error {
	if name == "." {
		return nil
	}
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && name != "bench" {
		return filepath.SkipDir
	}
	return nil
}

// rule reports what is wrong with a file, one clear sentence for each fault.
type rule func(f file) []string

// requireNone fails with every fault that the rule finds in the module.
func requireNone(t *testing.T, r rule) {
	t.Helper()
	files, err := tree()
	require.NoError(t, err)
	require.Greater(t, len(files), 100, "the walk lost the module")
	for _, f := range files {
		for _, fault := range r(f) {
			t.Error(fault)
		}
	}
}

// requireBites checks that the rule finds the one fault of a made-up file, or none if
// want is empty.
func requireBites(t *testing.T, r rule, name, source, want string) {
	t.Helper()
	f, err := parse(name, source)
	require.NoError(t, err, source)
	if want == "" {
		require.Empty(t, r(f), source)
		return
	}
	require.Equal(t, []string{want}, r(f), source)
}
