// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/hubname"
)

// Kind is the kind of a repository.
type Kind string

// The kinds of repositories.
const (
	Models   Kind = "models"
	Datasets Kind = "datasets"
)

// DefaultRevision is the branch that is meant where none is named.
const DefaultRevision = "main"

// Repo is a repository at a revision.
type Repo struct {
	Kind     Kind
	Name     string // org/name, or one of the old names without an organisation
	Revision string // a branch, a tag or a commit; "" is DefaultRevision
}

// String is what errors call the repository.
func (r Repo) String() string {
	noun := "model"
	if r.Kind == Datasets {
		noun = "data set"
	}
	return noun + " " + r.Name
}

func (r Repo) revision() string { return cmp.Or(r.Revision, DefaultRevision) }

// IsName reports whether a text may be the name of a repository: org/name, or one of the old names without an
// organisation. The path of a folder may be one too.
func IsName(name string) bool { return hubname.Is(name) }

func (r Repo) check() error {
	if !IsName(r.Name) {
		return fmt.Errorf("hub: %q is not the name of a repository: want org/name", r.Name)
	}
	if r.Kind != Models && r.Kind != Datasets {
		return fmt.Errorf("hub: the kind %q of %s: want %s or %s", r.Kind, r.Name, Models, Datasets)
	}
	if err := checkPath(r.revision()); err != nil {
		return fmt.Errorf("hub: the revision of %s: %w", r, err)
	}
	return nil
}

// checkPath refuses what would leave the folder that it is put in, on any system: a repository's owner chooses the
// names of its files and branches.
func checkPath(name string) error {
	for _, r := range name {
		if r < ' ' || r == 0x7f || r == '\\' {
			return fmt.Errorf("the name %q: want one without control characters and backslashes", name)
		}
	}
	if name == "" || path.IsAbs(name) || path.Clean(name) != name || name == "." || name == ".." ||
		strings.HasPrefix(name, "../") || !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("the name %q leads out of its folder, or is empty: want a name inside it", name)
	}
	return nil
}

// folder is that of the repository in a cache.
func (r Repo) folder() string {
	return string(r.Kind) + "--" + strings.ReplaceAll(r.Name, "/", "--")
}

// page is the address that people see.
func (r Repo) page(endpoint string) string {
	if r.Kind == Datasets {
		return endpoint + "/datasets/" + r.Name
	}
	return endpoint + "/" + r.Name
}

// api is the address of a request about a revision: what is revision or tree.
func (r Repo) api(endpoint, what, revision string) string {
	return endpoint + "/api/" + string(r.Kind) + "/" + r.Name + "/" + what + "/" + url.PathEscape(revision)
}

// resolve is the address of a file.
func (r Repo) resolve(endpoint, commit, file string) string {
	parts := strings.Split(file, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return r.page(endpoint) + "/resolve/" + commit + "/" + strings.Join(parts, "/")
}

// NameOf is the name and the commit of the model if the folder or file is its snapshot in a cache.
func NameOf(file string) (name, revision string, ok bool) { return hubname.Of(file) }
