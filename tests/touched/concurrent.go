// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// ranks are packages, of those below the module's, that bring goroutines into the tests of what imports them.
var ranks = []string{"comm/local", "comm/commtest", "accelerate/ranks", "accelerate/strategy/strategytest",
	"internal/backend/backendtest"}

// concurrent lists the packages in which goroutines may meet: a file of theirs, tests included, starts one, has a lock
// or an atomic number, or imports what runs ranks as goroutines. The race detector has nothing to see in the others
// that it does not see in the tests of what they import.
func (m *module) concurrent() (list []string) {
	for _, dir := range slices.Sorted(maps.Keys(m.packages)) {
		for _, f := range m.packages[dir].files {
			if m.meets(f) {
				list = append(list, m.importPath(dir))
				break
			}
		}
	}
	return list
}

func (m *module) meets(f *ast.File) (found bool) {
	for _, spec := range f.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		below := strings.TrimPrefix(imported, m.path+"/")
		found = found || imported == "sync" || path.Dir(imported) == "sync" || slices.Contains(ranks, below)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		_, starts := n.(*ast.GoStmt)
		found = found || starts
		return !found
	})
	return found
}
