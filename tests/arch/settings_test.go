// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// A setting that nothing reads is a promise that nothing keeps: each field of TrainingArguments is read outside package
// args, by itself or through a method that reads it.
func TestEverySettingIsRead(t *testing.T) {
	const root = "../.."
	fields := map[string]bool{}
	for f := range reflect.TypeFor[args.TrainingArguments]().Fields() {
		fields[f.Name] = true
	}
	through := map[string]map[string]bool{} // by function and variable of package args, what it reads
	for _, f := range syntax(t, filepath.Join(root, "args")) {
		for _, d := range f.Decls {
			through = declared(d, through)
		}
	}
	read := map[string]bool{}
	for _, dir := range []string{"trainer", "accelerate", "callbacks", "integrations", "cmd", "examples"} {
		for _, f := range syntax(t, filepath.Join(root, dir)) {
			reads(f, read)
		}
	}
	for grown := true; grown; {
		grown = false
		for method, names := range through {
			for name := range names {
				if read[method] && names[name] && !read[name] && (fields[name] || through[name] != nil) {
					read[name], grown = true, true
				}
			}
		}
	}
	for name := range fields {
		require.True(t, read[name], "args.TrainingArguments.%s is read by no package but args", name)
	}
}

// declared adds what a declaration reads. Checks and copies do not count: they use no setting.
func declared(d ast.Decl, through map[string]map[string]bool) map[string]map[string]bool {
	add := func(name string, n ast.Node) {
		for _, prefix := range []string{"check", "Check", "Validate", "Clone", "Default"} {
			if strings.HasPrefix(name, prefix) {
				return
			}
		}
		if through[name] == nil {
			through[name] = map[string]bool{}
		}
		reads(n, through[name])
		ast.Inspect(n, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				through[name][id.Name] = through[name][id.Name] || id.Obj == nil && ast.IsExported(id.Name) == false
			}
			return true
		})
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Body != nil {
			add(d.Name.Name, d.Body)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				for _, name := range v.Names {
					add(name.Name, v)
				}
			}
		}
	}
	return through
}

// syntax has the files of a folder and those below it, without tests.
func syntax(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		files = append(files, f)
		return err
	})
	require.NoError(t, err)
	return files
}

// reads notes the names behind a dot that are not assigned to.
func reads(n ast.Node, names map[string]bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if s, ok := left.(*ast.SelectorExpr); ok {
					reads(s.X, names)
				} else {
					reads(left, names)
				}
			}
			for _, right := range n.Rhs {
				reads(right, names)
			}
			return false
		case *ast.SelectorExpr:
			names[n.Sel.Name] = true
		}
		return true
	})
}
