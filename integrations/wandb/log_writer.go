// SPDX-License-Identifier: Apache-2.0

package wandb

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

const (
	blockBytes  = 32 << 10
	headerBytes = 7
)

// fileHeader is ":W&B", a magic number of two bytes and version 0.
const fileHeader = ":W&B\xe1\xbe\x00"

// logWriter frames records as LevelDB's log does: blocks of 32 KiB, of which the first begins with the file's header. A
// record is one or more fragments, each behind its checksum (4 bytes), length (2) and kind (1), little-endian. The
// checksum is CRC-32 (IEEE) of kind and data, where LevelDB has a masked CRC-32C.
type logWriter struct {
	w   io.Writer
	end int // of what is written, in its block
}

func (l *logWriter) begin() error {
	l.end = len(fileHeader)
	_, err := io.WriteString(l.w, fileHeader)
	return err
}

func (l *logWriter) write(record []byte) error {
	const full, first, middle, last = 1, 2, 3, 4
	var frames []byte
	for at, kind := 0, byte(first); kind == first || at < len(record); kind = middle {
		if left := blockBytes - l.end; left < headerBytes {
			frames, l.end = append(frames, make([]byte, left)...), 0
		}
		n := min(len(record)-at, blockBytes-l.end-headerBytes)
		switch ends := at+n == len(record); {
		case ends && kind == first:
			kind = full
		case ends:
			kind = last
		}
		body := append([]byte{kind}, record[at:at+n]...)
		frames = binary.LittleEndian.AppendUint32(frames, crc32.ChecksumIEEE(body))
		frames = binary.LittleEndian.AppendUint16(frames, uint16(n))
		frames = append(frames, body...)
		at, l.end = at+n, l.end+headerBytes+n
	}
	_, err := l.w.Write(frames)
	return err
}
