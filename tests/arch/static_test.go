// SPDX-License-Identifier: Apache-2.0

//go:build linux

package arch

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// program uses the packages that every training program links.
const program = `package main

import (
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() {
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), gpt2.DefaultConfig())
	if err != nil {
		panic(err)
	}
	_, err = trainer.New(models.Model(m), args.Default("")).Train()
	panic(err)
}
`

// TestProgramsAreStatic builds a training program without cgo and looks for an
// interpreter, the mark of a binary that needs a dynamic linker.
func TestProgramsAreStatic(t *testing.T) {
	dir := t.TempDir()
	source, overlay, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json"),
		filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(source, []byte(program), 0o600))
	here, err := filepath.Abs(root)
	require.NoError(t, err)
	// The overlay puts the source into the module without writing there.
	text,
		err := json.Marshal(
		map[string]any{"Replace": map[string]string{filepath.Join(here, "cmd", "static", "main.go"): source}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, text, 0o600))

	build := exec.Command("go", "build", "-overlay", overlay, "-o", binary, "./cmd/static")
	build.Dir, build.Env = here, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	f, err := elf.Open(binary)
	require.NoError(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "the binary has an interpreter")
	}
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libs)
}
