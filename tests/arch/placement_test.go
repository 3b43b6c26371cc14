// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// ownPlacements reports types with fields, and exported functions with parameters, that are the borders of a range of
// elements by themselves: lo and hi.
func ownPlacements(f file) (bad []string) {
	placing := []string{"accelerate", "checkpoint", "models", "trainer"}
	if f.test || f.dir != "internal/safetensors" && !slices.Contains(placing, topOf(f.dir)) {
		return nil
	}
	fault := func(what string, name *ast.Ident, list *ast.FieldList) {
		for _, field := range list.List {
			for _, border := range field.Names {
				if s := strings.ToLower(border.Name); s == "lo" || s == "hi" {
					bad = append(bad, fmt.Sprintf("%s: %s %s has its own border %s of a range: want a "+
						"tensor.Placement or a tensor.Range", f.line(border), what, name.Name, border.Name))
				}
			}
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeSpec:
			if s, ok := n.Type.(*ast.StructType); ok {
				fault("type", n.Name, s.Fields)
			}
		case *ast.FuncDecl:
			if n.Name.IsExported() {
				fault("function", n.Name, n.Type.Params)
			}
		}
		return true
	})
	return bad
}

// Which elements of a named array a rank or a file has is a tensor.Placement, in every package.
func TestPlacementIsOneType(t *testing.T) { requireNone(t, ownPlacements) }

func TestPlacementIsOneTypeBites(t *testing.T) {
	const want = " has its own border lo of a range: want a tensor.Placement or a tensor.Range"
	for _, c := range []struct{ name, source, want string }{
		{"models/a.go", "package models; type Part struct { lo int }", "models/a.go:1: type Part" + want},
		{"accelerate/shard/a.go", "package shard; func (s *S) Read(lo int) {}",
			"accelerate/shard/a.go:1: function Read" + want},
		{"accelerate/shard/a.go", "package shard; func (s *S) read(lo int) {}", ""},
		{"models/a_test.go", "package models; type Part struct { lo int }", ""},
		{"nn/a.go", "package nn; type Part struct { lo int }", ""},
	} {
		requireBites(t, ownPlacements, c.name, c.source, c.want)
	}
}
