// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// plainReaders are the folders of libraries that open files by package os, and what for: files of the system, and
// those of the job's owner. All others read by internal/vfs or internal/compressed, which open nothing but regular
// files and have a bound (docs/limits.md).
var plainReaders = map[string]string{
	"internal/vfs":                   "is what the others read by",
	"internal/hostmemory":            "reads /proc",
	"internal/procfs":                "reads /proc",
	"internal/screen":                "opens a terminal",
	"callbacks":                      "reads /proc",
	"accelerate/launch":              "reads /proc",
	"comm/env":                       "reads the owner's token",
	"comm/rendezvous":                "reads the owner's token and meeting",
	"data/text":                      "reads the source of Go",
	"internal/cuda/compiled":         "reads the source of the kernels",
	"internal/cuda/kernels/compile":  "reads what the assembler made",
	"internal/cuda/kernels/generate": "reads the committed PTX",
	"comm/commtest":                  "reads /proc",
	"comm/internal/wire":             "reads /proc",
}

var opens = []string{"Open", "ReadFile"}

// readers reports files of libraries that are opened by package os.
func readers(f file) []string {
	switch topOf(f.dir) {
	case "cmd", "examples", "bench", "tests":
		return nil
	}
	if _, ok := plainReaders[f.dir]; ok || f.test {
		return nil
	}
	var bad []string
	names := f.importNames()
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(opens, sel.Sel.Name) {
			if x, ok := sel.X.(*ast.Ident); ok && names[x.Name] == "os" {
				bad = append(bad, fmt.Sprintf("%s: os.%s: want internal/vfs or internal/compressed, with a limit",
					f.line(call), sel.Sel.Name))
			}
		}
		return true
	})
	return bad
}

func TestReadersHaveBounds(t *testing.T) {
	requireNone(t, readers)
	files, err := tree()
	require.NoError(t, err)
	used := map[string]bool{}
	for _, f := range files {
		used[f.dir] = true
	}
	for dir := range plainReaders {
		require.True(t, used[dir], "%s is no folder any more", dir)
	}
}
