// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// A token file is a header of 32 bytes and the tokens, all little-endian:
//
//	0   magic "LSTOKENS"
//	8   uint32 version, 1
//	12  uint32 width of a token in bytes, 2 or 4
//	16  uint64 number of tokens
//	24  uint32 CRC-32C of the tokens' bytes
//	28  uint32 CRC-32C of bytes 0 to 28
const (
	tokenFileMagic   = "LSTOKENS"
	tokenFileVersion = 1
	tokenFileHeader  = 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// tokenHeader is the header of a token file.
type tokenHeader struct {
	width    int
	count    int64
	checksum uint32
}

// size is that of the whole file in bytes.
func (h tokenHeader) size() int64 { return tokenFileHeader + h.count*int64(h.width) }

func (h tokenHeader) encode() []byte {
	b := make([]byte, 0, tokenFileHeader)
	b = append(b, tokenFileMagic...)
	b = binary.LittleEndian.AppendUint32(b, tokenFileVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.width))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.count))
	b = binary.LittleEndian.AppendUint32(b, h.checksum)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeTokenHeader checks a header against itself and the size of its file.
func decodeTokenHeader(b []byte, size int64) (h tokenHeader, err error) {
	if len(b) < tokenFileHeader || string(b[:8]) != tokenFileMagic {
		return h, errors.New("it is not a token file, or it was not written completely")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != tokenFileVersion {
		return h, fmt.Errorf("its version is %d: want %d", v, tokenFileVersion)
	}
	if crc32.Checksum(b[:28], castagnoli) != binary.LittleEndian.Uint32(b[28:]) {
		return h, errors.New("its header is corrupt: the checksum does not match")
	}
	width, count := binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint64(b[16:])
	if width != 2 && width != 4 {
		return h, fmt.Errorf("its tokens have %d bytes: want 2 or 4", width)
	}
	if count > (math.MaxInt64-tokenFileHeader)/4 {
		return h, fmt.Errorf("its header claims %d tokens", count)
	}
	h = tokenHeader{width: int(width), count: int64(count), checksum: binary.LittleEndian.Uint32(b[24:])}
	if want := h.size(); size != want {
		return h, fmt.Errorf("it has %d bytes: want %d for %d tokens: it is truncated or damaged", size, want, count)
	}
	return h, nil
}

// TokenFile is a stream of tokens in a file. Each read asks the system for the part that it needs, so that corpora
// larger than memory can be trained on; what was read lately stays in the system's cache. It is not a memory mapping:
// a file that is cut short while it is open, and a disk that fails, are errors that name the file, where a mapping
// would end the process. It is safe for concurrent reading.
type TokenFile struct {
	path   string
	header tokenHeader
	mu     sync.RWMutex // held for writing by Close
	file   *os.File     // nil once closed
}

// OpenTokenFile opens a file that a TokenWriter wrote. The error names the path and says
// whether it is no token file, of another version, corrupt or truncated. The tokens
// themselves are not read: see Verify.
func OpenTokenFile(path string) (*TokenFile, error) {
	f, err := openTokenFile(path)
	if err != nil {
		return nil, fmt.Errorf("data: token file %s: %w", path, err)
	}
	return f, nil
}

func openTokenFile(path string) (_ *TokenFile, err error) {
	file, err := vfs.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	head := make([]byte, min(info.Size(), tokenFileHeader))
	if _, err := io.ReadFull(file, head); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	header, err := decodeTokenHeader(head, info.Size())
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &TokenFile{path: path, header: header, file: file}, nil
}

// String is the file's path.
func (f *TokenFile) String() string { return f.path }

// Len implements Tokens.
func (f *TokenFile) Len() int64 { return f.header.count }

// ReadTokens implements Tokens. The error names the file.
func (f *TokenFile) ReadTokens(dst []int32, at int64) error {
	if err := checkRange(at, len(dst), f.header.count); err != nil {
		return fmt.Errorf("%w (in %s)", err, f.path)
	}
	width := f.header.width
	buf := make([]byte, len(dst)*width)
	if err := f.readAt(buf, tokenFileHeader+at*int64(width)); err != nil {
		return err
	}
	for i := range dst {
		if width == 2 {
			dst[i] = int32(binary.LittleEndian.Uint16(buf[2*i:]))
		} else {
			dst[i] = int32(binary.LittleEndian.Uint32(buf[4*i:]))
		}
	}
	return nil
}

func (f *TokenFile) readAt(buf []byte, offset int64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.file == nil {
		return fmt.Errorf("data: token file %s: %w", f.path, os.ErrClosed)
	}
	n, err := f.file.ReadAt(buf, offset)
	switch {
	case n == len(buf):
		return nil
	case errors.Is(err, io.EOF):
		size := offset + int64(n)
		if info, err := f.file.Stat(); err == nil {
			size = info.Size()
		}
		return fmt.Errorf("data: token file %s: it has %d bytes: want %d: it was cut short after it was opened", f.path,
			size, f.header.size())
	}
	var failed *fs.PathError
	if errors.As(err, &failed) { // it names the file, too
		err = failed.Err
	}
	return fmt.Errorf("data: token file %s: reading %d bytes at %d: %w", f.path, len(buf), offset, err)
}

// Verify reads all tokens and compares their checksum with the header's.
func (f *TokenFile) Verify() error {
	buf := make([]byte, 1<<20)
	sum := uint32(0)
	end := f.header.size()
	for at := int64(tokenFileHeader); at < end; at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), end-at)]
		if err := f.readAt(buf, at); err != nil {
			return err
		}
		sum = crc32.Update(sum, castagnoli, buf)
	}
	if sum != f.header.checksum {
		return fmt.Errorf("data: token file %s: its tokens are corrupt: the checksum does not match", f.path)
	}
	return nil
}

// Close waits for reads that are under way and releases the file; later reads are errors.
func (f *TokenFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// TokenWriter writes a token file as a stream. The file appears under its name when Close
// has succeeded, complete and synced; until then it has a random number and ".tmp" after its name, and after
// Abort there is none. A TokenWriter belongs to one goroutine at a time.
type TokenWriter struct {
	path   string
	file   *os.File
	out    *bufio.Writer
	header tokenHeader
	limit  int32 // the largest id that fits
	err    error // the first failure; nothing is written after it
}

// CreateTokenFile begins a token file for ids below vocabSize, which decides whether a token
// takes 2 bytes (up to 65,536) or 4.
func CreateTokenFile(path string, vocabSize int) (*TokenWriter, error) {
	if vocabSize < 1 || vocabSize > math.MaxInt32 {
		return nil, fmt.Errorf("data: token file %s: vocabulary size is %d: want 1 or more", path, vocabSize)
	}
	// A name that nobody can guess: a link that was planted under it would be followed.
	file, err := os.OpenFile(path+"."+rand.Text()+".tmp", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("data: token file %s: %w", path, err)
	}
	w := &TokenWriter{path: path, file: file, out: bufio.NewWriterSize(file, 1<<18), limit: int32(vocabSize - 1)}
	w.header.width = 4
	if vocabSize <= 1<<16 {
		w.header.width = 2
	}
	_, w.err = w.out.Write(make([]byte, tokenFileHeader)) // filled in by Close
	return w, nil
}

// Write appends tokens. It is an error if one is outside the vocabulary, or if the disk
// fails; nothing more is written then, and Close reports it again.
func (w *TokenWriter) Write(tokens []int32) error {
	if w.err != nil {
		return w.err
	}
	buf := make([]byte, 0, 4*len(tokens))
	for _, id := range tokens {
		if id < 0 || id > w.limit {
			w.err = fmt.Errorf("data: token file %s: token %d has id %d: want 0 to %d", w.path, w.header.count, id,
				w.limit)
			return w.err
		}
		if w.header.width == 2 {
			buf = binary.LittleEndian.AppendUint16(buf, uint16(id))
		} else {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(id))
		}
		w.header.count++
	}
	w.header.checksum = crc32.Update(w.header.checksum, castagnoli, buf)
	if _, err := w.out.Write(buf); err != nil {
		w.err = fmt.Errorf("data: token file %s: %w", w.path, err)
	}
	return w.err
}

// Close completes the file and gives it its name. After a failure it removes what was
// written and returns the first error.
func (w *TokenWriter) Close() error {
	if w.file == nil {
		return w.err
	}
	if w.err == nil {
		if err := w.finish(); err != nil {
			w.err = fmt.Errorf("data: token file %s: %w", w.path, err)
		}
	}
	if w.err != nil {
		w.Abort()
	}
	w.file = nil
	return w.err
}

func (w *TokenWriter) finish() error {
	if err := w.out.Flush(); err != nil {
		return err
	}
	if _, err := w.file.WriteAt(w.header.encode(), 0); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	if err := w.file.Close(); err != nil {
		return err
	}
	return os.Rename(w.file.Name(), w.path)
}

// Abort ends the writing and removes what was written. After Close it does nothing.
func (w *TokenWriter) Abort() {
	if w.file == nil {
		return
	}
	w.file.Close() // an error here changes nothing: the file goes
	os.Remove(w.file.Name())
	w.file = nil
	if w.err == nil {
		w.err = fmt.Errorf("data: token file %s: writing was aborted", w.path)
	}
}
