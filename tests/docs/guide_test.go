// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/lockstep-ml/lockstep/accelerate/launch" // what the programs link counts for go test's cache
	_ "github.com/lockstep-ml/lockstep/models/gpt2"
)

// block is a fenced block of a document.
type block struct {
	kind  string // what stands behind the fence: sh, text, yaml NAME
	lines []string
}

var fenced = regexp.MustCompile("(?ms)^```([a-z][^\n]*)\n(.*?)^```$")

func blocks(text string) (list []block) {
	for _, m := range fenced.FindAllStringSubmatch(text, -1) {
		list = append(list, block{m[1], strings.Split(strings.TrimSuffix(m[2], "\n"), "\n")})
	}
	return list
}

// guide is a working folder in which a guide's commands run as they would at the root of
// the repository, with programs that are built once.
type guide struct {
	dir, bin string
	built    map[string]string // programs that go run has run, by package
	files    map[string]string // the first that was built of a package
	output   string            // of the commands since the last text block
}

func newGuide(t *testing.T) *guide {
	g := &guide{dir: t.TempDir(), bin: t.TempDir(), built: map[string]string{}, files: map[string]string{}}
	docs, err := filepath.Abs(filepath.Join(root, "docs"))
	require.NoError(t, err)
	require.NoError(t, os.CopyFS(filepath.Join(g.dir, "docs"), os.DirFS(docs)))
	g.build(t, ".", "./cmd/lockstep", filepath.Join(g.dir, "out", "bin", "lockstep"))
	return g
}

// build builds a program of the module in a folder of the repository to a file, once.
func (g *guide) build(t *testing.T, module, pkg, to string) {
	if file := g.files[path.Join(module, pkg)]; file != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.Link(file, to))
		return
	}
	g.files[path.Join(module, pkg)] = to
	sources, err := filepath.Glob(filepath.Join(root, module, pkg, "*.go")) // inputs of this test for go test's cache
	require.NoError(t, err)
	require.NotEmpty(t, sources, pkg)
	for _, s := range sources {
		_, err := os.ReadFile(s)
		require.NoError(t, err)
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", to, pkg)
	cmd.Dir, cmd.Env = filepath.Join(root, module), append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// command turns a line of the guide into a command; nil if it is done already.
func (g *guide) command(t *testing.T, line string) *exec.Cmd {
	words := words(line)
	if len(words) > 2 && words[1] == "go" && words[0] == "CGO_ENABLED=0" {
		words = words[1:] // as build sets it
	}
	module := "."
	if len(words) > 4 && words[0] == "go" && words[1] == "run" && words[2] == "-C" {
		module = words[3]
		words = slices.Delete(words, 2, 4)
		require.NoError(t, os.MkdirAll(filepath.Join(g.dir, module), 0o755))
	}
	switch {
	case len(words) >= 3 && words[0] == "go" && words[1] == "run":
		program := g.built[path.Join(module, words[2])]
		if program == "" {
			program = filepath.Join(g.bin, filepath.Base(words[2])+".exe")
			g.build(t, module, words[2], program)
			g.built[path.Join(module, words[2])] = program
		}
		words = append([]string{program}, words[3:]...)
	case len(words) == 5 && words[0] == "go" && words[1] == "build" && words[2] == "-o":
		g.build(t, ".", words[4], filepath.Join(g.dir, words[3]))
		return nil
	case len(words) == 3 && words[0] == "cmp":
		x, err := os.ReadFile(filepath.Join(g.dir, words[1]))
		require.NoError(t, err)
		y, err := os.ReadFile(filepath.Join(g.dir, words[2]))
		require.NoError(t, err)
		require.NotEmpty(t, x)
		require.True(t, bytes.Equal(x, y), line)
		return nil
	default:
		require.Fail(t, "what does this command do?", line)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = filepath.Join(g.dir, module)
	cmd.Env = append(os.Environ(), "LOCKSTEP_JOB_TOKEN=9c1b7f0e44d2a8536ab1c07d5e92f348")
	return cmd
}

// run runs the lines of a block one after the other, or at once.
func (g *guide) run(t *testing.T, lines []string, together bool) {
	outputs, errs := make([][]byte, len(lines)), make([]error, len(lines))
	var all sync.WaitGroup
	for i, line := range lines {
		cmd := g.command(t, line)
		if cmd == nil {
			continue
		}
		all.Go(func() { outputs[i], errs[i] = cmd.CombinedOutput() })
		if !together {
			all.Wait()
		}
	}
	all.Wait()
	for i, line := range lines {
		require.NoError(t, errs[i], "%s\n%s", line, outputs[i])
		g.output += string(outputs[i])
	}
}

// TestFromOneCoreToMany runs the guide: files are written, commands succeed and print what
// is shown, and files that it says are equal are.
func TestFromOneCoreToMany(t *testing.T) {
	g := newGuide(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	require.NoError(t, listener.Close())
	commands := 0
	for _, b := range blocks(read(t, "docs/from-one-core-to-many.md")) {
		kind, name, _ := strings.Cut(b.kind, " ")
		text := strings.Join(b.lines, "\n")
		switch {
		case kind == "yaml":
			require.NoError(t, os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o644))
		case kind == "sh" && name == "hosts" && runtime.GOOS != "windows":
			g.run(t, strings.Split(strings.NewReplacer("10.0.0.1", "127.0.0.1", "29500", port).Replace(text), "\n"),
				true)
			g.run(t, []string{"cmp out/one/model.safetensors out/hosts/model.safetensors"}, false)
			commands += len(b.lines)
		case kind == "sh":
			g.run(t, b.lines, false)
			commands += len(b.lines)
		case kind == "text":
			for _, line := range b.lines {
				want := strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")
				require.Regexp(t, "(?m)^"+want, g.output)
			}
			g.output = ""
		default:
			require.Fail(t, "a block of no known kind", b.kind)
		}
	}
	require.Greater(t, commands, 15)
	svg, err := os.ReadFile(filepath.Join(g.dir, "out", "step-light.svg"))
	require.NoError(t, err)
	require.Contains(t, string(svg), " bucket ")
}
