// SPDX-License-Identifier: Apache-2.0

package all_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	_ "github.com/lockstep-ml/lockstep/integrations/all"
)

// Every package that registers a reporter is imported, under its own name, and a program that imports none of them is
// told where it is.
func TestAll(t *testing.T) {
	files, err := filepath.Glob("../*/*.go")
	require.NoError(t, err)
	var names []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if !strings.HasSuffix(name, "_test.go") && strings.Contains(string(text), "callbacks.RegisterReporter(") {
			names = append(names, filepath.Base(filepath.Dir(name)))
		}
	}
	slices.Sort(names)
	require.Equal(t, slices.Compact(names), callbacks.ReporterNames())
	for _, name := range callbacks.ReporterNames() {
		a := args.Default("out")
		a.ReportTo = []string{name}
		require.ErrorContains(t, a.ValidateFor(args.Program{Reporters: []string{"notebook"}}),
			name+" is in integrations/"+name)
	}
}
