// SPDX-License-Identifier: Apache-2.0

// Package syncbuffer has a buffer for concurrent writers and readers, such as tests that read the output of a process
// or the log of several ranks.
package syncbuffer

import (
	"bytes"
	"sync"
)

// Buffer is what has been written to it so far. The zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is all of it.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
