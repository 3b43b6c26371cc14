// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/comm/env"
)

// launcherVariables place a process in its job. One package names and reads them.
var launcherVariables = []string{env.VarRank, env.VarWorldSize, env.VarLocalRank, env.VarLocalWorldSize,
	env.VarNodeRank, env.VarNodes, env.VarMasterAddr, env.VarMasterPort, env.VarRunID, env.VarAgentStore,
	env.VarRestartCount, env.VarMaxRestarts}

// ownNames reports libraries and commands that name a launcher's variable by themselves. commtest starts processes by
// such variables.
func ownNames(f file) []string {
	switch top := topOf(f.dir); {
	case f.test || top == "tests" || top == "bench" || top == "examples" || within(f.dir, "comm/env"),
		f.dir == "comm/commtest":
		return nil
	}
	var bad []string
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && slices.Contains(launcherVariables,
				strings.TrimSuffix(s, "=")) {
				bad = append(bad, fmt.Sprintf("%s: names %s: want comm/env, which reads launchers' variables",
					f.line(lit), s))
			}
		}
		return true
	})
	return bad
}

func TestLaunchersVariablesHaveOneReader(t *testing.T) {
	requireNone(t, ownNames)
	const read = `package a; import "os"; var rank = os.Getenv("RANK")`
	requireBites(t, ownNames, "trainer/a.go", read,
		"trainer/a.go:1: names RANK: want comm/env, which reads launchers' variables")
	requireBites(t, ownNames, "comm/env/a.go", read, "")
	requireBites(t, ownNames, "trainer/a_test.go", read, "")
}
