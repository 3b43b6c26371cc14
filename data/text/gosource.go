// SPDX-License-Identifier: Apache-2.0

package text

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// heldOutOf is the share of the Go source that is held out: one file in twenty.
const heldOutOf = 20

// GoSource lists the Go standard library's own source, a corpus that every Go
// programmer has: the .go files below root without tests, generated files and the
// folders cmd (at the top), vendor and testdata. One file in twenty is held out (see HeldOut).
// The paths start with root and are in lexical order. root is $(go env GOROOT)/src;
// GoRoot finds it.
func GoSource(root string) (train, heldOut []string, err error) {
	files, err := Walk(root,
		func(rel string) bool {
			base := path.Base(rel)
			return rel != "cmd" && base != "vendor" && base != "testdata"
		},
		func(rel string) bool {
			return strings.HasSuffix(rel, ".go") && !strings.HasSuffix(rel, "_test.go")
		})
	if err != nil {
		return nil, nil, err
	}
	for _, rel := range files {
		file := filepath.Join(root, filepath.FromSlash(rel))
		generated, err := isGenerated(file)
		switch {
		case err != nil:
			return nil, nil, err
		case generated:
		case HeldOut(rel, heldOutOf):
			heldOut = append(heldOut, file)
		default:
			train = append(train, file)
		}
	}
	if len(train) == 0 || len(heldOut) == 0 {
		return nil, nil,
			fmt.Errorf("text: %s has %d training and %d held-out .go files: want the source of Go's standard library",
				root, len(train), len(heldOut))
	}
	return train, heldOut, nil
}

// isGenerated reports whether a Go file has the header "// Code generated … DO NOT EDIT."
// by the rule of go help generate.
func isGenerated(file string) (bool, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("text: %w", err)
	}
	tree, err := parser.ParseFile(token.NewFileSet(), file, src, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		return false, fmt.Errorf("text: %w", err)
	}
	return ast.IsGenerated(tree), nil
}

// GoRoot returns the src folder of the Go installation: of the go command in the path,
// or else of the one that built this program. The error says where it looked.
func GoRoot() (string, error) {
	var looked []string
	for _, root := range []string{goEnvRoot(), build.Default.GOROOT} {
		if root == "" {
			continue
		}
		src := filepath.Join(root, "src")
		if info, err := os.Stat(filepath.Join(src, "fmt")); err == nil && info.IsDir() {
			return src, nil
		}
		looked = append(looked, src)
	}
	if len(looked) == 0 {
		return "", errors.New("text: no Go installation found: the go command is not in the path and GOROOT is not set")
	}
	return "", fmt.Errorf("text: Go's standard library is not in %s", strings.Join(looked, " or "))
}

// goEnvRoot is what go env GOROOT prints, "" if there is no go command.
func goEnvRoot() string {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
