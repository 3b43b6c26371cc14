// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const root = "../.."

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

// small is a module: app and its tests import lib; tool embeds a page; docs reads pages; e2e builds programs; gold
// reads lib's golden. bench is a separate module that is built from this one, nested one that is not.
var small = fstest.MapFS{
	"go.mod":                    file("module m\n\ngo 1.26\n"),
	"LICENSE":                   file(""),
	"README.md":                 file(""),
	"base/base.go":              file("package base\n"),
	"lib/lib.go":                file("package lib\nimport _ \"m/base\"\n"),
	"lib/lib_other.go":          file("//go:build plan9\n\npackage lib\nimport _ \"m/other\"\n"),
	"lib/lib_test.go":           file("package lib\nimport _ \"m/help\"\n"),
	"lib/lib.s":                 file(""),
	"lib/_gen/main.go":          file("package main\nimport _ \"m/nothing\"\n"),
	"other/other.go":            file("package other\n"),
	"help/help.go":              file("package help\n"),
	"app/main.go":               file("package main\nimport _ \"m/lib\"\n"),
	"tool/main.go":              file("package main\n\n//go:embed page.md\nvar page string\n"),
	"tests/docs/docs_test.go":   file("package docs\nvar page = \"../../README.md\"\n"),
	"tests/whole/whole_test.go": file("package whole\nvar root = \"../..\"\n"),
	"tests/gold/gold_test.go":   file("package gold\nvar golden = \"../../lib/testdata/golden\" + \".json\"\n"),
	"tests/e2e/e2e_test.go": file("package e2e\nimport \"os/exec\"\n" +
		"var build = exec.Command(\"go\", \"build\", \"m/app\")\n"),
	"tests/env/env_test.go": file("package env\nimport \"os/exec\"\n" +
		"var ask = exec.Command(\"go\", \"env\", \"GOROOT\")\n"),
	"tests/up/up_test.go":      file("package up\nimport \"path/filepath\"\nvar up = filepath.Join(\"..\", \"x\")\n"),
	"bench/go.mod":             file("module m/bench\n\nreplace m => ../\n"),
	"bench/base/main.go":       file("package main\nimport _ \"m/base\"\n"),
	"nested/go.mod":            file("module n\n"),
	"nested/n.go":              file("package n\nimport _ \"m/base\"\n"),
	"sh/run.sh":                file(""),
	"lib/testdata/golden.json": file(""),
}

func TestTouched(t *testing.T) {
	m, err := read(small)
	require.NoError(t, err)
	for _, c := range []struct{ files, want string }{
		{"base/base.go", "app base bench/base lib tests/e2e tests/up tests/whole"},
		{"lib/lib.go", "app lib tests/e2e tests/up tests/whole"},
		{"lib/new.go", "app lib tests/e2e tests/up tests/whole"},
		{"lib/lib.s", "app lib tests/e2e tests/up tests/whole"},
		{"lib/_gen/main.go", "app lib tests/e2e tests/up tests/whole"},
		{"lib/testdata/x.json", "app lib tests/e2e tests/up tests/whole"},
		{"lib/testdata/golden.json", "app lib tests/e2e tests/gold tests/up tests/whole"},
		{"lib/lib_test.go", "lib tests/up tests/whole"},
		{"help/help.go", "help lib tests/e2e tests/up tests/whole"},
		{"other/other.go", "app lib other tests/e2e tests/up tests/whole"}, // of another system
		{"app/main.go", "app tests/e2e tests/up tests/whole"},
		{"README.md", "tests/docs"},
		{"lib/README.md", ""},
		{"tool/page.md", "tests/e2e tests/up tests/whole tool"},
		{"help/help.go README.md", "help lib tests/docs tests/e2e tests/up tests/whole"},
		{"", ""},
	} {
		var got []string
		for _, p := range m.touched(strings.Fields(c.files)) {
			got = append(got, strings.TrimPrefix(p, "m/"))
		}
		require.Equal(t, c.want, strings.Join(got, " "), c.files)
	}
	for _, unknown := range []string{"go.mod", "go.sum", "LICENSE", ".ci/run", ".github/workflows/ci.yml", "sh/run.sh",
		"gone/gone.go", "nested/n.go", "bench/go.mod", "bench/run.sh"} {
		got := strings.Join(m.touched([]string{"README.md", unknown}), " ")
		require.Equal(t, everything, strings.ReplaceAll(got, "m/", ""), unknown)
	}
}

// What the go command knows of imports, under every set of tags that stages build with, is what is read here.
func TestTouchedFollowsTheGoCommand(t *testing.T) {
	m, err := read(os.DirFS(root))
	require.NoError(t, err)
	touched := map[string][]string{} // by package: those whose tests a change touches
	for dir := range m.packages {
		touched[m.importPath(dir)] = m.touched([]string{path.Join(dir, "any.go")})
	}
	checked := 0
	for _, tags := range []string{"", "noasm cuda nvml mpi"} {
		for _, l := range slices.Concat(goList(t, ".", tags), goList(t, "bench", tags)) {
			tested, _, _ := strings.Cut(l.ImportPath, " ")
			tested = strings.TrimSuffix(strings.TrimSuffix(tested, ".test"), "_test")
			for _, dep := range l.Deps {
				dep, _, _ = strings.Cut(dep, " ")
				if list, ok := touched[dep]; ok {
					require.True(t, slices.Contains(list, tested), "tags %q: tests of %s have %s", tags, tested, dep)
					checked++
				}
			}
			for _, name := range l.EmbedFiles {
				relative, err := filepath.Rel(absolute(t), filepath.Join(l.Dir, name))
				require.NoError(t, err)
				require.Contains(t, m.touched([]string{filepath.ToSlash(relative)}), tested, name)
			}
		}
	}
	require.Greater(t, checked, 10_000)
}

type listed struct {
	ImportPath, Dir  string
	Deps, EmbedFiles []string
}

func goList(t *testing.T, module, tags string) (list []listed) {
	t.Helper()
	c := exec.Command("go", "list", "-test", "-tags", tags, "-json=ImportPath,Dir,Deps,EmbedFiles", "./...")
	c.Dir, c.Env = filepath.Join(root, module), append(os.Environ(), "CGO_ENABLED=0")
	text, err := c.Output()
	require.NoError(t, err)
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var l listed
		require.NoError(t, d.Decode(&l))
		list = append(list, l)
	}
	return list
}

func absolute(t *testing.T) string {
	t.Helper()
	here, err := filepath.Abs(root)
	require.NoError(t, err)
	return here
}

// Tests of the whole tree see every change, and documents touch nothing that trains.
func TestTouchedInThisModule(t *testing.T) {
	m, err := read(os.DirFS(root))
	require.NoError(t, err)
	touched := func(file string) (dirs []string) {
		for _, p := range m.touched([]string{file}) {
			dirs = append(dirs, strings.TrimPrefix(p, m.path+"/"))
		}
		return dirs
	}
	for _, file := range []string{"trainer/train.go", "metrics/metrics.go", "bench/report/main.go",
		"models/gpt2/testdata/tiny/config.json", "tests/parity/golden.py"} {
		require.Subset(t, touched(file), []string{"tests/arch", "tests/docs", "tests/module"}, file)
	}
	require.Subset(t, touched("trainer/train.go"), []string{"trainer", "tests/distributed", "tests/e2e", "tests/faults",
		"examples/by_feature", "cmd/lockstep"})
	require.NotContains(t, touched("trainer/train.go"), "internal/kernels/gemm")
	require.Subset(t, touched("internal/kernels/_asm/gemm/main.go"), []string{"internal/kernels", "trainer"})
	require.Subset(t, touched("docs/arguments.md"), []string{"args", "tests/docs"})
	for _, file := range []string{"docs/gpu.md", "README.md", "CHANGELOG.md", "docs/figures/sharding-memory.svg"} {
		require.Contains(t, touched(file), "tests/docs", file)
		for _, dir := range []string{"trainer", "accelerate", "tests/distributed", "internal/backend/cpu"} {
			require.NotContains(t, touched(file), dir, file)
		}
	}
	for _, file := range []string{"go.mod", ".ci/run", ".ci/stages/tests.sh", ".github/workflows/ci.yml"} {
		require.Len(t, touched(file), len(m.packages), file)
	}
}
