// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/lockstep-ml/lockstep/metrics" // what the program links counts for go test's cache
)

var (
	numeral = regexp.MustCompile(`\d[\d,]*(?:\\\.\d+)?(?:e-\d+)?`)
	mistake = regexp.MustCompile(`^taken for (code|comment): .+`)
)

// shown is an expression for a printed line: a number stands for any, "…" for anything, and a mistake for any.
func shown(line string) string {
	if mistake.MatchString(line) {
		return "(?m)" + mistake.String()
	}
	return "(?m)^" + strings.ReplaceAll(numeral.ReplaceAllString(regexp.QuoteMeta(line), `[\d.,e-]+`), "…", ".*")
}

// TestFirstModel follows the lesson: its files make a program, whose commands print what is shown.
func TestFirstModel(t *testing.T) {
	r := newRepository(t)
	list := blocks(read(t, "docs/first-model.md"))
	for _, b := range list {
		if name, ok := strings.CutPrefix(b.kind, "go new "); ok {
			r.add(t, "examples/lines/"+name, strings.Join(b.lines, "\n")+"\n")
		}
	}
	require.Len(t, r.texts, 4)
	r.write(t)
	program := filepath.Join(r.dir, "lines.exe")
	r.run(t, root, "go", "build", "-ldflags=-s -w", "-overlay", r.overlay, "-o", program, "./examples/lines")
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	folder := strings.NewReplacer(`"$(go env GOROOT)/src/net"`, "'"+strings.TrimSpace(string(goroot))+"/src/net'")

	g := &guide{dir: t.TempDir(), built: map[string]string{".": program}}
	var all strings.Builder
	for _, b := range list {
		switch b.kind {
		case "sh":
			g.output = ""
			for _, line := range b.lines {
				g.run(t, []string{folder.Replace(line)}, false)
			}
			all.WriteString(g.output)
		case "text":
			for _, line := range b.lines {
				require.Regexp(t, shown(line), g.output)
			}
		default:
			require.Contains(t, b.kind, "go new ")
		}
	}
	require.Regexp(t, `accuracy 0\.9`, all.String())
	require.Regexp(t, `(?s)code 0\.[5-9].*comment 0\.[5-9]`, all.String(), "the lines that --predict gets")
}
