// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

const (
	alignment  = 64       // bytes; a cache line, and the widest vector register
	slabBytes  = 4 << 20  // small blocks are cut from slabs of this size
	largeBytes = 32 << 10 // blocks from this size on are extents of the arena
	classesPer = 8        // size classes per power of two: at most 12.5 % is wasted
	numClasses = 512      // enough for 2⁶³ bytes

	poisonByte = 0xFF // 0xFFFF… is a NaN in every floating dtype and −1 in the integers
)

// buffer is a block of device memory. Header and small block stay together for life: Free puts both on a list and Alloc
// takes both off it, so that a steady training loop makes no garbage.
type buffer struct {
	ptr    unsafe.Pointer // off the Go heap, aligned
	n      int            // bytes asked for
	class  int            // index of a small block's size class: its size is the block's capacity
	extent *extent        // a large block's place; nil: the block is small, or freed
	owner  *memory
	live   bool
	use    purpose // Stats counts what is for tensors as in use
	of     any     // what memory that others own belongs to
	next   *buffer // in the free list of the class
}

// Bytes is the size that was asked for.
func (b *buffer) Bytes() int { return b.n }

func (b *buffer) bytes() []byte { return unsafe.Slice((*byte)(b.ptr), b.n) }

// memory is the allocator: size classes with a list of free blocks each for small ones, an arena for large ones. It
// lies off the Go heap, where the collector neither scans nor counts it. It is safe for concurrent use.
type memory struct {
	name string

	mu    sync.Mutex
	free  [numClasses]*buffer
	slab  []byte  // the rest of the newest slab
	heads *buffer // of large blocks, for later use
	arena arena   // of large blocks
	// of slabs, and of large blocks that kernels keep: apart, since one of them in the middle of free memory divides it
	// for good
	lasting arena
	stats   backend.Stats
	limit   int64 // of what tensors may hold; 0: none
	poison  bool
}

// purpose is what a block is for.
type purpose uint8

const (
	forTensor  purpose = iota
	forCall            // a kernel's scratch for one launch
	forKernels         // a kernel's scratch that is kept
)

// large is the class of blocks that are extents of the arena.
const large = -2

// classOf returns the smallest size class that holds n bytes, and its size.
func classOf(n int) (class, size int) {
	if n <= alignment*classesPer {
		class = max(0, (n+alignment-1)/alignment-1)
		return class, (class + 1) * alignment
	}
	shift := bits.Len(uint(n-1)) - 4 // n−1 has four leading bits above the shift: 1xyz
	class = shift*classesPer + (n-1)>>shift
	size = ((n-1)>>shift + 1) << shift
	return class - 6*classesPer, size // the classes up to 8·64 bytes come before
}

// alloc finds or makes a block of at least n bytes.
func (m *memory) alloc(n int, use purpose) (*buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("%s: cannot allocate %d bytes", m.name, n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var b *buffer
	var err error
	if m.limit > 0 && use == forTensor && m.stats.InUse+int64(n) > m.limit {
		err = fmt.Errorf("tensors may hold %d bytes", m.limit)
	} else if n >= largeBytes {
		b, err = m.takeLarge(n, m.arenaOf(use))
	} else {
		b, err = m.take(classOf(n))
	}
	if err != nil {
		return nil, &backend.OutOfMemoryError{Bytes: n, Err: fmt.Errorf("%s: out of memory: cannot allocate %d bytes "+
			"(%d in use, %d reserved): %w", m.name, n, m.stats.InUse, m.reserved(), err)}
	}
	b.n, b.live, b.use = n, true, use
	if m.poison {
		fillBytes(b.bytes(), poisonByte)
	}
	if use != forTensor {
		return b, nil
	}
	m.stats.Allocs++
	m.stats.InUse += int64(n)
	m.stats.Peak = max(m.stats.Peak, m.stats.InUse)
	return b, nil
}

// take finds a free block of the class or, if there is none, of one that is larger by at most a factor of two, or takes
// new memory. Without the larger ones, memory would grow for hours: ranks that share a device have ever different
// numbers of blocks of each class at once, and a block stays in its class for good.
func (m *memory) take(class, size int) (*buffer, error) {
	for c := class; c <= min(class+classesPer, numClasses-1); c++ {
		if b := m.free[c]; b != nil {
			m.free[c], b.next = b.next, nil
			return b, nil
		}
	}
	if len(m.slab) < size {
		slab, err := m.lasting.alloc(slabBytes)
		if err != nil {
			return nil, err
		}
		m.slab = slab.bytes()
	}
	b := &buffer{ptr: unsafe.Pointer(unsafe.SliceData(m.slab)), class: class, owner: m}
	m.slab = m.slab[size:]
	return b, nil
}

// takeLarge makes a block of an arena.
func (m *memory) takeLarge(n int, a *arena) (*buffer, error) {
	e, err := a.alloc(n)
	if err != nil {
		return nil, err
	}
	b := m.heads
	if b == nil {
		b = &buffer{class: large, owner: m}
	} else {
		m.heads, b.next = b.next, nil
	}
	b.ptr, b.extent = e.pointer(), e
	return b, nil
}

// arenaOf is where large blocks for a purpose lie.
func (m *memory) arenaOf(use purpose) *arena {
	if use == forKernels {
		return &m.lasting
	}
	return &m.arena
}

// reserved is what the system has given, in bytes.
func (m *memory) reserved() int64 { return m.arena.taken + m.lasting.taken }

func (m *memory) release(b *buffer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !b.live {
		panic(fmt.Sprintf("%s: buffer of %d bytes freed twice", m.name, b.n))
	}
	b.live = false
	if b.class == foreign {
		return
	}
	if b.use == forTensor {
		m.stats.InUse -= int64(b.n)
	}
	if m.poison {
		fillBytes(b.bytes(), poisonByte)
	}
	list := &m.heads
	if b.class == large {
		m.arenaOf(b.use).free(b.extent)
		b.ptr, b.extent = nil, nil
	} else {
		list = &m.free[b.class]
	}
	b.next, *list = *list, b
}

// close unmaps everything.
func (m *memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arena.close()
	m.lasting.close()
	m.slab, m.heads, m.free = nil, nil, [numClasses]*buffer{}
	m.stats.InUse = 0
}

func fillBytes(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}
