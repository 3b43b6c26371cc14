// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"slices"
	"testing"
)

// largest are the types with more methods than any helper needs.
var largest = []string{"Accelerator", "Ranks", "Trainer"}

// wholeArguments reports exported functions that take one of largest where an interface, or a method, would do.
func wholeArguments(f file) (bad []string) {
	if f.test || slices.Contains(lattice[topOf(f.dir)], anything) {
		return nil
	}
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !fn.Name.IsExported() {
			continue
		}
		for _, p := range fn.Type.Params.List {
			star, ok := p.Type.(*ast.StarExpr)
			if !ok {
				continue
			}
			name, _ := star.X.(*ast.Ident)
			if s, ok := star.X.(*ast.SelectorExpr); ok {
				name = s.Sel
			}
			if name != nil && slices.Contains(largest, name.Name) {
				bad = append(bad, fmt.Sprintf("%s: %s takes a *%s: want an interface of at most %d methods, or a "+
					"method", f.line(fn), fn.Name, name.Name, widest))
			}
		}
	}
	return bad
}

func TestExportedHelpersTakeSmallInterfaces(t *testing.T) {
	requireNone(t, wholeArguments)
	const fault = "accelerate/a.go:1: F takes a *Accelerator: want an interface of at most 5 methods, or a method"
	requireBites(t, wholeArguments, "accelerate/a.go", "package a; func F[T any](a *Accelerator, v T) {}", fault)
	requireBites(t, wholeArguments, "accelerate/a.go", "package a; func F(a, b *accelerate.Accelerator) {}", fault)
	requireBites(t, wholeArguments, "accelerate/a.go", "package a; func f(a *Accelerator) {}", "")
	requireBites(t, wholeArguments, "accelerate/a.go", "package a; func (a *Accelerator) F(b *T) {}", "")
	requireBites(t, wholeArguments, "examples/a.go", "package a; func F(a *Accelerator) {}", "")
}
