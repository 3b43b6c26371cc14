// SPDX-License-Identifier: Apache-2.0

// Package wire is the control protocol between processes of a job: bounded frames of JSON, and a handshake in which
// both sides prove that they know the job's token, the dialing side first.
//
// Connections between hosts are TLS 1.3. Certificates do not authenticate; the proofs are bound to the TLS exporter of
// the connection (RFC 9266), which differs on the two sides if a man in the middle speaks TLS to both. Connections that
// do not leave the host are plain.
//
// Input is never executed, its size is bounded, and it is untrusted before the handshake.
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
		return fmt.Errorf("wire: frame of %d bytes: want at most %d", len(text), limit)
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
		return &lengthError{length: n, limit: limit}
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

// lengthError is Read's error for a frame that is too long.
type lengthError struct {
	length uint32
	limit  int
}

// Error implements error.
func (e *lengthError) Error() string {
	return fmt.Sprintf("wire: frame of %d bytes: want at most %d", e.length, e.limit)
}
