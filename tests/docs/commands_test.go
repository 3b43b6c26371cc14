// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// building is a line of a document or a comment that is a command which makes a binary.
var building = regexp.MustCompile(`^(?:    |//\t|//     )?((?:\w+=\S* )*go (?:build|install) .*)`)

// linked lists the commands of a text whose binary links the C library on a machine that has a C compiler.
func linked(text string) (list []string) {
	for line := range strings.Lines(text) {
		m := building.FindStringSubmatch(line)
		if m != nil && !strings.Contains(m[1], "CGO_ENABLED=") {
			list = append(list, strings.TrimSpace(m[1]))
		}
	}
	return list
}

// TestPrintedBuildsAreStatic: a command that makes a binary says CGO_ENABLED=0, since a plain go build links the C
// library where there is a C compiler.
func TestPrintedBuildsAreStatic(t *testing.T) {
	for name, text := range documents(t) {
		require.Empty(t, linked(text), name)
	}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, ".go") {
			return err
		}
		text, err := os.ReadFile(p)
		require.Empty(t, linked(string(text)), p)
		return err
	})
	require.NoError(t, err)
}

func TestPrintedBuildsAreStaticBites(t *testing.T) {
	require.Equal(t, []string{"go build ./x", "go install ./x@latest", "GOOS=linux go build -o a ./b", "go build ./c"},
		linked("    go build ./x\n    CGO_ENABLED=0 go build ./x\ngo install ./x@latest\n"+
			"A=1 CGO_ENABLED=0 go build ./x\n"+
			"//\tGOOS=linux go build -o a ./b\n//     go build ./c\na plain go build\n"))
}
