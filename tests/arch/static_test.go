// SPDX-License-Identifier: Apache-2.0

//go:build linux

package arch

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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

// TestProgramsAreStatic builds a training program without cgo.
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

	build := exec.Command("go", "build", "-ldflags=-s -w", "-overlay", overlay, "-o", binary, "./cmd/static")
	build.Dir, build.Env = here, append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	requireStatic(t, binary)
}

// requireStatic looks for an interpreter, the mark of a binary that needs a dynamic linker, and for libraries.
func requireStatic(t *testing.T, binary string) {
	t.Helper()
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

var buildCommand = regexp.MustCompile(`(?m)^    (.*go build -o (\S+) (\./\S+).*)$`)

// TestReadmeBuildsAStaticProgram runs the README's build command as a user does, with nothing said of cgo and the
// machine's C compiler, if it has one, in the PATH.
func TestReadmeBuildsAStaticProgram(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	m := buildCommand.FindStringSubmatch(string(text))
	require.NotNil(t, m, "the README has no command that builds a program")
	_, err = tree() // the files are inputs of this test for go test's cache
	require.NoError(t, err)

	binary := filepath.Join(t.TempDir(), "program")
	build := exec.Command("sh", "-c", strings.Replace(m[1], m[2], binary, 1))
	build.Dir = root
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CGO_ENABLED=") {
			build.Env = append(build.Env, v)
		}
	}
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	requireStatic(t, binary)
}
