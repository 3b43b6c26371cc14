// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

const (
	grain        = 256      // bytes; blocks are multiples of it, and aligned to it
	largeBytes   = 1 << 20  // blocks from this size on have segments apart, which small ones would divide
	smallSegment = 2 << 20  // bytes of a segment for small blocks
	largeSegment = 20 << 20 // of one for large blocks, at least
	segmentGrain = 2 << 20  // segments are multiples of it: the device maps memory in such pages
)

// memory is what a device's streams have taken from the driver.
type memory struct {
	d        *Device
	segments atomic.Int64 // ever taken

	mu    sync.Mutex // of all pools, too
	stats backend.Stats
	live  map[int]int // number of buffers in use by their size
}

// pool is the memory of one stream: segments, cut into blocks. A request gets the smallest free block that holds it,
// of equal ones the one of the oldest segment and lowest address. So the same sequence of requests gets the same
// addresses. The stream's order keeps a block's earlier user apart from its next. Blocks that other streams used
// wait, until memory is short or the host waits; then the stream waits for these streams, in the order in which the
// blocks were freed.
type pool struct {
	s        *stream
	segments int         // ever taken: the number of the next
	free     [2][]*block // of small and large segments, sorted by size, then place
	parked   []*block    // freed, but used by other streams until their events
	all      []*segment  // in the order in which they were taken
}

// segment is a piece of memory of the driver.
type segment struct {
	at    cuda.Ptr
	n     int
	order int
	large int // 1 if it is for large blocks
	first *block
}

// block is a part of a segment.
type block struct {
	seg          *segment
	at, n        int // in bytes; at counts from the segment's start
	free         bool
	below, above *block // neighbours
	marks        []cuda.Event
}

func (b *block) ptr() cuda.Ptr { return b.seg.at + cuda.Ptr(b.at) }

// before is the order in which free blocks are tried.
func before(a, b *block) int {
	return cmp.Or(cmp.Compare(a.n, b.n), cmp.Compare(a.seg.order, b.seg.order), cmp.Compare(a.at, b.at))
}

// alloc gives out n bytes.
func (m *memory) alloc(p *pool, n int) (*buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("%s: cannot allocate %d bytes", m.d.name, n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.take(p, n)
	if err != nil {
		return nil, err
	}
	m.stats.Allocs++
	m.stats.InUse += int64(n)
	m.stats.Peak = max(m.stats.Peak, m.stats.InUse)
	if m.live == nil {
		m.live = map[int]int{}
	}
	m.live[n]++
	return &buffer{s: p.s, at: b.ptr(), n: n, block: b}, nil
}

// scratch gives out n bytes that do not count as in use.
func (m *memory) scratch(p *pool, n int) (*block, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.take(p, n)
}

// release takes scratch back.
func (m *memory) release(p *pool, b *block) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.give(b)
}

// free takes a buffer back. Events that are not done yet stay with the block.
func (m *memory) free(b *buffer, marks []cuda.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.InUse -= int64(b.n)
	if m.live[b.n]--; m.live[b.n] == 0 {
		delete(m.live, b.n)
	}
	if b.block == nil {
		return
	}
	if len(marks) > 0 {
		b.block.marks = marks
		b.s.pool.parked = append(b.s.pool.parked, b.block)
		return
	}
	b.s.pool.give(b.block)
}

// take finds a block, or makes one.
func (m *memory) take(p *pool, n int) (*block, error) {
	size := max(grain, roundUp(n, grain))
	b := p.find(size)
	for b == nil && len(p.parked) > 0 {
		if err := m.unpark(p); err != nil {
			return nil, err
		}
		b = p.find(size)
	}
	if b == nil {
		s, err := m.grow(size)
		if err != nil {
			return nil, m.full(n, err)
		}
		s.order = p.segments
		p.segments++
		p.all = append(p.all, s)
		p.list(s.first)
		b = s.first
	}
	p.claim(b, size)
	if err := p.s.q.Forget(b.ptr(), b.n); err != nil {
		p.give(b)
		return nil, err
	}
	return b, nil
}

// tidy takes back all blocks that other streams used, at a host wait: so the next step finds the memory as this one
// did, and gets the same addresses.
func (m *memory) tidy(p *pool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(p.parked) > 0 {
		if err := m.unpark(p); err != nil {
			return err
		}
	}
	return nil
}

// unpark makes the stream wait for the users of the block that was freed first.
func (m *memory) unpark(p *pool) error {
	b := p.parked[0]
	p.parked = slices.Delete(p.parked, 0, 1)
	for _, e := range b.marks {
		if err := p.s.q.Wait(e); err != nil {
			return err
		}
		m.d.giveEvent(e)
	}
	b.marks = nil
	p.give(b)
	return nil
}

// grow takes a segment for a block of n bytes. If the driver has none, free segments of all streams go back to it
// first.
func (m *memory) grow(n int) (*segment, error) {
	s := &segment{n: smallSegment}
	if n >= largeBytes {
		s.n, s.large = max(largeSegment, roundUp(n, segmentGrain)), 1
	}
	var err error
	if s.at, err = m.d.dev.Alloc(s.n); outOfMemory(err) {
		if err = m.trim(); err != nil {
			return nil, err
		}
		if s.at, err = m.d.dev.Alloc(s.n); outOfMemory(err) && s.large == 1 {
			s.n = roundUp(n, segmentGrain)
			s.at, err = m.d.dev.Alloc(s.n)
		}
	}
	if err != nil {
		return nil, err
	}
	m.segments.Add(1)
	m.stats.Reserved += int64(s.n)
	s.first = &block{seg: s, n: s.n, free: true}
	return s, nil
}

func outOfMemory(err error) bool {
	e, ok := errors.AsType[*cuda.Error](err)
	return ok && e.Code == cuda.OutOfMemory
}

// trim waits for the device and gives segments back that are free as a whole.
func (m *memory) trim() error {
	m.d.counters.hostWaits.Add(1)
	if err := m.d.wait(); err != nil {
		return err
	}
	for _, s := range m.d.allStreams() {
		s.q.drop() // graphs that know addresses which will be no memory
		p := &s.pool
		for len(p.parked) > 0 {
			if err := m.unpark(p); err != nil {
				return err
			}
		}
		if err := m.giveBack(p, func(s *segment) bool { return s.first.free && s.first.above == nil }); err != nil {
			return err
		}
	}
	return nil
}

// giveBack returns segments of a pool to the driver.
func (m *memory) giveBack(p *pool, which func(*segment) bool) error {
	var errs []error
	p.all = slices.DeleteFunc(p.all, func(s *segment) bool {
		if !which(s) {
			return false
		}
		if s.first.free && s.first.above == nil {
			p.unlist(s.first)
		}
		m.stats.Reserved -= int64(s.n)
		errs = append(errs, m.d.dev.Free(s.at))
		return true
	})
	return errors.Join(errs...)
}

// full is the error of a request that there is no memory for.
func (m *memory) full(n int, err error) error {
	if !outOfMemory(err) {
		return fmt.Errorf("%s: cannot allocate %d bytes: %w", m.d.name, n, err)
	}
	total := ""
	if free, all, err := m.d.dev.MemInfo(); err == nil {
		total = fmt.Sprintf("; the device has %s free of %s", size(free), size(all))
	}
	return &backend.OutOfMemoryError{Bytes: n, Err: fmt.Errorf("%s: out of memory: cannot allocate %s (%d bytes): %s "+
		"are in use by tensors (%s), %s more are cached%s: %w", m.d.name, size(int64(n)), n, size(m.stats.InUse),
		m.largest(), size(m.stats.Reserved-m.stats.InUse), total, err)}
}

// largest says which buffers hold the memory.
func (m *memory) largest() string {
	sizes := slices.SortedFunc(maps.Keys(m.live), func(a, b int) int {
		return cmp.Or(cmp.Compare(b*m.live[b], a*m.live[a]), cmp.Compare(b, a))
	})
	var list []string
	for _, n := range sizes[:min(len(sizes), 4)] {
		list = append(list, fmt.Sprintf("%d of %s", m.live[n], size(int64(n))))
	}
	if len(list) == 0 {
		return "none"
	}
	if len(sizes) > len(list) {
		list = append(list, "…")
	}
	return strings.Join(list, ", ")
}

// size prints bytes.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

func (m *memory) snapshot() backend.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// close gives the segments of a stream's pool back, whoever uses them.
func (m *memory) close(p *pool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range p.parked {
		for _, e := range b.marks {
			m.d.giveEvent(e)
		}
	}
	err := m.giveBack(p, func(*segment) bool { return true })
	p.parked, p.free = nil, [2][]*block{}
	return err
}

// find is the free block that a request of n bytes gets, nil if there is none.
func (p *pool) find(n int) *block {
	list := p.free[large(n)]
	i, _ := slices.BinarySearchFunc(list, n, func(b *block, n int) int {
		if b.n >= n {
			return 1
		}
		return -1
	})
	if i == len(list) {
		return nil
	}
	return list[i]
}

func large(n int) int {
	if n >= largeBytes {
		return 1
	}
	return 0
}

// claim gives a free block out, and cuts off what is more than n bytes.
func (p *pool) claim(b *block, n int) {
	p.unlist(b)
	b.free = false
	if b.n == n {
		return
	}
	rest := &block{seg: b.seg, at: b.at + n, n: b.n - n, below: b, above: b.above}
	if rest.above != nil {
		rest.above.below = rest
	}
	b.n, b.above = n, rest
	p.list(rest)
}

// give makes a block free and joins it with free neighbours.
func (p *pool) give(b *block) {
	if up := b.above; up != nil && up.free {
		p.unlist(up)
		b.join(up)
	}
	if down := b.below; down != nil && down.free {
		p.unlist(down)
		down.join(b)
		b = down
	}
	p.list(b)
}

// join takes the neighbour above in.
func (b *block) join(up *block) {
	b.n += up.n
	if b.above = up.above; b.above != nil {
		b.above.below = b
	}
}

func (p *pool) list(b *block) {
	b.free = true
	l := &p.free[b.seg.large]
	i, _ := slices.BinarySearchFunc(*l, b, before)
	*l = slices.Insert(*l, i, b)
}

func (p *pool) unlist(b *block) {
	b.free = false
	l := &p.free[b.seg.large]
	i, found := slices.BinarySearchFunc(*l, b, before)
	if !found {
		panic("cuda: a free block is not listed")
	}
	*l = slices.Delete(*l, i, i+1)
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
