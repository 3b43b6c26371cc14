// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordWriter frames messages as TFRecords: length (8 bytes), its masked checksum (4), data, its masked checksum (4);
// little-endian.
type recordWriter struct{ w io.Writer }

func (r recordWriter) write(data []byte) error {
	frame := make([]byte, 0, len(data)+16)
	frame = binary.LittleEndian.AppendUint64(frame, uint64(len(data)))
	frame = binary.LittleEndian.AppendUint32(frame, maskedCRC(frame))
	frame = append(frame, data...)
	frame = binary.LittleEndian.AppendUint32(frame, maskedCRC(data))
	_, err := r.w.Write(frame)
	return err
}

// maskedCRC is CRC-32C, rotated by 15 bits with a constant added: TensorFlow's remedy for checksums of data that hold
// checksums.
func maskedCRC(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}
