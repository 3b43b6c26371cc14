// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// habit is an expression that readers stumble over, with what to write.
type habit struct {
	found   *regexp.Regexp
	instead string
}

// habits compiles expressions between words, across lines.
func habits(list ...[2]string) (out []habit) {
	for _, p := range list {
		out = append(out, habit{regexp.MustCompile(`(?:^|[^\w-])(` + strings.ReplaceAll(p[0], " ", `\s+`) +
			`)(?:$|[^\w'-])`), p[1]})
	}
	return out
}

// phrases are not in documents, comments and messages.
var phrases = habits([][2]string{
	{`[Bb]ut for`, "except"},
	{`[Aa]ll but`, "all except"},
	{`wants`, "requires, expects or needs"},
	{`in turns(?: of)?`, "alternately"},
	{`and the like`, "and similar ones"},
	{`(?:its|their) kin`, "similar ones"},
	{`[Oo]ne's own`, "your own"},
	{`to be had`, "available"},
	{`comes? twice`, "is given twice, or is a duplicate"},
	{`one behind the other`, "one after the other"},
	{`in place of what`, "instead of the thing that is meant, or overrides"},
	{`would do as well`, "the reason why it is not done"},
}...)

// codePhrases are not in comments and messages of Go files other than tests either. They do not apply to kernels, which
// place data on pages and cache lines of their own.
var codePhrases = habits([][2]string{
	{`an? (?:[\w-]+ ){1,2}of (?:its|their) own`, "its own, a new or a separate one"},
	{`anew`, "again, or from the start"},
	{`(?:0|nil) stands for`, "means"},
	{`(?:go|goes|going|went) on (?:with|from|at)`, "continues"},
	{`as ever`, "as usual"},
}...)

// pagePhrases are not in documents and package comments either.
var pagePhrases = habits([][2]string{
	{`[Ss]uch an?`, "this"},
	{`[Nn]obody|[Ss]omebody|[Ee]verybody|[Aa]nybody|[Ww]hoever`, "the user, the caller or the rank that is meant"},
	{`[Aa]t once`, "together or immediately"},
	{`as (?:it is|they are)[,.;:]`, "unchanged"},
	{`of your own`, "your own loop, not a loop of your own"},
	{`[Kk]nows? nothing`, "is independent of, or has no"},
	{`be had`, "is available, or does not work"},
	{`the other way round`, "in both directions"},
	{`(?:takes?|took|taking) turns`, "alternates"},
	{`[Nn]othing ends`, "deadlocks"},
	{`[Ww]hat it (?:says|may be)`, "meaning, content or supported values"},
	{`anew`, "again, or from the start"},
	{`says so`, "reports, logs or warns of the thing that is meant"},
}...)

// Where a text is decides which phrases it must not have.
var (
	inTest = phrases
	inCode = slices.Concat(phrases, codePhrases)
	inPage = slices.Concat(phrases, pagePhrases) // a document or a package comment
)

// stumbles are the phrases of a text, with what to write.
func stumbles(text string, all []habit) (list []string) {
	for _, p := range all {
		for _, m := range p.found.FindAllStringSubmatch(text, -1) {
			if !strings.HasSuffix(m[1], " of") {
				list = append(list, fmt.Sprintf("%q: want %s", strings.Join(strings.Fields(m[1]), " "), p.instead))
			}
		}
	}
	return list
}

// indented are the lines of a document that are code.
var indented = regexp.MustCompile(`(?m)^(?: {4}|\t).*$`)

// prose is a document without its code.
func prose(text string) string {
	return span.ReplaceAllString(indented.ReplaceAllString(fence.ReplaceAllString(text, ""), ""), "x")
}

// goStumbles are the phrases in the comments of a Go file and, unless it is a test, in its strings.
func goStumbles(name string, src any) (list []string, err error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, src, parser.ParseComments)
	if err != nil || ast.IsGenerated(f) {
		return nil, err
	}
	test := strings.HasSuffix(name, "_test.go")
	add := func(at token.Pos, text string, page bool) {
		all := inCode
		switch {
		case page:
			all = inPage
		case test, strings.HasPrefix(filepath.ToSlash(name), "internal/kernels/"):
			all = inTest
		}
		for _, s := range stumbles(text, all) {
			list = append(list, fmt.Sprintf("%s:%d: %s", filepath.ToSlash(name), set.Position(at).Line, s))
		}
	}
	for _, c := range f.Comments {
		add(c.Pos(), c.Text(), c == f.Doc)
	}
	if test {
		return list, nil
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				add(lit.Pos(), text, false)
			}
		}
		return true
	})
	return list, nil
}

// TestPhrases: documents, comments and messages do without the phrases that readers have to read twice. The change log
// is a record.
func TestPhrases(t *testing.T) {
	files := 0
	var list []string
	for name, text := range documents(t) {
		if name != "CHANGELOG.md" {
			for _, s := range stumbles(prose(text), inPage) {
				list = append(list, name+": "+s)
			}
		}
	}
	require.NoError(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != root && (d.Name() == "testdata" || d.Name()[0] == '.' || d.Name()[0] == '_') {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(p, ".go") || d.Name() == "phrases_test.go" {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		found, err := goStumbles(name, text)
		list, files = append(list, found...), files+1
		return err
	}))
	require.Empty(t, list, "rewrite these sentences")
	require.Greater(t, files, 1000)
}

func TestPhrasesBites(t *testing.T) {
	require.Equal(t, []string{`"but for": want except`, `"All but": want all except`},
		stumbles("All but one,\nbut\nfor it.", inTest))
	require.Equal(t, []string{`"at once": want together or immediately`},
		stumbles(prose("It ends at\nonce, `at once`.\n\n    at once\n\n```sh\nat once\n```\n"), inPage))
	require.Equal(t, []string{`"of your own": want your own loop, not a loop of your own`,
		`"knows nothing": want is independent of, or has no`, `"be had": want is available, or does not work`,
		`"the other way round": want in both directions`, `"taking turns": want alternates`,
		`"nothing ends": want deadlocks`, `"What it says": want meaning, content or supported values`,
		`"says so": want reports, logs or warns of the thing that is meant`},
		stumbles("A loop of\nyour own knows nothing. It can be had, and the other way round, taking turns, "+
			"or nothing ends. "+
			"What it says: the log says so.", inPage))
	require.Equal(t, []string{`"comes twice": want is given twice, or is a duplicate`,
		`"one behind the other": want one after the other`,
		`"in place of what": want instead of the thing that is meant, or overrides`},
		stumbles("An axis comes\ntwice, one behind the other, in place of what begins anew.", inTest))
	require.Equal(t, []string{`"a memory scope of its own": want its own, a new or a separate one`,
		`"anew": want again, or from the start`, `"0 stands for": want means`, `"goes on from": want continues`,
		`"as ever": want as usual`},
		stumbles("It begins anew in a memory\nscope of its own, with no file of its own. 0 stands for 1. It goes on "+
			"from there as ever, on and on.", inCode))
	require.Empty(t, stumbles("A loop of your own begins anew, knows nothing and takes turns", inTest))
	require.Empty(t, stumbles("two seats wanted, in turns of one vector; one's own-ness; at once", inTest))
	list, err := goStumbles("a.go", "// Package a ends at once.\npackage a\n\n// f wants x.\n"+
		"func f() { g(\"all but x\") }\n")
	require.NoError(t, err)
	require.Equal(t, []string{`a.go:1: "at once": want together or immediately`,
		`a.go:4: "wants": want requires, expects or needs`, `a.go:5: "all but": want all except`}, list)
	list, err = goStumbles("a_test.go", "package a\n\nvar x = \"all but x\" // at once\n")
	require.NoError(t, err)
	require.Empty(t, list)
}
