// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/token"
	"regexp"
	"testing"
)

var joined = regexp.MustCompile(`[,;] want `)

// misjoined reports texts that put what is wanted behind a comma or a semicolon. Those of a test may, as Go's own do:
// "got …, want …".
func misjoined(f file) (bad []string) {
	if f.test {
		return nil
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if ok && lit.Kind == token.STRING && joined.MatchString(lit.Value) {
			bad = append(bad, f.line(lit)+`: an error says what was found and what is wanted with a colon between: `+
				`"x is 3: want 2"`)
		}
		return true
	})
	return bad
}

func TestErrorsSayWhatIsWantedAlike(t *testing.T) { requireNone(t, misjoined) }

func TestErrorsSayWhatIsWantedAlikeBites(t *testing.T) {
	const fault = `data/a.go:2: an error says what was found and what is wanted with a colon between: "x is 3: want 2"`
	said := func(between string) string { return "package data\nvar a = \"x is %d" + between + "want 2\"" }
	requireBites(t, misjoined, "data/a.go", said(", "), fault)
	requireBites(t, misjoined, "data/a.go", said("; "), fault)
	requireBites(t, misjoined, "data/a.go", said(": "), "")
	requireBites(t, misjoined, "data/a.go", "package data\nvar a = \"got %v, want %v\"", fault)
	requireBites(t, misjoined, "data/a_test.go", "package data\nvar a = \"got %v, want %v\"", "")
}
