// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"sync"
	"unsafe"
)

// pinned is the host memory that copies may use.
type pinned struct {
	mu     sync.Mutex
	pieces map[uintptr][]byte // by address
}

// alloc returns n bytes that hold no zeros.
func (p *pinned) alloc(n int) []byte {
	b := make([]byte, n)
	garbage(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pieces == nil {
		p.pieces = map[uintptr][]byte{}
	}
	p.pieces[address(b)] = b
	return b
}

func (p *pinned) free(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	whole, ok := p.pieces[address(b)]
	if !ok || len(whole) != len(b) {
		return false
	}
	garbage(whole)
	delete(p.pieces, address(b))
	return true
}

// holds reports whether b lies in pinned memory.
func (p *pinned) holds(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := address(b)
	for begin, whole := range p.pieces {
		if at >= begin && at+uintptr(len(b)) <= begin+uintptr(len(whole)) {
			return true
		}
	}
	return false
}

func (p *pinned) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pieces)
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// garbage is what memory holds that nobody has written.
func garbage(b []byte) {
	const value = 0xFB // a NaN in no dtype, and a large number in most
	if len(b) == 0 {
		return
	}
	b[0] = value
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
