// SPDX-License-Identifier: Apache-2.0

// Package wire is how processes of one job speak before and beside their data: bounded frames of JSON, and a handshake by which both sides prove that they
// know the job's token.
//
// Nothing that is read from a connection is executed, allocated without bound or trusted before the handshake. It is NOT encryption: who can read the
// network reads the data.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// MaxFrame is the largest frame between processes that know each other, MaxGreeting that of the handshake, in bytes.
const (
	MaxFrame    = 4 << 20
	MaxGreeting = 4 << 10
)

// Write sends v as one frame: the length, 4 bytes big-endian, and the JSON text. It is one Write on w.
func Write(w io.Writer, v any, limit int) error {
	frame := make([]byte, 4, 256)
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	if len(text) > limit {
		return fmt.Errorf("wire: frame of %d bytes, want at most %d", len(text), limit)
	}
	binary.BigEndian.PutUint32(frame, uint32(len(text)))
	_, err = w.Write(append(frame, text...))
	return err
}

// Read receives one frame into v. A frame longer than limit is an error before it is read.
func Read(r io.Reader, v any, limit int) error {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > uint32(limit) {
		return fmt.Errorf("wire: frame of %d bytes, want at most %d", n, limit)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	return nil
}
