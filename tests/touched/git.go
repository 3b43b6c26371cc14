// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// changed lists the files that differ from the commit at which the branch left main, and those that git does not know.
// It returns an error if there is no such commit.
func changed(dir string) (base string, files []string, err error) {
	main := "origin/main"
	if _, err := git(dir, "rev-parse", "--verify", "--quiet", main+"^{commit}"); err != nil {
		main = "main"
	}
	head, err := git(dir, "rev-parse", "HEAD")
	if err != nil {
		return "", nil, err
	}
	if base, err = git(dir, "merge-base", main, "HEAD"); err != nil {
		return "", nil, fmt.Errorf("no commit in common with %s: %w", main, err)
	}
	if base == head {
		return "", nil, errors.New("HEAD is a commit of " + main)
	}
	// Without renames the old name is listed too. Names in quotes, which stand for odd letters, are of no package.
	differ, err := git(dir, "diff", "--name-only", "--no-renames", base)
	if err != nil {
		return "", nil, err
	}
	others, err := git(dir, "ls-files", "--others", "--exclude-standard", "--full-name", ":/")
	if err != nil {
		return "", nil, err
	}
	return base, strings.FieldsFunc(differ+"\n"+others, func(r rune) bool { return r == '\n' }), nil
}

func git(dir string, argv ...string) (string, error) {
	c := exec.Command("git", argv...)
	c.Dir = dir
	var said strings.Builder
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w %s", argv[0], err, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
