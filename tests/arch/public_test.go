// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// importable reports whether a folder's package is part of the API, which programs outside of the module import.
func importable(dir string) bool {
	return !slices.Contains(programs, topOf(dir)) && !slices.Contains(strings.Split(dir, "/"), "internal")
}

// hidden finds the types of internal/ that users of a package meet and cannot name: in the signatures of its functions
// and methods, in its exported fields, variables and constants. A type that a public package gives a name (type DType =
// dtype.DType) can be named, and what its own methods and fields show is looked at too.
type hidden struct {
	named map[*types.TypeName]bool // types of internal/ that have a public name
	seen  map[types.Type]bool
	found map[string]bool
}

// inspect returns what a set of public packages shows of internal types, sorted.
func inspect(packages []*types.Package) []string {
	h := hidden{named: map[*types.TypeName]bool{}, seen: map[types.Type]bool{}, found: map[string]bool{}}
	each(packages, func(o types.Object) {
		if n, ok := o.(*types.TypeName); ok && n.IsAlias() {
			if t, ok := types.Unalias(n.Type()).(*types.Named); ok {
				h.named[t.Obj()] = true
			}
		}
	})
	each(packages, func(o types.Object) {
		at := o.Pkg().Path()[len(module)+1:] + "." + o.Name()
		if n, ok := o.(*types.TypeName); ok {
			h.members(at, n.Type())
			return
		}
		h.check(at, o.Type())
	})
	var list []string
	for fault := range h.found {
		list = append(list, fault)
	}
	slices.Sort(list)
	return list
}

// each visits what the packages export.
func each(packages []*types.Package, visit func(o types.Object)) {
	for _, p := range packages {
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				visit(o)
			}
		}
	}
}

// members checks the methods, the exported fields and the underlying type of a type that has a public name.
func (h *hidden) members(at string, t types.Type) {
	t = types.Unalias(t)
	if h.seen[t] {
		return
	}
	h.seen[t] = true
	named, ok := t.(*types.Named)
	if !ok {
		h.check(at, t)
		return
	}
	for m := range types.NewMethodSet(types.NewPointer(named)).Methods() { // with those of embedded fields
		if m.Obj().Exported() {
			h.check(at+"."+m.Obj().Name(), m.Obj().Type())
		}
	}
	for p := range named.TypeParams().TypeParams() {
		h.check(at, p.Constraint())
	}
	h.check(at, named.Underlying())
}

// check looks for hidden types in what a signature or a field is made of.
func (h *hidden) check(at string, t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		h.check(at, types.Unalias(t))
	case *types.Named:
		h.name(at, t)
	case *types.Pointer:
		h.check(at, t.Elem())
	case *types.Slice:
		h.check(at, t.Elem())
	case *types.Array:
		h.check(at, t.Elem())
	case *types.Chan:
		h.check(at, t.Elem())
	case *types.Map:
		h.check(at, t.Key())
		h.check(at, t.Elem())
	case *types.Tuple:
		for v := range t.Variables() {
			h.check(at, v.Type())
		}
	case *types.Signature:
		for p := range t.TypeParams().TypeParams() {
			h.check(at, p.Constraint())
		}
		h.check(at, t.Params())
		h.check(at, t.Results())
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				h.check(at+"."+f.Name(), f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				h.check(at+"."+m.Name(), m.Type())
			}
		}
		for e := range t.EmbeddedTypes() {
			if _, ok := e.(*types.Union); ok {
				h.check(at, e)
			}
		}
	case *types.Union:
		for term := range t.Terms() {
			h.check(at, term.Type())
		}
	}
}

func (h *hidden) name(at string, t *types.Named) {
	for a := range t.TypeArgs().Types() {
		h.check(at, a)
	}
	pkg := t.Obj().Pkg()
	if pkg == nil || !strings.HasPrefix(pkg.Path(), module+"/") {
		return
	}
	dir := pkg.Path()[len(module)+1:]
	switch {
	case importable(dir):
	case h.named[t.Obj()]:
		h.members(dir+"."+t.Obj().Name(), t)
	default:
		h.found[fmt.Sprintf("%s shows %s.%s, which no program outside of the module can name", at, dir,
			t.Obj().Name())] = true
	}
}

// publicPackages are the packages of the API with their types, from the compiler's export data.
func publicPackages(t *testing.T) []*types.Package {
	t.Helper()
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Name}}\t{{.Export}}", "./...")
	list.Dir, list.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	list.Stderr = &stderr
	out, err := list.Output()
	require.NoError(t, err, "%s", stderr.String())
	files := map[string]string{}
	var paths []string
	for line := range strings.Lines(string(out)) {
		part := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, part, 3, line)
		files[part[0]] = part[2]
		dir, own := strings.CutPrefix(part[0], module+"/")
		if own && part[1] != "main" && importable(dir) && part[2] != "" {
			paths = append(paths, part[0])
		}
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(filepath.FromSlash(files[path]))
	})
	var packages []*types.Package
	for _, path := range paths {
		p, err := from.Import(path)
		require.NoError(t, err, path)
		packages = append(packages, p)
	}
	return packages
}

// TestPublicFunctionsTakePublicTypes: no exported signature, field or variable of the API has a type of internal/ that
// has no public name.
func TestPublicFunctionsTakePublicTypes(t *testing.T) {
	_, err := tree() // the files are inputs of this test for go test's cache
	require.NoError(t, err)
	packages := publicPackages(t)
	require.Greater(t, len(packages), 40, "the list lost the module")
	for _, fault := range inspect(packages) {
		t.Error(fault)
	}
}

func TestPublicFunctionsTakePublicTypesBites(t *testing.T) {
	const hidden = module + "/internal/a"
	set := token.NewFileSet()
	known := packages{}
	add := func(path, source string) *types.Package {
		f, err := parser.ParseFile(set, path+".go", source, 0)
		require.NoError(t, err, source)
		p, err := (&types.Config{Importer: known}).Check(path, set, []*ast.File{f}, nil)
		require.NoError(t, err, source)
		known[path] = p
		return p
	}
	add(hidden, `package a; type T struct{ N U }; type U int; func (T) M() U { return 0 }; type I interface{ F(T) }`)
	shown := func(at, name string) string {
		return at + " shows internal/a." + name + ", which no program outside of the module can name"
	}
	for _, c := range []struct {
		source string
		want   []string
	}{
		{`func F(a.T) {}`, []string{shown("p.F", "T")}},
		{`func F() (int, []map[string]*a.T) { return 0, nil }`, []string{shown("p.F", "T")}},
		{`func f(a.T) {}; type s struct{ T a.T }; type S struct{ t a.T }; func (S) m(a.T) {}`, nil},
		{`type S struct{ T func(a.T) }`, []string{shown("p.S.T", "T")}},
		{`type S struct{}; func (*S) M(a.U) {}`, []string{shown("p.S.M", "U")}},
		{`type s struct{}; func (*s) M(a.U) {}; type S struct{ s }`, []string{shown("p.S.M", "U")}},
		{`type I interface{ F() a.U; f() a.U }`, []string{shown("p.I.F", "U")}},
		{`type E interface{ int | a.U }`, []string{shown("p.E", "U")}},
		{`func F[X a.I](X) {}`, []string{shown("p.F", "I")}},
		{`var V = a.U(1)`, []string{shown("p.V", "U")}},
		{`type U = a.U; func F(U) a.U { return 0 }`, nil},
		{`type T = a.T`, []string{shown("p.T.M", "U"), shown("p.T.N", "U")}},
	} {
		delete(known, module+"/p")
		p := add(module+"/p", `package p; import "`+hidden+`"; var _ a.T; `+c.source)
		require.Equal(t, c.want, inspect([]*types.Package{p}), c.source)
	}
}

// packages imports what was checked before.
type packages map[string]*types.Package

func (p packages) Import(path string) (*types.Package, error) { return p[path], nil }
