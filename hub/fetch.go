// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"
)

const (
	// connections is how many requests are under way at a time: the parts of a large file, or small files.
	connections = 8
	// chunkBytes is what one request brings of a large file. Parts wait in memory for those before them, so that what a
	// file has is always its beginning: there a later run continues, ours or one of huggingface_hub.
	chunkBytes = 8 << 20
)

var (
	// errNoRanges is the reason of a server that sends whole files alone.
	errNoRanges = errors.New("the server does not support ranges of a file")
	// errRange is a server's 416.
	errRange = fmt.Errorf("%w: 416 Range Not Satisfiable", errNoRanges)
)

// fetch brings one file into the cache, unless another process does.
func (s *session) fetch(ctx context.Context, f File, m Meter) error {
	alone, unlock, err := s.lock(ctx, f)
	if err != nil {
		return err
	}
	defer unlock()
	if ok, err := s.has(s.pointer(f), f.Size); ok || err != nil {
		m.Add(f.Size)
		return err
	}
	blob := s.path("blobs", f.Hash)
	ok, err := s.has(blob, f.Size)
	if err != nil {
		return err
	}
	if ok {
		m.Add(f.Size)
		return s.point(f, false)
	}
	if err := s.root.MkdirAll(path.Dir(blob), 0o777); err != nil {
		return s.unwritable(err)
	}
	tmp := blob + ".incomplete"
	if !alone {
		tmp = fmt.Sprintf("%s.%08x.incomplete", blob, rand.Uint32()) // as two processes may be here
	}
	if err := s.download(ctx, f, tmp, m); err != nil {
		if !alone || errors.Is(err, ErrHash) {
			_ = s.root.Remove(tmp) // of no use to anyone
		}
		return err
	}
	if err := s.root.Rename(tmp, blob); err != nil {
		return s.unwritable(err)
	}
	return s.point(f, true)
}

// download completes a file and compares it with its hash.
func (s *session) download(ctx context.Context, f File, name string, m Meter) (err error) {
	if info, err := s.root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("hub: %s is not a regular file", s.within(name))
	}
	file, err := s.root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return s.unwritable(err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	d := &download{session: s, f: f, file: file, out: file, meter: m}
	if s.c.sink != nil {
		d.out = s.c.sink(file)
	}
	resumed, err := d.resume()
	if err == nil {
		err = d.complete(ctx)
	}
	if resumed && errors.Is(err, ErrHash) { // what was there may have been another file's
		if err = d.restart(); err == nil {
			err = d.complete(ctx)
		}
	}
	if err != nil {
		return err
	}
	return s.refused(file.Sync())
}

// download is a file on its way.
type download struct {
	*session
	f     File
	file  *os.File
	out   io.Writer // the file
	meter Meter
	sum   hash.Hash
	have  int64 // bytes from the beginning, in the file and in sum

	arrived atomic.Int64 // bytes that the meter has counted

	mu      sync.Mutex
	address string // where the endpoint redirects; "": it was not asked
	tag     string // what is there; "": unknown
}

// newSum is the hash that names the file's contents.
func (f File) newSum() hash.Hash {
	if f.large() {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", f.Size)
	return h
}

// resume takes what an earlier download has left.
func (d *download) resume() (resumed bool, err error) {
	d.sum = d.f.newSum()
	info, err := d.file.Stat()
	if err != nil {
		return false, d.refused(err)
	}
	if info.Size() > d.f.Size {
		return false, d.restart()
	}
	if d.have, err = io.Copy(d.sum, d.file); err != nil {
		return false, d.refused(err)
	}
	d.count(d.have)
	return d.have > 0, nil
}

// count tells the meter what has arrived.
func (d *download) count(n int64) {
	d.arrived.Add(n)
	d.meter.Add(n)
}

// restart starts the download over.
func (d *download) restart() error {
	d.count(-d.arrived.Load())
	d.sum, d.have = d.f.newSum(), 0
	_, err := d.file.Seek(0, io.SeekStart)
	if err == nil {
		err = d.file.Truncate(0)
	}
	return d.refused(err)
}

// complete gets what is missing, and checks all.
func (d *download) complete(ctx context.Context) error {
	err := d.parts(ctx)
	if errors.Is(err, errNoRanges) {
		err = d.whole(ctx)
	}
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(d.sum.Sum(nil)); got != d.f.Hash {
		return faultf(ErrHash, "%s of %s arrived with the hash %s: want %s, which %s names; it was removed", d.f.Path,
			d.repo,
			got, d.f.Hash, host(d.c.Endpoint))
	}
	return nil
}

// part is a piece of a file that has arrived.
type part struct {
	data []byte
	err  error
}

// parts gets the missing parts by several requests and writes them in order.
func (d *download) parts(ctx context.Context) error {
	chunk := d.c.chunk
	if chunk == 0 {
		chunk = chunkBytes
	}
	g, ctx := errgroup.WithContext(ctx)
	queue, free := make(chan chan part, connections-1), make(chan []byte, connections) // one more is being written
	from := d.have
	g.Go(func() error {
		defer close(queue)
		for off := from; off < d.f.Size; off += chunk {
			arrived := make(chan part, 1)
			select {
			case queue <- arrived:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			size := min(chunk, d.f.Size-off)
			g.Go(func() error {
				buf := buffer(free, size)
				err := d.part(ctx, off, buf[:size])
				arrived <- part{buf[:size], err}
				return err
			})
		}
		return nil
	})
	for arrived := range queue {
		p := <-arrived
		if p.err == nil {
			p.err = d.append(p.data)
		}
		if p.err != nil {
			g.Go(func() error { return p.err }) // which ends the others
			break
		}
		free <- p.data
	}
	return g.Wait()
}

// buffer is a free one, or a new one if there is none.
func buffer(free <-chan []byte, size int64) []byte {
	select {
	case buf := <-free:
		return buf[:size] // the last part is the shortest
	default:
		return make([]byte, size)
	}
}

// append adds to the file.
func (d *download) append(data []byte) error {
	n, err := d.out.Write(data)
	d.sum.Write(data[:n])
	d.have += int64(n)
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("hub: %s has no space for %s of %s, which has %s: %w: %s have arrived and are kept, where "+
			"the next "+
			"run goes on: want space there, or HF_HOME (or cache_dir) to name another disk", d.c.CacheDir, d.f.Path,
			d.repo,
			bytesText(d.f.Size), err, bytesText(d.have))
	}
	return d.refused(err)
}

// part gets the bytes from off that fill buf. What was cut off continues where it ended.
func (d *download) part(ctx context.Context, off int64, buf []byte) error {
	q, got := d.question(), 0
	return d.c.retry(ctx, q, func() (bool, error) {
		before := got
		err := d.receive(ctx, q, off, buf, &got)
		return got > before, err
	})
}

func (d *download) question() question {
	return question{repo: d.repo, revision: d.commit, file: d.f.Path}
}

// receive asks for the bytes of buf behind those that are there, and counts them.
func (d *download) receive(ctx context.Context, q question, off int64, buf []byte, got *int) error {
	from, all := off+int64(*got), int64(len(buf)) == d.f.Size
	header := http.Header{}
	if from > 0 || !all {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, off+int64(len(buf))-1))
	}
	a, err := d.get(ctx, q, header)
	if err != nil {
		return err
	}
	defer a.Body.Close() // what was read counts
	switch {
	case a.StatusCode == http.StatusPartialContent:
		if err := d.checkRange(a, from); err != nil {
			return err
		}
	case from > 0 || !all:
		return errNoRanges
	case a.ContentLength >= 0 && a.ContentLength != d.f.Size:
		return d.wrongSize(a.Request.URL.Host, a.ContentLength)
	}
	for *got < len(buf) {
		n, err := a.Body.Read(buf[*got:])
		*got += n
		d.count(int64(n))
		if err != nil && *got < len(buf) {
			return d.cut(a, err, off+int64(*got))
		}
	}
	if n, _ := a.Body.Read(make([]byte, 1)); n > 0 {
		return d.wrongSize(a.Request.URL.Host, -1)
	}
	return nil
}

// cut is the error of a body that ends too early.
func (d *download) cut(a *answer, err error, at int64) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &temporary{error: &fault{reason: ErrUnreachable, cause: err, text: fmt.Sprintf(
		"%s of %s is cut off by %s after %s of %s: %v", d.f.Path, d.repo, a.Request.URL.Host, bytesText(at),
		bytesText(d.f.Size), err)}}
}

// wrongSize is the error of a server whose file has another size than was listed; less than 0: more.
func (d *download) wrongSize(host string, size int64) error {
	is := "more"
	if size >= 0 {
		is = strconv.FormatInt(size, 10)
	}
	return faultf(ErrSize, "%s of %s has %s bytes at %s: want %d, as it is listed", d.f.Path, d.repo, is, host,
		d.f.Size)
}

// strongTag is an ETag that a server compares with If-Range.
var strongTag = regexp.MustCompile(`^"[!#-~]+"$`)

// get asks for the file, where the endpoint has redirected before or else there.
func (d *download) get(ctx context.Context, q question, header http.Header) (*answer, error) {
	d.mu.Lock()
	address, tag := d.address, d.tag
	d.mu.Unlock()
	if address == "" {
		address = d.repo.resolve(d.c.Endpoint, d.commit, d.f.Path)
	}
	if tag != "" && header.Get("Range") != "" {
		header.Set("If-Range", tag)
	}
	a, err := d.c.ask(ctx, q, address, header)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.address, d.tag = "", "" // a signed address ends
		return nil, err
	}
	d.address, d.tag = a.Request.URL.String(), a.Header.Get("ETag")
	if !strongTag.MatchString(d.tag) { // a weak one says nothing about bytes
		d.tag = ""
	}
	if err := d.checkHub(a); err != nil {
		return nil, errors.Join(err, a.Body.Close())
	}
	return a, nil
}

// checkHub compares what the endpoint says about the file with the listing.
func (d *download) checkHub(a *answer) error {
	if a.hub == nil {
		return nil // it was not asked
	}
	tag := a.hub.Get("X-Linked-Etag")
	if tag == "" {
		tag = a.hub.Get("ETag")
	}
	tag = strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)
	if (sha1Text.MatchString(tag) || sha256Text.MatchString(tag)) && tag != d.f.Hash {
		return faultf(ErrHash, "%s names the hash %s for %s of %s: want %s, as it is listed", host(d.c.Endpoint), tag,
			d.f.Path,
			d.repo, d.f.Hash)
	}
	if n, err := strconv.ParseInt(a.hub.Get("X-Linked-Size"), 10, 64); err == nil && n != d.f.Size {
		return d.wrongSize(host(d.c.Endpoint), n)
	}
	return nil
}

var contentRange = regexp.MustCompile(`^bytes (\d+)-(\d+)/(\d+|\*)$`)

// checkRange refuses a part that is another than was asked for.
func (d *download) checkRange(a *answer, from int64) error {
	text := a.Header.Get("Content-Range")
	m := contentRange.FindStringSubmatch(text)
	if m == nil || m[1] != strconv.FormatInt(from, 10) {
		return faultf(ErrServer, "%s sends the part %q of %s: want one from byte %d", a.Request.URL.Host,
			printable(text),
			d.f.Path, from)
	}
	if n, err := strconv.ParseInt(m[3], 10, 64); err == nil && n != d.f.Size {
		return d.wrongSize(a.Request.URL.Host, n)
	}
	return nil
}

// whole gets the file by one request, from a server that sends no parts.
func (d *download) whole(ctx context.Context) error {
	q := d.question()
	err := d.c.retry(ctx, q, func() (bool, error) {
		if err := d.restart(); err != nil {
			return false, err
		}
		a, err := d.get(ctx, q, http.Header{})
		if err != nil {
			return false, err
		}
		defer a.Body.Close() // what was read counts
		if a.StatusCode != http.StatusOK || a.ContentLength >= 0 && a.ContentLength != d.f.Size {
			return false, d.wrongSize(a.Request.URL.Host, a.ContentLength)
		}
		return false, d.stream(a)
	})
	if errors.Is(err, errRange) { // though no range was asked for
		return &fault{reason: ErrServer, cause: err, text: fmt.Sprintf("%s of %s: %v", d.f.Path, d.repo, err)}
	}
	return err
}

// stream writes a body to the file.
func (d *download) stream(a *answer) error {
	for buf := make([]byte, 1<<20); ; {
		n, err := a.Body.Read(buf)
		if d.have+int64(n) > d.f.Size {
			return d.wrongSize(a.Request.URL.Host, -1)
		}
		d.count(int64(n))
		if err := d.append(buf[:n]); err != nil {
			return err
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && d.have == d.f.Size:
			return nil
		default:
			return d.cut(a, err, d.have)
		}
	}
}

// bytesText is a size for people.
func bytesText(n int64) string {
	const kilo = 1000
	switch {
	case n < kilo:
		return fmt.Sprintf("%d B", n)
	case n < kilo*kilo:
		return fmt.Sprintf("%.1f kB", float64(n)/kilo)
	case n < kilo*kilo*kilo:
		return fmt.Sprintf("%.1f MB", float64(n)/(kilo*kilo))
	}
	return fmt.Sprintf("%.2f GB", float64(n)/(kilo*kilo*kilo))
}
