// SPDX-License-Identifier: Apache-2.0

// Package hubname knows the names of repositories of HuggingFace's Hub, and where its cache has them.
package hubname

import (
	"path/filepath"
	"regexp"
	"strings"
)

var (
	word   = `[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?`
	named  = regexp.MustCompile(`^` + word + `(?:/` + word + `)?$`)
	commit = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// longest is the length of a name.
const longest = 96

// Is reports whether a text may be the name of a repository: org/name, or one of the old names without an organisation.
// The path of a folder may be one too.
func Is(name string) bool {
	return len(name) <= longest && named.MatchString(name) && !strings.Contains(name, "--") &&
		!strings.Contains(name, "..") && !strings.HasSuffix(name, ".git")
}

// IsCommit reports whether a revision is a commit.
func IsCommit(revision string) bool { return commit.MatchString(revision) }

// Of is the name and the commit of the model whose snapshot in a cache a folder or file is.
func Of(file string) (name, revision string, ok bool) {
	parts := strings.Split(filepath.ToSlash(file), "/")
	for i := len(parts) - 2; i > 0; i-- {
		if parts[i] != "snapshots" || !IsCommit(parts[i+1]) {
			continue
		}
		rest, found := strings.CutPrefix(parts[i-1], "models--")
		if name = strings.Replace(rest, "--", "/", 1); found && Is(name) {
			return name, parts[i+1], true
		}
	}
	return "", "", false
}
