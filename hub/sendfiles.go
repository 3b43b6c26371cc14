// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// How the Hub stores a file: in Git, or outside of it.
const (
	modeRegular = "regular"
	modeLFS     = "lfs"
)

// lfsType is the media type of Git LFS.
const lfsType = "application/vnd.git-lfs+json"

// neverSent are the patterns of what is of this machine.
var neverSent = []string{".git", ".git/", "*/.git", "*/.git/", ".cache/huggingface/", "*/.cache/huggingface/"}

// localFile is a file that is sent.
type localFile struct {
	path, to string // on this machine, and in the repository
	size     int64
	written  time.Time // when it was last written to
	mode     string
	ignored  bool
	hash     string // as File.Hash
	remote   string // the hash of what the Hub has at that path; "": nothing
}

// files are those of the upload, sorted by their paths in the repository.
func (u *Upload) files(log *slog.Logger) ([]*localFile, error) {
	info, err := os.Stat(u.Path)
	if err != nil {
		return nil, fmt.Errorf("hub: nothing to upload: %w", err)
	}
	if !info.IsDir() {
		if u.To == "" || strings.HasSuffix(u.To, "/") {
			u.To += filepath.Base(u.Path)
		}
		f := &localFile{path: u.Path, to: u.To}
		if len(u.chosen([]File{{Path: filepath.Base(u.Path)}})) == 0 {
			return nil, u.nothing()
		}
		return []*localFile{f}, f.check(info)
	}
	top, err := filepath.EvalSymlinks(u.Path)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	found, named := map[string]string{}, []File{}
	err = filepath.WalkDir(top, func(at string, entry fs.DirEntry, err error) error {
		name, outside := filepath.Rel(top, at)
		if outside != nil {
			return outside
		}
		name = filepath.ToSlash(name)
		if entry != nil && entry.IsDir() && name != "." && u.excludes(name) {
			return fs.SkipDir
		}
		if err != nil || entry.IsDir() {
			return err
		}
		found[name], named = at, append(named, File{Path: name})
		if len(named) > maxFiles {
			return fmt.Errorf("%s has more than %d files", u.Path, maxFiles)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	var files []*localFile
	for _, n := range u.chosen(named) {
		f := &localFile{path: found[n.Path], to: path.Join(u.To, n.Path)}
		switch info, err := os.Stat(f.path); { // links of a cache lead to files
		case errors.Is(err, fs.ErrNotExist):
			log.Warn("A link that leads nowhere is not uploaded.", "link", f.path)
		case err != nil:
			return nil, fmt.Errorf("hub: %w", err)
		case info.IsDir():
			log.Warn("A link to a folder is not uploaded.", "link", f.path)
		default:
			if err := f.check(info); err != nil {
				return nil, err
			}
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return nil, u.nothing()
	}
	slices.SortFunc(files, func(a, b *localFile) int { return strings.Compare(a.to, b.to) })
	return files, nil
}

// chosen are those of the files that the patterns choose.
func (u *Upload) chosen(files []File) []File {
	if len(u.Include) > 0 {
		files = matching(files, u.Include)
	}
	out := map[string]bool{}
	for _, f := range u.excluded(files) {
		out[f.Path] = true
	}
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool { return out[f.Path] })
}

func (u *Upload) excluded(files []File) []File {
	return matching(files, append(slices.Clone(neverSent), u.Exclude...))
}

// excludes reports whether no file below a folder is sent: files of short and of long names are excluded there.
func (u *Upload) excludes(folder string) bool {
	probes := []File{{Path: folder + "/x"}, {Path: folder + "/" + strings.Repeat("long/name", 9)}}
	return len(u.excluded(probes)) == len(probes)
}

func (u *Upload) nothing() error {
	return fmt.Errorf("hub: nothing to upload: %s has no file that is included and not excluded", u.Path)
}

// check refuses what no repository can have, and notes what the file is.
func (f *localFile) check(info fs.FileInfo) error {
	f.size, f.written = info.Size(), info.ModTime()
	if !info.Mode().IsRegular() {
		return fmt.Errorf("hub: %s is not a regular file: want one, or a folder of such files", f.path)
	}
	if err := checkPath(f.to); err != nil {
		return fmt.Errorf("hub: the path of %s in the repository: %w", f.path, err)
	}
	if !utf8.ValidString(f.to) {
		return fmt.Errorf("hub: the path %q in the repository: want UTF-8", f.to)
	}
	if slices.Contains(strings.Split(f.to, "/"), ".git") {
		return fmt.Errorf("hub: the path %q in the repository: want one without .git", f.to)
	}
	return nil
}

// same is an error if the file is not what it was when the upload began.
func (f *localFile) same() error {
	if info, err := os.Stat(f.path); err != nil || info.Size() != f.size || !info.ModTime().Equal(f.written) {
		return f.changed()
	}
	return nil
}

// gitIgnore is the text of the .gitignore among the files; "": there is none.
func gitIgnore(files []*localFile) (string, error) {
	for _, f := range files {
		if f.to == ".gitignore" {
			text, err := f.contents()
			return string(text), err
		}
	}
	return "", nil
}

// changed is the error of a file that is not what it was.
func (f *localFile) changed() error {
	return fmt.Errorf("hub: %s changed while it was uploaded: want files that nothing writes to", f.path)
}

// read gives the file's first n bytes to a function.
func (f *localFile) read(n int64, to io.Writer) error {
	in, err := vfs.OpenRegular(f.path)
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	defer in.Close() // it was only read
	switch _, err := io.CopyN(to, in, n); {
	case errors.Is(err, io.EOF):
		return f.changed()
	case err != nil:
		return fmt.Errorf("hub: %w", err)
	}
	return nil
}

// sample is the file's beginning.
func (f *localFile) sample() ([]byte, error) {
	var b strings.Builder
	err := f.read(min(f.size, sampleBytes), &b)
	return []byte(b.String()), err
}

// contents is the whole file.
func (f *localFile) contents() ([]byte, error) {
	if err := f.same(); err != nil {
		return nil, err
	}
	if f.size > maxRegular {
		return nil, fmt.Errorf("hub: %s has %s: want at most %s in Git itself", f.path, bytesText(f.size),
			bytesText(maxRegular))
	}
	text, err := vfs.ReadFile(vfs.OS, f.path, f.size)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return text, f.same()
}

// sum computes the hash of the file.
func (f *localFile) sum(ctx context.Context) error {
	var h hash.Hash = sha256.New()
	if f.mode == modeRegular {
		h = sha1.New()
		fmt.Fprintf(h, "blob %d\x00", f.size)
	}
	if err := f.read(f.size, &during{ctx, h}); err != nil {
		return err
	}
	f.hash = hex.EncodeToString(h.Sum(nil))
	return nil
}

// during writes until a context ends.
type during struct {
	ctx context.Context
	io.Writer
}

func (d *during) Write(b []byte) (int, error) {
	if err := context.Cause(d.ctx); err != nil {
		return 0, err
	}
	return d.Writer.Write(b)
}

// send uploads the contents of files that the Hub stores outside of Git.
func (s *sending) send(ctx context.Context, files []*localFile) error {
	var large []*localFile
	var total int64
	for _, f := range files {
		if f.mode == modeLFS {
			large, total = append(large, f), total+f.size
		}
	}
	if len(large) == 0 {
		return nil
	}
	m := s.c.meter("uploading "+s.Repo.Name, total)
	defer m.Close()
	for _, f := range large {
		if err := s.sendFile(ctx, f, m); err != nil {
			return err
		}
	}
	return nil
}

// action is a request that Git LFS expects.
type action struct {
	HRef   string            `json:"href"`
	Header map[string]string `json:"header"`
}

// sendFile uploads a file, unless the Hub has its contents. The addresses that it gets for that expire: if one is
// refused, it asks for others.
func (s *sending) sendFile(ctx context.Context, f *localFile, m Meter) error {
	const most = 3
	for tries := 1; ; tries++ {
		upload, verify, err := s.actions(ctx, f)
		if err != nil {
			return err
		}
		if upload == nil {
			m.Add(f.size)
			return nil
		}
		var taken atomic.Int64
		meter := &counting{m, &taken}
		err = s.put(ctx, f, upload, meter)
		if err == nil || !errors.Is(err, errExpired) {
			err = cmp.Or(f.same(), err)
		}
		if err == nil {
			s.bytes += f.size
			return s.verify(ctx, f, verify)
		}
		m.Add(-taken.Load())
		if !errors.Is(err, errExpired) || tries == most {
			return err
		}
		s.c.log().Warn("The upload of a file is started again.", "file", f.to, "because", err)
	}
}

// counting counts what is added to a meter.
type counting struct {
	Meter
	sum *atomic.Int64
}

func (c *counting) Add(n int64) {
	c.sum.Add(n)
	c.Meter.Add(n)
}

// actions asks where the contents of a file go. Without an upload the Hub has them.
func (s *sending) actions(ctx context.Context, f *localFile) (upload, verify *action, err error) {
	type object struct {
		OID     string `json:"oid"`
		Size    int64  `json:"size"`
		Actions *struct {
			Upload *action `json:"upload"`
			Verify *action `json:"verify"`
		} `json:"actions,omitempty"`
		Error *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error,omitempty"`
	}
	in := map[string]any{"operation": "upload", "transfers": []string{"basic", "multipart"}, "hash_algo": "sha256",
		"objects": []object{{OID: f.hash, Size: f.size}}, "ref": map[string]string{"name": s.Repo.revision()}}
	var out struct {
		Objects []object `json:"objects"`
	}
	err = s.c.post(ctx, s.question(f.to), s.Repo.page(s.c.Endpoint)+".git/info/lfs/objects/batch", lfsType, in, &out)
	if err != nil {
		return nil, nil, err
	}
	if len(out.Objects) != 1 || out.Objects[0].OID != f.hash {
		return nil, nil, faultf(ErrServer, "%s does not say where %s of %s goes", host(s.c.Endpoint), f.to, s.Repo)
	}
	switch o := out.Objects[0]; {
	case o.Error != nil:
		return nil, nil, faultf(ErrRefused, "%s refuses %s of %s (%d)%s", host(s.c.Endpoint), f.to, s.Repo,
			o.Error.Code, colon(printable(o.Error.Message)))
	case o.Actions == nil:
		return nil, nil, nil
	default:
		return o.Actions.Upload, o.Actions.Verify, nil
	}
}

// put sends the contents: whole, or in parts of a size that the Hub names, several at a time.
func (s *sending) put(ctx context.Context, f *localFile, to *action, m Meter) error {
	in, err := vfs.OpenRegular(f.path)
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	defer in.Close() // it was only read
	size, err := s.partSize(f, to)
	if err != nil {
		return err
	}
	if size == 0 {
		_, err := s.putPart(ctx, f, to.HRef, to.Header, io.NewSectionReader(in, 0, f.size), m)
		return err
	}
	type part struct {
		Number int    `json:"partNumber"`
		ETag   string `json:"etag"`
	}
	parts, addresses := make([]part, (f.size-1)/size+1), map[int]string{}
	for name, address := range to.Header {
		if number, err := strconv.Atoi(name); err == nil { // 1, or 00001
			addresses[number] = address
		}
	}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(connections)
	for i := range parts {
		address, ok := addresses[i+1]
		if !ok {
			return faultf(ErrServer, "%s names no address for part %d of %d of %s", host(s.c.Endpoint), i+1, len(parts),
				f.to)
		}
		g.Go(func() error {
			from := int64(i) * size
			tag, err := s.putPart(inner, f, address, nil, io.NewSectionReader(in, from, min(size, f.size-from)), m)
			if err == nil && tag == "" {
				err = faultf(ErrServer, "%s sends no ETag for part %d of %s", host(address), i+1, f.to)
			}
			parts[i] = part{i + 1, tag}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return s.c.post(ctx, s.question(f.to), to.HRef, lfsType, map[string]any{"oid": f.hash, "parts": parts}, nil)
}

// partSize is how much of a file each part has; 0: it is sent whole.
func (s *sending) partSize(f *localFile, to *action) (int64, error) {
	if err := s.checkAddress(f, to.HRef); err != nil {
		return 0, err
	}
	text, ok := to.Header["chunk_size"]
	if !ok {
		return 0, nil
	}
	const mostParts = 10_000 // of S3
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil || size < 1 || f.size/size > mostParts {
		return 0, faultf(ErrServer, "%s expects %s, of %s, in parts of %q bytes: want a number with at most %d parts",
			host(s.c.Endpoint), f.to, bytesText(f.size), printable(text), mostParts)
	}
	return size, nil
}

// checkAddress refuses to send a file to what is no server, or without the encryption of the endpoint.
func (s *sending) checkAddress(f *localFile, address string) error {
	at, err := url.Parse(address)
	if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" {
		return faultf(ErrServer, "%s sends %s of %s to no address", host(s.c.Endpoint), f.to, s.Repo)
	}
	if at.Scheme == "http" && strings.HasPrefix(s.c.Endpoint, "https:") {
		return faultf(ErrServer, "%s sends %s of %s to %s without TLS: want https", host(s.c.Endpoint), f.to, s.Repo,
			at.Host)
	}
	return nil
}

// errExpired is the reason of a store that no longer takes what goes to an address.
var errExpired = errors.New("the address has expired")

// putPart sends a part of a file and returns its ETag.
func (s *sending) putPart(ctx context.Context, f *localFile, address string, header map[string]string,
	part *io.SectionReader, m Meter) (tag string, err error) {
	if err := s.checkAddress(f, address); err != nil {
		return "", err
	}
	to := message{method: http.MethodPut, header: http.Header{}, size: part.Size(), patience: cmp.Or(s.c.Timeout,
		uploadPatience)}
	for name, value := range header {
		to.header.Set(name, value)
	}
	body := &metered{}
	to.body = func() io.Reader {
		m.Add(-body.taken.Load()) // what is sent again
		body = &metered{part: io.NewSectionReader(part, 0, part.Size()), m: m}
		return body
	}
	err = s.c.retry(ctx, s.question(f.to), func() (bool, error) {
		a, err := s.c.exchange(ctx, s.question(f.to), address, to)
		if err != nil {
			if body.short.Load() {
				return false, f.changed()
			}
			return false, err
		}
		tag = a.Header.Get("ETag")
		return true, a.Body.Close()
	})
	return tag, err
}

// metered is a part of a file that a meter shows.
type metered struct {
	part  *io.SectionReader
	m     Meter
	at    int64
	taken atomic.Int64
	short atomic.Bool // the file ended before the part
}

func (b *metered) Read(p []byte) (int, error) {
	n, err := b.part.Read(p)
	b.at += int64(n)
	b.taken.Add(int64(n))
	b.m.Add(int64(n))
	if err == io.EOF && b.at < b.part.Size() {
		b.short.Store(true)
	}
	return n, err
}

// verify tells the Hub that a file has arrived, if it expects that.
func (s *sending) verify(ctx context.Context, f *localFile, at *action) error {
	if at == nil {
		return nil
	}
	if err := s.checkAddress(f, at.HRef); err != nil {
		return err
	}
	return s.c.post(ctx, s.question(f.to), at.HRef, jsonType, map[string]any{"oid": f.hash, "size": f.size}, nil)
}
