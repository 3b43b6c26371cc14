// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// repository is the repository with the files and rows that guides add to it, which the go command sees as an overlay.
type repository struct {
	root, dir, overlay string
	texts              map[string]string // by path in the repository
	tests              map[string]string // the built tests of a package
}

func newRepository(t *testing.T) *repository {
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	r := &repository{root: top, dir: t.TempDir(), texts: map[string]string{}, tests: map[string]string{}}
	r.overlay = filepath.Join(r.dir, "overlay.json")
	return r
}

// add makes a new file.
func (r *repository) add(t *testing.T, name, text string) {
	require.NoFileExists(t, filepath.Join(root, name), "the guide adds a file that is there")
	r.texts[name] = text
}

// insert puts the added lines of a diff behind the line above them.
func (r *repository) insert(t *testing.T, name string, diff []string) {
	text, ok := r.texts[name]
	if !ok {
		text = read(t, name)
	}
	above := ""
	for _, line := range diff {
		require.NotEmpty(t, line)
		if line[0] != '+' {
			above = line[1:] + "\n"
			require.Equal(t, 1, strings.Count(text, above), "%s has this line once: %s", name, above)
			continue
		}
		added := above + line[1:] + "\n"
		text = strings.Replace(text, above, added, 1)
		above = added
	}
	r.texts[name] = text
}

// write writes the overlay.
func (r *repository) write(t *testing.T) {
	replace := map[string]string{}
	for name, text := range r.texts {
		file := filepath.Join(r.dir, strings.ReplaceAll(name, "/", "_"))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		replace[filepath.Join(r.root, filepath.FromSlash(name))] = file
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(r.overlay, list, 0o644))
}

func (r *repository) run(t *testing.T, dir string, words ...string) string {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", strings.Join(words, " "), out)
	return string(out)
}

// command runs a line of a guide with the overlay; programs run in their own folder.
func (r *repository) command(t *testing.T, line string) {
	words := strings.Fields(line)
	require.Equal(t, "go", words[0], line)
	switch words[1] {
	case "test":
		require.Equal(t, "-run", words[3], line)
		program := r.tests[words[2]]
		if program == "" {
			program = filepath.Join(r.dir, filepath.Base(words[2])+".test.exe")
			r.run(t, root, "go", "test", "-c", "-ldflags=-s -w", "-vet=off", "-overlay", r.overlay, "-o", program,
				words[2])
			r.tests[words[2]] = program
		}
		dir := filepath.Join(root, words[2])
		if _, err := os.Stat(dir); err != nil { // the folder is new
			dir = r.dir
		}
		out := r.run(t, dir, program, "-test.v", "-test.run", words[4])
		require.Contains(t, out, "--- PASS", "%s runs no test", line)
	case "run":
		program := filepath.Join(r.dir, "program.exe")
		r.run(t, root, "go", "build", "-ldflags=-s -w", "-overlay", r.overlay, "-o", program, words[2])
		r.run(t, r.dir, append([]string{program}, words[3:]...)...)
	default:
		require.Fail(t, "what does this command do?", line)
	}
}

// TestGuidesOfAdding does what the guides say: their files and rows are added, and their commands succeed. Each adds to
// the repository as it is, so that the go command compiles what imports the addition alone.
func TestGuidesOfAdding(t *testing.T) {
	for guide, want := range map[string][]int{
		"an-optimizer": {1, 1}, "a-layer": {1, 1}, "a-model": {1, 1}, "a-collective-engine": {1, 0},
		"a-sharding-strategy": {1, 0},
	} {
		t.Run(guide, func(t *testing.T) {
			r := newRepository(t)
			files, rows := 0, 0
			var commands []string
			for _, b := range blocks(read(t, "docs/adding-"+guide+".md")) {
				switch kind, name, _ := strings.Cut(b.kind, " "); kind {
				case "go":
					r.add(t, strings.TrimPrefix(name, "new "), strings.Join(b.lines, "\n")+"\n")
					if !strings.HasSuffix(name, "_test.go") {
						files++
					}
				case "diff":
					r.insert(t, name, b.lines)
					rows++
				case "sh":
					commands = append(commands, b.lines...)
				default:
					require.Fail(t, "a block of no known kind", b.kind)
				}
			}
			require.Equal(t, want, []int{files, rows}, "files and rows")
			require.NotEmpty(t, commands)
			r.write(t)
			for _, line := range commands {
				r.command(t, line)
			}
		})
	}
}
