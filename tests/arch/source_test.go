// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// units reports exported Forward methods of nn and models that do not run inside a Unit.
func units(f file) []string {
	if top := topOf(f.dir); f.test || top != "nn" && top != "models" {
		return nil
	}
	var bad []string
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && fn.Recv != nil && fn.Body != nil && fn.Name.Name == "Forward" && !callsUnit(f, fn.Body) {
			bad = append(bad,
				fmt.Sprintf("%s: Forward does not call nn.Unit or nn.Unit1: hooks, recomputation and memory scopes "+
					"would miss the module", f.line(fn)))
		}
	}
	return bad
}

func callsUnit(f file, body ast.Node) bool {
	inNN, names, found := f.dir == "nn", f.importNames(), false
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch fun := call.Fun.(type) {
		case *ast.Ident:
			found = found || inNN && isUnit(fun.Name)
		case *ast.SelectorExpr:
			x, ok := fun.X.(*ast.Ident)
			found = found || ok && isUnit(fun.Sel.Name) && names[x.Name] == module+"/nn" ||
				ok && (fun.Sel.Name == "CausalLM" || fun.Sel.Name == "ClassifyTexts") &&
					names[x.Name] == module+"/models" // which have a Unit
		}
		return true
	})
	return found
}

func isUnit(name string) bool { return name == "Unit" || name == "Unit1" || name == "AttentionUnit" }

func TestForwardRunsInUnits(t *testing.T) {
	requireNone(t, units)
	files, err := tree()
	require.NoError(t, err)
	require.GreaterOrEqual(t, countForwards(files), 12, "the rule lost the layers")
}

func countForwards(files []file) int {
	n := 0
	for _, f := range files {
		if top := topOf(f.dir); !f.test && (top == "nn" || top == "models") {
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == "Forward" {
					n++
				}
			}
		}
	}
	return n
}

func TestForwardRunsInUnitsBites(t *testing.T) {
	const fault = ": Forward does not call nn.Unit or nn.Unit1: hooks, recomputation and memory scopes would miss " +
		"the module"
	const nnImport = `package a; import "` + module + `/nn"; type M struct{}; `
	for _, c := range []struct{ name, source, want string }{
		{"nn/a.go", "package nn; type M struct{}; func (m *M) Forward() { Unit1(m) }", ""},
		{"nn/a.go", "package nn; type M struct{}; func (m *M) Forward() { m.f() }", "nn/a.go:1" + fault},
		{"models/m/a.go", nnImport + "func (m *M) Forward() { nn.Unit(m) }", ""},
		{"models/m/a.go", nnImport + "func (m *M) Forward() { func() { nn.Unit1(m) }() }", ""},
		{"models/m/a.go", nnImport + "func (m *M) Forward() { nn.AttentionUnit(m) }", ""},
		{"models/m/a.go", nnImport + "func (m *M) Forward() { Unit1(m); nn.Walk(m) }", "models/m/a.go:1" + fault},
		{"models/m/a.go", "package a; type M struct{}; func (m *M) Forward() { other.Unit(m) }",
			"models/m/a.go:1" + fault},
		{"models/m/a.go", `package a; import "` + module +
			`/models"; type M struct{}; func (m *M) Forward() { models.CausalLM(m) }`, ""},
		{"models/m/a.go", "package a; func Forward() {}", ""},
		{"models/m/a_test.go", "package a; type M struct{}; func (m *M) Forward() {}", ""},
		{"data/a.go", "package a; type M struct{}; func (m *M) Forward() {}", ""},
	} {
		requireBites(t, units, c.name, c.source, c.want)
	}
}

// direct reports reads of a parameter's tensor past the context, in functions of nn and models that have one. A
// buffer's tensor may be read.
func direct(f file) []string {
	// suites look on
	if top := topOf(f.dir); f.test || top != "nn" && top != "models" || strings.HasSuffix(f.dir, "test") {
		return nil
	}
	buffers, imported := map[string]bool{}, f.importNames()
	isType := func(t ast.Expr, name string) bool {
		star, ok := t.(*ast.StarExpr)
		if !ok {
			return false
		}
		x, ok := star.X.(*ast.Ident)
		if sel, qualified := star.X.(*ast.SelectorExpr); qualified {
			pkg, named := sel.X.(*ast.Ident)
			return sel.Sel.Name == name && named && imported[pkg.Name] == module+"/nn"
		}
		return ok && x.Name == name && f.dir == "nn"
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && isType(field.Type, "Buffer") {
			for _, name := range field.Names {
				buffers[name.Name] = true
			}
		}
		return true
	})
	var bad []string
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || !has(fn, func(n ast.Node) bool {
			t, ok := n.(*ast.FuncType)
			return ok && takes(t, func(t ast.Expr) bool { return isType(t, "Ctx") })
		}) {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			read, ok := n.(*ast.SelectorExpr)
			if !ok || read.Sel.Name != "Tensor" {
				return true
			}
			switch x := read.X.(type) {
			case *ast.Ident:
				ok = imported[x.Name] == ""
			case *ast.SelectorExpr:
				ok = !buffers[x.Sel.Name]
			}
			if ok {
				bad = append(bad,
					fmt.Sprintf("%s: a parameter's tensor is read directly: want c.Param(p), which casts and fetches",
						f.line(read)))
			}
			return true
		})
	}
	return bad
}

func takes(t *ast.FuncType, is func(t ast.Expr) bool) bool {
	return slices.ContainsFunc(t.Params.List, func(p *ast.Field) bool { return is(p.Type) })
}

func has(root ast.Node, is func(n ast.Node) bool) (found bool) {
	ast.Inspect(root, func(n ast.Node) bool {
		found = found || n != nil && is(n)
		return !found
	})
	return found
}

func TestParametersAreReadThroughTheContext(t *testing.T) { requireNone(t, direct) }

func TestParametersAreReadThroughTheContextBites(t *testing.T) {
	const fault = ":1: a parameter's tensor is read directly: want c.Param(p), which casts and fetches"
	const in = `package a; import ("` + module + `/nn"; "` + module +
		`/tensor"); type M struct{ W *nn.Parameter; B *nn.Buffer }; `
	for _, c := range []struct{ name, source, want string }{
		{"nn/a.go", "package nn; func (m *M) Forward(c *Ctx) { use(m.W.Tensor) }", "nn/a.go" + fault},
		{"nn/a.go", "package nn; func (m *M) Forward(c *Ctx) { use(c.Param(m.W)) }", ""},
		{"nn/a.go", "package nn; type M struct{ B *Buffer }; func (m *M) Forward(c *Ctx) { use(m.B.Tensor) }", ""},
		{"nn/a.go", "package nn; func walk(p *Parameter) { use(p.Tensor) }", ""},
		{"models/m/a.go", in + "func (m *M) Forward(c *nn.Ctx, x *tensor.Tensor) { w := m.W; use(w.Tensor) }",
			"models/m/a.go" + fault},
		{"models/m/a.go", in + "func (m *M) Forward() { run(func(c *nn.Ctx) { use(m.W.Tensor) }) }",
			"models/m/a.go" + fault},
		{"models/m/a.go", in + "func (m *M) Forward(c *nn.Ctx, x *tensor.Tensor) { use(c.Param(m.W), m.B.Tensor) }",
			""},
		{"models/m/a.go", in + "func save(c *tensor.Ctx, m *M) { use(m.W.Tensor) }", ""},
		{"data/a.go", in + "func (m *M) Forward(c *nn.Ctx) { use(m.W.Tensor) }", ""},
	} {
		requireBites(t, direct, c.name, c.source, c.want)
	}
}

// attentions reports attention that a model computes by itself, past what all models share.
func attentions(f file) (bad []string) {
	if f.test || topOf(f.dir) != "models" {
		return nil
	}
	imported := f.importNames()
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Attention", "RoPE"}, sel.Sel.Name) {
			if x, ok := sel.X.(*ast.Ident); ok && imported[x.Name] == module+"/tensor" {
				bad = append(bad, fmt.Sprintf("%s: tensor.%s: want nn.AttentionConfig.Attend, which counts heads by "+
					"the projections and takes what nn.AttentionInput has", f.line(sel), sel.Sel.Name))
			}
		}
		return true
	})
	return bad
}

func TestModelsShareTheirAttention(t *testing.T) { requireNone(t, attentions) }

func TestModelsShareTheirAttentionBites(t *testing.T) {
	const use = `package a; import "` + module + `/tensor"; func f() { tensor.Attention() }`
	requireBites(t, attentions, "models/m/a.go", use, "models/m/a.go:1: tensor.Attention: want "+
		"nn.AttentionConfig.Attend, which counts heads by the projections and takes what nn.AttentionInput has")
	requireBites(t, attentions, "models/m/a_test.go", use, "")
	requireBites(t, attentions, "nn/a.go", use, "")
	requireBites(t, attentions, "models/m/a.go", `package a; import "`+module+
		`/nn"; func f(c nn.AttentionConfig) { c.Attend(); nn.RoPE{}.Tables() }`, "")
}

// names reports package names that say nothing.
func names(f file) []string {
	if n := strings.TrimSuffix(f.ast.Name.Name,
		"_test"); slices.Contains([]string{"utils", "util", "common", "types", "pkg", "core"}, n) {
		return []string{fmt.Sprintf("%s: package %s: name a package after what it provides", f.name, n)}
	}
	return nil
}

func TestPackageNames(t *testing.T) { requireNone(t, names) }

func TestPackageNamesBites(t *testing.T) {
	requireBites(t, names, "data/utils/a.go", "package utils",
		"data/utils/a.go: package utils: name a package after what it provides")
	requireBites(t, names, "data/core/a_test.go", "package core_test",
		"data/core/a_test.go: package core: name a package after what it provides")
	requireBites(t, names, "data/a.go", "package data", "")
}

// ignored are folders that .gitignore and .dockerignore templates leave out, or that release tools empty.
var ignored = []string{"bin", "build", "dist", "node_modules", "out", "target", "tmp", "vendor"}

// unshipped reports files in folders that the world takes for the output of a build: an image may be built without
// them, and a release tool may delete them.
func unshipped(f file) []string {
	for _, part := range strings.Split(f.dir, "/") {
		if slices.Contains(ignored, part) {
			return []string{fmt.Sprintf("%s: a folder called %q: want a name that no tool takes for the output of a "+
				"build", f.name, part)}
		}
	}
	return nil
}

func TestNoFolderIsTakenForBuildOutput(t *testing.T) { requireNone(t, unshipped) }

func TestNoFolderIsTakenForBuildOutputBites(t *testing.T) {
	requireBites(t, unshipped, "accelerate/dist/a.go", "package dist",
		`accelerate/dist/a.go: a folder called "dist": want a name that no tool takes for the output of a build`)
	requireBites(t, unshipped, "data/distance/a.go", "package distance", "")
}

// undocumented lists folders without a package comment that says what the package is. In a
// folder of tests alone the comment may stand in one of them.
func undocumented(files []file) []string {
	documented, library := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		library[f.dir] = library[f.dir] || !f.test
	}
	for _, f := range files {
		if !f.test || !library[f.dir] {
			text := f.ast.Doc.Text()
			good := strings.HasPrefix(text, "Package "+f.ast.Name.Name+" ") || f.ast.Name.Name == "main" && text != ""
			documented[f.dir] = documented[f.dir] || good
		}
	}
	var bad []string
	for dir, ok := range documented {
		if !ok {
			bad = append(bad, fmt.Sprintf("%s: no package comment: want one that begins with \"Package <name> \"", dir))
		}
	}
	slices.Sort(bad)
	return bad
}

func TestPackageComments(t *testing.T) {
	files, err := tree()
	require.NoError(t, err)
	require.Empty(t, undocumented(files))
}

func TestPackageCommentsBites(t *testing.T) {
	var files []file
	for name, source := range map[string]string{
		"a/a.go": "// Package a is good.\npackage a", "a/b.go": "package a",
		"b/a.go": "package b", "b/a_test.go": "// Package b is documented in a test alone.\npackage b",
		"c/a_test.go": "// Package c tests.\npackage c",
		"d/a.go":      "// Something else.\npackage d",
		"e/main.go":   "// Command e runs.\npackage main",
		"f/main.go":   "package main",
	} {
		f, err := parse(name, source)
		require.NoError(t, err)
		files = append(files, f)
	}
	const fault = ": no package comment: want one that begins with \"Package <name> \""
	require.Equal(t, []string{"b" + fault, "d" + fault, "f" + fault}, undocumented(files))
}

// programs are the folders whose packages may print, log and exit.
var programs = []string{"cmd", "examples", "tests", "bench"}

// redirector is the one library file that may say where the standard logger writes: while a progress bar is shown,
// above it. It logs nothing itself.
const redirector = "callbacks/terminal.go"

// quiet reports library code that prints, logs past slog, or exits.
func quiet(f file) []string {
	if f.test || slices.Contains(programs, topOf(f.dir)) || f.ast.Name.Name == "main" {
		return nil
	}
	names := f.importNames()
	var bad []string
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if ok && x.Obj == nil && forbidden(names[x.Name], n.Sel.Name) &&
				!(f.name == redirector && redirects(names[x.Name], n.Sel.Name)) {
				bad = append(bad,
					fmt.Sprintf("%s: %s.%s in library code: return an error, write to a given io.Writer, or log "+
						"with slog", f.line(n), x.Name, n.Sel.Name))
			}
		case *ast.CallExpr:
			if x, ok := n.Fun.(*ast.Ident); ok && x.Obj == nil && (x.Name == "print" || x.Name == "println") {
				bad = append(bad, fmt.Sprintf("%s: %s in library code", f.line(n), x.Name))
			}
		}
		return true
	})
	return bad
}

func redirects(path, name string) bool {
	return path == "log" && (name == "Writer" || name == "SetOutput")
}

func forbidden(path, name string) bool {
	switch path {
	case "fmt":
		return strings.HasPrefix(name, "Print")
	case "os":
		return name == "Exit"
	case "log":
		return true
	}
	return false
}

func TestLibrariesAreQuiet(t *testing.T) { requireNone(t, quiet) }

func TestLibrariesAreQuietBites(t *testing.T) {
	const advice = " in library code: return an error, write to a given io.Writer, or log with slog"
	for _, c := range []struct{ name, source, want string }{
		{"data/a.go", `package a; import "fmt"; func f() { fmt.Println() }`, "data/a.go:1: fmt.Println" + advice},
		{"data/a.go", `package a; import "fmt"; var f = fmt.Printf`, "data/a.go:1: fmt.Printf" + advice},
		{"data/a.go", `package a; import "fmt"; func f() { fmt.Fprintln(nil); _ = fmt.Sprint() }`, ""},
		{"data/a.go", `package a; import "os"; func f() { os.Exit(1) }`, "data/a.go:1: os.Exit" + advice},
		{"data/a.go", `package a; import l "log"; func f() { l.Fatal() }`, "data/a.go:1: l.Fatal" + advice},
		{"data/a.go", `package a; import "log"; func f() { log.SetOutput(nil) }`,
			"data/a.go:1: log.SetOutput" + advice},
		{redirector, `package a; import "log"; func f() { log.SetOutput(nil) }`, ""},
		{redirector, `package a; import "log"; func f() { log.Print() }`, redirector + ":1: log.Print" + advice},
		{"data/a.go", `package a; import "log/slog"; func f() { slog.Info("") }`, ""},
		{"data/a.go", `package a; func f() { println() }`, "data/a.go:1: println in library code"},
		{"data/a.go", `package a; type p struct{ Println func() }; func f(fmt p) { fmt.Println() }`, ""},
		{"data/a_test.go", `package a; import "fmt"; func f() { fmt.Println() }`, ""},
		{"cmd/lockstep/main.go", `package main; import "os"; func main() { os.Exit(1) }`, ""},
	} {
		requireBites(t, quiet, c.name, c.source, c.want)
	}
}

// cgo reports uses of cgo that no build constraint can turn off.
func cgo(f file) []string {
	if slices.Contains(f.imports(), "C") && !f.constrained() {
		return []string{fmt.Sprintf("%s: import \"C\" without a build constraint: CGO_ENABLED=0 needs a fallback",
			f.name)}
	}
	return nil
}

func TestCgoIsConstrained(t *testing.T) { requireNone(t, cgo) }

func TestCgoIsConstrainedBites(t *testing.T) {
	requireBites(t, cgo, "data/a.go", `package a; import "C"`,
		`data/a.go: import "C" without a build constraint: CGO_ENABLED=0 needs a fallback`)
	requireBites(t, cgo, "data/a.go", "//go:build cgo\n\npackage a\nimport \"C\"", "")
	requireBites(t, cgo, "data/a.go", "package a\nimport \"C\"\n\n//go:build cgo\n",
		`data/a.go: import "C" without a build constraint: CGO_ENABLED=0 needs a fallback`)
}
