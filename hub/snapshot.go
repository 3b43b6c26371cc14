// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Snapshot is a part of a repository in the cache.
type Snapshot struct {
	Dir    string   // the folder of the commit
	Commit string   // 40 hex digits
	Files  []string // what was asked for, by its path in the repository; sorted
}

// Snapshot downloads the files of a repository that match one of the patterns, or all without patterns. A * of a
// pattern stands for any text, also with slashes, a ? for one character, [a-z] and [!a-z] for one of a class or not of
// it, and a pattern that ends with a slash for what is in the folder, as in huggingface_hub's allow_patterns.
func (c *Client) Snapshot(ctx context.Context, r Repo, patterns ...string) (*Snapshot, error) {
	s, err := c.open(ctx, r)
	if err != nil {
		return nil, err
	}
	defer s.close() // nothing is written by it
	files := s.files
	if len(patterns) > 0 {
		files = matching(files, patterns)
	}
	if err := s.need(ctx, files); err != nil {
		return nil, err
	}
	out := &Snapshot{Dir: s.dir(), Commit: s.commit}
	for _, f := range files {
		out.Files = append(out.Files, f.Path)
	}
	return out, nil
}

// File downloads one file and returns its path in the cache.
func (c *Client) File(ctx context.Context, r Repo, name string) (string, error) {
	s, err := c.open(ctx, r)
	if err != nil {
		return "", err
	}
	defer s.close() // nothing is written by it
	f, ok := s.file(name)
	if !ok {
		return "", s.lacks(name)
	}
	return filepath.Join(s.dir(), filepath.FromSlash(name)), s.need(ctx, []File{f})
}

// file is one of the repository.
func (s *session) file(name string) (File, bool) {
	i, ok := slices.BinarySearchFunc(s.files, name, func(f File, name string) int {
		return strings.Compare(f.Path,
			name)
	})
	if !ok {
		return File{}, false
	}
	return s.files[i], true
}

// lacks is the error of a file that there is not.
func (s *session) lacks(name string) error {
	if !s.listed {
		return s.absent([]File{{Path: name}})
	}
	return faultf(ErrFile, "%s has no file %s at revision %s", s.repo, name, s.repo.revision())
}

// absent is the error of files that the cache lacks where the Hub is not asked.
func (s *session) absent(files []File) error {
	return &fault{reason: ErrOffline, cause: s.unasked, text: fmt.Sprintf("%s of %s is not in the cache %s: %s",
		namesOf(files), s.repo, s.c.CacheDir, strings.TrimPrefix(s.unasked.Error(), "hub: "))}
}

// namesOf lists the first files.
func namesOf(files []File) string {
	const most = 3
	var names []string
	for _, f := range files[:min(len(files), most)] {
		names = append(names, f.Path)
	}
	text := strings.Join(names, ", ")
	if n := len(files) - most; n > 0 {
		text += fmt.Sprintf(" and %s more", quantity.Of(n, "file"))
	}
	return text
}

// need makes the snapshot have files.
func (s *session) need(ctx context.Context, files []File) error {
	var missing []File
	var total int64
	for _, f := range files {
		if err := checkPath(f.Path); err != nil {
			return fmt.Errorf("hub: a file of %s: %w", s.repo, err)
		}
		ok, err := s.has(s.pointer(f), f.Size)
		if err != nil {
			return err
		}
		if !ok {
			missing = append(missing, f)
			total += f.Size
		}
	}
	if len(missing) == 0 {
		s.writeRef()
		return nil
	}
	if s.unasked != nil {
		return s.absent(missing)
	}
	if err := s.room(missing, total); err != nil {
		return err
	}
	return s.fetchAll(ctx, missing, total)
}

// room refuses what the disk has no space for, before it is full.
func (s *session) room(files []File, total int64) error {
	for _, f := range files {
		if info, err := s.root.Stat(s.path("blobs", f.Hash+".incomplete")); err == nil {
			total -= min(info.Size(), f.Size)
		} else if ok, _ := s.has(s.path("blobs", f.Hash), f.Size); ok { // an error shows where it is opened
			total -= f.Size
		}
	}
	space := s.c.space
	if space == nil {
		space = freeSpace
	}
	if free, ok := space(s.c.CacheDir); ok && free < total {
		return fmt.Errorf("hub: %s needs %s more and %s has %s free: want space there, or HF_HOME (or cache_dir) to "+
			"name "+
			"another disk", s.repo, bytesText(total), s.c.CacheDir, bytesText(free))
	}
	return nil
}

// fetchAll downloads files: small ones side by side, large ones in parts.
func (s *session) fetchAll(ctx context.Context, files []File, total int64) error {
	s.tag()
	m := s.c.meter("downloading "+s.repo.Name, total)
	defer m.Close()
	slices.SortFunc(files, func(a, b File) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), strings.Compare(a.Path, b.Path))
	})
	small, _ := slices.BinarySearchFunc(files, int64(chunkBytes)+1, func(f File, n int64) int {
		return cmp.Compare(f.Size, n)
	})
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(connections)
	for _, f := range files[:small] {
		g.Go(func() error { return s.fetch(inner, f, m) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, f := range files[small:] {
		if err := s.fetch(ctx, f, m); err != nil {
			return err
		}
	}
	s.writeRef()
	return nil
}

// matching are the files that one of the patterns matches.
func matching(files []File, patterns []string) []File {
	var text []string
	for _, p := range patterns {
		if strings.HasSuffix(p, "/") {
			p += "*"
		}
		text = append(text, expression(p))
	}
	re := regexp.MustCompile(`^(?s:` + strings.Join(text, "|") + `)$`)
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool { return !re.MatchString(f.Path) })
}

// expression is the regular expression of a pattern, as Python's fnmatch reads it: *, ? and classes such as [0-9] and
// [!a-z]. A bracket that none closes is itself, and so is all of a class that no regular expression has.
func expression(pattern string) string {
	var b strings.Builder
	for p := strings.ToValidUTF8(pattern, "\uFFFD"); p != ""; {
		switch p[0] {
		case '*':
			b.WriteString(`.*`)
		case '?':
			b.WriteString(`.`)
		case '[':
			if class, n := classOf(p); n > 0 {
				b.WriteString(class)
				p = p[n:]
				continue
			}
			b.WriteString(`\[`)
		default:
			n := strings.IndexAny(p, "*?[")
			if n < 0 {
				n = len(p)
			}
			b.WriteString(regexp.QuoteMeta(p[:n]))
			p = p[n:]
			continue
		}
		p = p[1:]
	}
	return b.String()
}

// classOf is the class that a pattern begins with, as a regular expression, and its length in the pattern; 0: it begins
// with none.
func classOf(p string) (string, int) {
	from := 1
	if strings.HasPrefix(p[from:], "!") {
		from++
	}
	end := strings.IndexByte(p[min(from+1, len(p)):], ']') // a ] that comes first is one of the class
	if end < 0 {
		return "", 0
	}
	end += from + 1
	class := strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `&`, `\&`).Replace(p[from:end])
	if from == 2 {
		class = "^" + class
	}
	class = "[" + class + "]"
	if _, err := regexp.Compile(class); err != nil {
		return regexp.QuoteMeta(p[:end+1]), end + 1
	}
	return class, end + 1
}
