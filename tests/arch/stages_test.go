// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	chosenTests = regexp.MustCompile(`-(?:test\.)?(?:run|skip) '([^']+)'`)
	testName    = regexp.MustCompile(`\bTest[A-Z]\w*\b`)
)

// unmatched lists what stages choose of the tests, by names or by the alternatives of -run and -skip, and no test has.
func unmatched(stages string, tests []string) (list []string) {
	words := testName.FindAllString(stages, -1)
	for _, m := range chosenTests.FindAllStringSubmatch(stages, -1) {
		words = append(words, strings.Split(m[1], "|")...)
	}
	for _, word := range words {
		if name, err := regexp.Compile(word); err != nil || !slices.ContainsFunc(tests, name.MatchString) {
			list = append(list, word)
		}
	}
	return list
}

// TestStagesNameTests: a test that is renamed leaves no stage that silently runs more, or less, than it did.
func TestStagesNameTests(t *testing.T) {
	files, err := tree()
	require.NoError(t, err)
	var tests []string
	for _, f := range files {
		for _, d := range f.ast.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && strings.HasSuffix(f.name, "_test.go") {
				tests = append(tests, function.Name.Name)
			}
		}
	}
	stages, err := filepath.Glob(filepath.Join(root, ".ci", "stages", "*.sh"))
	require.NoError(t, err)
	require.NotEmpty(t, stages)
	for _, name := range stages {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Empty(t, unmatched(string(text), tests), "%s: names of no test", name)
	}
}

func TestStagesNameTestsBites(t *testing.T) {
	stages := "# TestA and TestB\ngo test -run 'Ab|Cd' -skip '^TestC$|^TestE$'\nx=(TestF)"
	require.Equal(t, []string{"TestB", "TestE", "TestF", "Cd", "^TestE$"},
		unmatched(stages, []string{"TestA", "TestAb", "TestC"}))
}

// TestVetHasAllAnalyzers: .ci/vet runs what this version of go vet runs, except what looks at cgo.
func TestVetHasAllAnalyzers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".ci", "vet", "main.go"))
	require.NoError(t, err)
	help, err := exec.Command("go", "tool", "vet", "help").CombinedOutput()
	require.NoError(t, err, "%s", help)
	_, list, _ := strings.Cut(string(help), "Registered analyzers:")
	list, _, _ = strings.Cut(list, "By default")
	names := regexp.MustCompile(`(?m)^    (\w+) `).FindAllStringSubmatch(list, -1)
	require.Greater(t, len(names), 30)
	for _, m := range names {
		if m[1] != "cgocall" { // a package may lack the name's plural
			require.Regexp(t, `\b`+m[1]+`?\.Analyzer\b`, string(text), "the analyzer %s of go vet", m[1])
		}
	}
}
