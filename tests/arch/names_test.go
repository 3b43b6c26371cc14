// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// dotted is a name of two or three parts in a text, with or without brackets: data.Loader, Loader.Next,
// data.Loader.Next.
var dotted = regexp.MustCompile(`(?:^|[^\w.\-/"])((?:[a-z][a-z0-9]*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?)`)

// vocabulary is what comments may name.
type vocabulary struct {
	exported map[string]map[string]bool // by folder: X, and X.Y for fields and methods
	folders  map[string][]string        // of packages by name
	types    map[string]bool            // members X.Y of all packages
	embeds   map[string]bool            // types that have members of types they embed
}

func vocabularyOf(files []file) vocabulary {
	v := vocabulary{exports(files), map[string][]string{}, map[string]bool{}, map[string]bool{}}
	for _, f := range files {
		if f.test {
			continue
		}
		if name := f.ast.Name.Name; name != "main" && !slices.Contains(v.folders[name], f.dir) {
			v.folders[name] = append(v.folders[name], f.dir)
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if t, ok := n.(*ast.TypeSpec); ok && embeds(t.Type) {
				v.embeds[t.Name.Name] = true
			}
			return true
		})
	}
	for _, names := range v.exported {
		for name := range names {
			v.types[name] = true
		}
	}
	return v
}

// embeds reports whether a type has members that its declaration does not list.
func embeds(t ast.Expr) bool {
	switch t := t.(type) {
	case *ast.StructType:
		return slices.ContainsFunc(t.Fields.List, func(f *ast.Field) bool { return len(f.Names) == 0 })
	case *ast.InterfaceType:
		return slices.ContainsFunc(t.Methods.List, func(f *ast.Field) bool { return len(f.Names) == 0 })
	}
	return true // of another type, perhaps by an alias
}

// has reports whether a name exists, or is of something that this repository does not have.
func (v vocabulary) has(name string) bool {
	part := strings.Split(name, ".")
	if first := part[0]; first[0] >= 'a' && first[0] <= 'z' {
		in, known := v.folders[first]
		if !known || len(part) == 3 && v.embeds[part[1]] {
			return true
		}
		return slices.ContainsFunc(in, func(dir string) bool { return v.exported[dir][strings.Join(part[1:], ".")] })
	}
	return len(part) == 1 || !v.types[part[0]] || v.embeds[part[0]] || v.types[name]
}

// unknownNames lists names in comments that do not exist.
func unknownNames(files []file) (bad []string) {
	v := vocabularyOf(files)
	for _, f := range files {
		if f.test {
			continue
		}
		for _, g := range f.ast.Comments {
			for _, m := range dotted.FindAllStringSubmatch(g.Text(), -1) {
				if !v.has(m[1]) {
					bad = append(bad, fmt.Sprintf("%s: a comment names %s, which does not exist", f.line(g), m[1]))
				}
			}
		}
	}
	return bad
}

func TestCommentsNameWhatExists(t *testing.T) {
	files, err := tree()
	require.NoError(t, err)
	for _, fault := range unknownNames(files) {
		t.Error(fault)
	}
}

func TestCommentsNameWhatExistsBites(t *testing.T) {
	files := parsed(t, map[string]string{
		"a/a.go": "package a\n\ntype T struct{ N int }\n\ntype E struct{ T }\n\n" +
			"// F is like T.N, a.T.N, E.N, b.G, other.G, os.Args, T.M, a.H, a.T.M, b.T, x/b.T and b.T.go.\n" +
			"func F() {}\n",
		"b/b.go": "package b\n\n// G is like (T.M), [T.M] and T.\nfunc G() {}\n",
	})
	fault := func(at, name string) string { return at + ": a comment names " + name + ", which does not exist" }
	require.Equal(t, []string{fault("a/a.go:7", "T.M"), fault("a/a.go:7", "a.H"), fault("a/a.go:7", "a.T.M"),
		fault("a/a.go:7", "b.T"), fault("a/a.go:7", "b.T"), fault("b/b.go:3", "T.M"), fault("b/b.go:3", "T.M")},
		unknownNames(files))
}
