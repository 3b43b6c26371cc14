// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/hubname"
)

const (
	maxPage  = 32 << 20 // bytes of JSON
	maxFiles = 1 << 20  // of a repository
)

// File is a file of a repository at a commit.
type File struct {
	Path string // with slashes
	Size int64  // in bytes
	// Hash is the SHA-256 of the contents of a large file, in hex; of others Git's SHA-1 of a blob.
	Hash string
	xet  string // where the Hub stores it; unread here, and kept for huggingface_hub
	git  string // Git's hash, also of a large file's pointer
}

// large reports whether the file is stored outside of Git.
func (f File) large() bool { return len(f.Hash) == 64 }

var (
	sha1Text   = regexp.MustCompile(`^[0-9a-f]{40}$`)
	sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Files lists the files of a repository, sorted by name.
func (c *Client) Files(ctx context.Context, r Repo) ([]File, error) {
	s, err := c.open(ctx, r)
	if err != nil {
		return nil, err
	}
	return s.files, s.close()
}

// find asks the Hub which commit a revision is.
func (c *Client) find(ctx context.Context, r Repo, tries int) (string, error) {
	if hubname.IsCommit(r.revision()) {
		return r.revision(), nil
	}
	q := question{repo: r, revision: r.revision(), tries: tries}
	var info struct {
		SHA string `json:"sha"`
	}
	if _, err := c.readJSON(ctx, q, r.api(c.Endpoint, "revision", r.revision()), &info); err != nil {
		return "", err
	}
	if !hubname.IsCommit(info.SHA) {
		return "", faultf(ErrServer, "%s names %q as the commit of %s: want 40 hex digits", host(c.Endpoint), info.SHA,
			r)
	}
	return info.SHA, nil
}

// list asks the Hub which files there are at a commit.
func (c *Client) list(ctx context.Context, r Repo, at string, tries int) ([]File, error) {
	q, seen := question{repo: r, revision: at, tries: tries}, map[string]bool{}
	files := []File{}
	for page := r.api(c.Endpoint, "tree", at) + "?recursive=true&expand=false"; page != ""; {
		var entries []entry
		header, err := c.readJSON(ctx, q, page, &entries)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			f, err := e.file()
			if err == nil && seen[e.Path] {
				err = fmt.Errorf("%q is there twice", e.Path)
			}
			if err != nil {
				return nil, faultf(ErrServer, "%s lists the files of %s: %v", host(c.Endpoint), r, err)
			}
			if seen[e.Path] = true; e.Type == "file" {
				files = append(files, f)
			}
		}
		if page, err = c.nextPage(page, header); err != nil {
			return nil, err
		}
		if len(seen) > maxFiles {
			return nil, faultf(ErrServer, "%s has more than %d files", r, maxFiles)
		}
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// entry is one of a tree.
type entry struct {
	Type string `json:"type"`
	Path string `json:"path"`
	Size int64  `json:"size"`
	OID  string `json:"oid"`
	LFS  *struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
	XetHash string `json:"xetHash"`
}

// file checks an entry.
func (e *entry) file() (File, error) {
	if e.Type != "file" {
		return File{}, nil
	}
	f := File{Path: e.Path, Size: e.Size, Hash: e.OID, git: e.OID}
	if e.LFS != nil {
		f.Hash, f.Size = strings.TrimPrefix(e.LFS.OID, "sha256:"), e.LFS.Size
	}
	if sha256Text.MatchString(e.XetHash) {
		f.xet = e.XetHash
	}
	return f, f.check(e.LFS != nil)
}

func (f File) check(large bool) error {
	shape := sha1Text
	if large {
		shape = sha256Text
	}
	if !shape.MatchString(f.Hash) || f.Size < 0 {
		return fmt.Errorf("%q has the hash %.80q and %d bytes: want a hash in hex and a size", f.Path, f.Hash, f.Size)
	}
	return nil
}

var nextLink = regexp.MustCompile(`<([^>]*)>\s*;\s*rel="?next"?`)

// nextPage is the address of the page behind another one, "" behind the last. It must be of the same server.
func (c *Client) nextPage(page string, h http.Header) (string, error) {
	m := nextLink.FindStringSubmatch(h.Get("Link"))
	if m == nil {
		return "", nil
	}
	r, err := http.NewRequest(http.MethodGet, page, nil)
	if err != nil {
		return "", fmt.Errorf("hub: %w", err)
	}
	next, err := r.URL.Parse(m[1])
	if err != nil || !c.own(next) || next.String() == page {
		return "", faultf(ErrServer, "%s names an invalid next page of files: want one on this host", host(c.Endpoint))
	}
	return next.String(), nil
}

// readJSON reads an answer of the API.
func (c *Client) readJSON(ctx context.Context, q question, address string, into any) (header http.Header, err error) {
	err = c.retry(ctx, q, func() (bool, error) {
		a, err := c.ask(ctx, q, address, nil)
		if err != nil {
			return false, err
		}
		defer a.Body.Close() // what was read counts
		header = a.Header
		return true, c.decode(q, a, into)
	})
	return header, err
}

// decode reads the JSON of an answer.
func (c *Client) decode(q question, a *answer, into any) error {
	text, err := io.ReadAll(io.LimitReader(a.Body, maxPage+1))
	switch {
	case err != nil:
		return c.unreachable(q, a.Request.URL, err)
	case len(text) > maxPage:
		return faultf(ErrServer, "%s answers about %s with more than %d bytes", host(c.Endpoint), q.repo, maxPage)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return faultf(ErrServer, "%s answers about %s with no JSON of the Hub's API (%v): HF_ENDPOINT must be a "+
			"server that has it, and no proxy may answer in its place", host(c.Endpoint), q.repo, err)
	}
	return nil
}
