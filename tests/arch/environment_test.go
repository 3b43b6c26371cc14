// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
)

var variable = regexp.MustCompile(`^LOCKSTEP_[A-Z0-9_]*[A-Z0-9]$`)

// variables lists the environment variables that a file of the product names, and those that a test reads.
func variables(f file) []string {
	if topOf(f.dir) == "args" || f.dir == "comm/commtest" || f.test && topOf(f.dir) == "comm" {
		return nil // names that are unknown on purpose, and those by which a test tells itself what it is
	}
	var names []string
	add := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && variable.MatchString(s) {
				names = append(names, s)
			}
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if !f.test {
				add(n)
			}
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Getenv" && len(n.Args) == 1 {
				add(n.Args[0])
			}
		}
		return true
	})
	return names
}

// unknownVariables reports variables that args takes for misspelt settings: whoever sets one must not be told by a
// program that it knows no such setting.
func unknownVariables(f file) []string {
	var faults []string
	for _, name := range variables(f) {
		loader := args.Bind(pflag.NewFlagSet("", pflag.ContinueOnError), args.Default(""))
		loader.Environ = func() []string { return []string{name + "=x"} }
		if _, err := loader.Parse(nil); err != nil && strings.Contains(err.Error(), "unknown variable") {
			faults = append(faults, fmt.Sprintf("%s: args takes %s for a misspelt setting: reserve it", f.name, name))
		}
	}
	return faults
}

func TestVariablesAreKnown(t *testing.T) {
	requireNone(t, unknownVariables)
	const want = "comm/a.go: args takes LOCKSTEP_LIBRARIES for a misspelt setting: reserve it"
	requireBites(t, unknownVariables, "comm/a.go", `package comm; const env = "LOCKSTEP_LIBRARIES"`, want)
	requireBites(t, unknownVariables, "comm/a.go", `package comm; const env = "LOCKSTEP_MPI_LIBRARY"`, "")
	requireBites(t, unknownVariables, "comm/a.go", `package comm; const env = "LOCKSTEP_BF16"`, "")
}
