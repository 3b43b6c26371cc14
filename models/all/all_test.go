// SPDX-License-Identifier: Apache-2.0

package all_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
)

// Every package that registers an architecture is imported.
func TestAll(t *testing.T) {
	files, err := filepath.Glob("../*/*.go")
	require.NoError(t, err)
	var dirs []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if !strings.HasSuffix(name, "_test.go") && strings.Contains(string(text), "models.Register(") {
			dirs = append(dirs, filepath.Base(filepath.Dir(name)))
		}
	}
	require.NotEmpty(t, dirs)
	imports, err := os.ReadFile("all.go")
	require.NoError(t, err)
	for _, dir := range slices.Compact(dirs) {
		require.Contains(t, string(imports), "/models/"+dir+`"`, "import models/%s in models/all", dir)
	}
	require.Subset(t, models.Types(), []string{"gpt2", "llama", "qwen3"})
}
