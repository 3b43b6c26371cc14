// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"testing"
)

// asserted reports type assertions and type switches of package optim: it treats transforms by their Traits, and no
// optimizer by the type of one.
func asserted(f file) []string {
	if f.dir != "optim" || f.test {
		return nil
	}
	var bad []string
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if a, ok := n.(*ast.TypeAssertExpr); ok {
			bad = append(bad, fmt.Sprintf("%s: a type assertion: want a field of optim.Traits", f.line(a)))
		}
		return true
	})
	return bad
}

func TestTransformsAreTreatedByTheirTraits(t *testing.T) { requireNone(t, asserted) }

func TestTransformsAreTreatedByTheirTraitsBites(t *testing.T) {
	requireBites(t, asserted, "optim/a.go", "package optim\nfunc f(t any) bool { _, ok := t.(int); return ok }",
		"optim/a.go:2: a type assertion: want a field of optim.Traits")
	requireBites(t, asserted, "optim/a.go", "package optim\nfunc f(t any) { switch t.(type) { case int: } }",
		"optim/a.go:2: a type assertion: want a field of optim.Traits")
	requireBites(t, asserted, "nn/a.go", "package nn\nfunc f(t any) bool { _, ok := t.(int); return ok }", "")
}
