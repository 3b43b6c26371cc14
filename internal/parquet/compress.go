// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// Codecs of pages.
const (
	codecNone   = 0
	codecSnappy = 1
	codecGzip   = 2
	codecZstd   = 6
)

var codecNames = map[int64]string{3: "LZO", 4: "Brotli", 5: "LZ4", 7: "LZ4"}

// checkCodec says whether pages in a codec are read.
func checkCodec(codec int64) error {
	switch codec {
	case codecNone, codecSnappy, codecGzip, codecZstd:
		return nil
	}
	name, ok := codecNames[codec]
	if !ok {
		name = fmt.Sprintf("codec %d", codec)
	}
	return fmt.Errorf("it is compressed by %s, which is not read: want none, snappy, gzip or zstd", name)
}

// expand decompresses a page that has size bytes then. Memory is taken as the bytes come, not as the page says.
func (r *Rows) expand(codec int64, page []byte, size int) ([]byte, error) {
	switch codec {
	case codecNone:
		if len(page) != size {
			return nil, fmt.Errorf("a page of %d bytes: want %d, as it says", len(page), size)
		}
		return page, nil
	case codecSnappy:
		// Three bytes become at most 64.
		if n, err := snappy.DecodedLen(page); err != nil || n != size || n > 32*len(page)+64 {
			return nil, fmt.Errorf("a page of %d bytes in snappy that is to have %d", len(page), size)
		}
		return snappy.Decode(nil, page)
	case codecGzip:
		z, err := gzip.NewReader(bytes.NewReader(page))
		if err != nil {
			return nil, err
		}
		return readSize(z, len(page), size)
	}
	if r.zstd == nil {
		var err error
		if r.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow)); err != nil {
			return nil, err
		}
	}
	if err := r.zstd.Reset(bytes.NewReader(page)); err != nil {
		return nil, err
	}
	return readSize(r.zstd, len(page), size)
}

// maxWindow is how far back a page in zstd may refer.
const maxWindow = 64 << 20

// readSize reads size bytes that were compressed to some.
func readSize(z io.Reader, compressed, size int) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, 0, min(size, 16*compressed+512)))
	n, err := b.ReadFrom(io.LimitReader(z, int64(size)+1))
	if err != nil {
		return nil, err
	}
	if n != int64(size) {
		return nil, fmt.Errorf("a page of %d bytes: want %d, as it says", n, size)
	}
	return b.Bytes(), nil
}
