package cpu

import (
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

const (
	alignment  = 64      // bytes; a cache line, and the widest vector register
	slabBytes  = 4 << 20 // small blocks are cut from slabs of this size
	largeBytes = 1 << 20 // blocks from this size on have a mapping of their own
	slackBytes = 64 << 20
	classesPer = 8   // size classes per power of two: at most 12.5 % is wasted
	numClasses = 512 // enough for 2⁶³ bytes

	poisonByte = 0xFF // 0xFFFF… is a NaN in every floating dtype and −1 in the integers
)

// buffer is a block of device memory. Header and block stay together for life: Free puts both on a list and Alloc takes both off it, so that a
// steady training loop makes no garbage.
type buffer struct {
	ptr   unsafe.Pointer // off the Go heap, aligned
	n     int            // bytes asked for
	class int            // index of the size class: its size is the block's capacity
	owner *memory
	live  bool
	own   bool    // the device's own scratch, which Stats does not count as in use
	next  *buffer // in the free list of the class
	stamp uint64  // when it was freed, in frees
}

// Bytes is the size that was asked for.
func (b *buffer) Bytes() int { return b.n }

func (b *buffer) bytes() []byte { return unsafe.Slice((*byte)(b.ptr), b.n) }

// memory is the allocator: size classes with a list of free blocks each, over memory that lies off the Go heap, where the collector neither
// scans nor counts it. It is safe for concurrent use.
type memory struct {
	name string

	mu      sync.Mutex
	free    [numClasses]*buffer
	slab    []byte   // the rest of the newest slab
	maps    [][]byte // the slabs
	large   map[unsafe.Pointer][]byte
	idle    int64 // bytes in large blocks on the free lists
	stats   backend.Stats
	poison  bool
	numFree uint64
}

// classOf gives the smallest size class that holds n bytes, and its size.
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

// alloc finds or makes a block of at least n bytes; own says that it is scratch of a kernel.
func (m *memory) alloc(n int, own bool) (*buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("%s: cannot allocate %d bytes", m.name, n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	class, size := classOf(n)
	b, err := m.take(class, size)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot allocate %d bytes (%d in use, %d reserved): %w", m.name, n, m.stats.InUse, m.stats.Reserved, err)
	}
	b.n, b.live, b.own = n, true, own
	if m.poison {
		fillBytes(b.bytes(), poisonByte)
	}
	if own {
		return b, nil
	}
	m.stats.Allocs++
	m.stats.InUse += int64(n)
	m.stats.Peak = max(m.stats.Peak, m.stats.InUse)
	return b, nil
}

// take finds a free block of the class, or of the next two for large ones, or takes new memory.
func (m *memory) take(class, size int) (*buffer, error) {
	last := class
	if size >= largeBytes {
		last = min(class+2, numClasses-1)
	}
	for k := class; k <= last; k++ {
		if b := m.free[k]; b != nil {
			m.free[k], b.next = b.next, nil
			if size >= largeBytes {
				m.idle -= int64(len(m.large[b.ptr]))
			}
			return b, nil
		}
	}
	if size >= largeBytes {
		return m.mapLarge(class, size)
	}
	if len(m.slab) < size {
		slab, err := mapMemory(slabBytes)
		if err != nil {
			return nil, err
		}
		m.maps, m.slab = append(m.maps, slab), slab
		m.stats.Reserved += slabBytes
	}
	b := &buffer{ptr: unsafe.Pointer(unsafe.SliceData(m.slab)), class: class, owner: m}
	m.slab = m.slab[size:]
	return b, nil
}

// mapLarge gives a new block a mapping of its own, after giving idle ones back when these are more than half of what was ever in use.
func (m *memory) mapLarge(class, size int) (*buffer, error) {
	if m.idle+int64(size) > m.stats.Peak/2+slackBytes {
		m.trim(max(0, m.stats.Peak/2+slackBytes-int64(size)))
	}
	mem, err := mapMemory(size)
	if err != nil {
		m.trim(0)
		if mem, err = mapMemory(size); err != nil {
			return nil, err
		}
	}
	m.stats.Reserved += int64(size)
	b := &buffer{ptr: unsafe.Pointer(unsafe.SliceData(mem)), class: class, owner: m}
	m.large[b.ptr] = mem
	return b, nil
}

// trim unmaps free large blocks, those that were freed first, until at most keep bytes of them are left.
func (m *memory) trim(keep int64) {
	for m.idle > keep {
		var oldest **buffer
		for k := range m.free {
			for at := &m.free[k]; *at != nil; at = &(*at).next {
				if _, ok := m.large[(*at).ptr]; ok && (oldest == nil || (*at).stamp < (*oldest).stamp) {
					oldest = at
				}
			}
		}
		b := *oldest
		*oldest = b.next
		mem := m.large[b.ptr]
		delete(m.large, b.ptr)
		unmapMemory(mem)
		m.idle -= int64(len(mem))
		m.stats.Reserved -= int64(len(mem))
	}
}

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
	if !b.own {
		m.stats.InUse -= int64(b.n)
	}
	if m.poison {
		fillBytes(b.bytes(), poisonByte)
	}
	m.numFree++
	b.stamp = m.numFree
	if mem, ok := m.large[b.ptr]; ok {
		m.idle += int64(len(mem))
	}
	b.next, m.free[b.class] = m.free[b.class], b
}

// close unmaps everything.
func (m *memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mem := range m.maps {
		unmapMemory(mem)
	}
	for _, mem := range m.large {
		unmapMemory(mem)
	}
	m.maps, m.slab, m.idle = nil, nil, 0
	m.free = [numClasses]*buffer{}
	clear(m.large)
	m.stats.InUse, m.stats.Reserved = 0, 0
}

func fillBytes(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}
