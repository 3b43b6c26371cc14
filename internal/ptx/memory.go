// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
)

// An address of global memory is a window number and an offset within the window. Each allocation begins a window, so
// that an access beyond its end cannot reach another one, and numbers are not used again, so that an access after Free
// is seen for as long as the memory exists.
const (
	windowBits   = 32
	firstAddress = 1 << windowBits
)

// Bytes of a shadow say what is known about the byte of memory at the same place.
const (
	undefinedByte = 0
	definedByte   = 1
	inFlightByte  = 2 // cp.async has not been waited for
	gapByte       = 3 // between two variables of shared memory

	defined4 = 0x01010101
	defined8 = 0x0101010101010101
)

// allocation is a range of global memory.
type allocation struct {
	base, size uint64
	data       []byte
	shadow     []byte
	readonly   bool
	name       string // of a module's variable
	freed      atomic.Bool
}

func (a *allocation) String() string {
	if a.name != "" {
		return fmt.Sprintf("variable %s (%d bytes at %#x)", a.name, a.size, a.base)
	}
	return fmt.Sprintf("the allocation of %d bytes at %#x", a.size, a.base)
}

// Memory is the global memory of one device. It may be used from several goroutines; as on a device, it is for the
// user to keep copies and kernels apart that touch the same bytes.
type Memory struct {
	windows atomic.Pointer[[]*allocation] // by window number; replaced when it grows

	mutex   sync.Mutex
	limit   int64
	used    int64
	modules map[*Module]map[string]*allocation
	stripes [64]sync.Mutex // for atomics
}

// NewMemory makes a device memory of limit bytes.
func NewMemory(limit int64) *Memory {
	m := &Memory{limit: limit, modules: map[*Module]map[string]*allocation{}}
	windows := make([]*allocation, 1, 256)
	m.windows.Store(&windows)
	return m
}

// Alloc reserves n bytes and returns their address, a multiple of 256. The contents are undefined: a kernel that reads
// them before something is written faults. An address is never handed out twice.
func (m *Memory) Alloc(n int) (uint64, error) {
	if n < 0 {
		return 0, fmt.Errorf("ptx: allocation of %d bytes: the size must not be negative", n)
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	a, err := m.alloc(n, "")
	if err != nil {
		return 0, err
	}
	return a.base, nil
}

func (m *Memory) alloc(n int, name string) (*allocation, error) {
	if int64(n) > m.limit-m.used {
		return nil, fmt.Errorf("ptx: out of memory: %d bytes wanted, %d of %d are in use", n, m.used, m.limit)
	}
	windows := *m.windows.Load()
	a := &allocation{base: uint64(len(windows)) << windowBits, size: uint64(n), data: make([]byte, n),
		shadow: make([]byte, n), name: name}
	for range uint64(n)>>windowBits + 1 {
		windows = append(windows, a)
	}
	m.windows.Store(&windows)
	m.used += int64(n)
	return a, nil
}

// find returns the allocation whose window holds the address, freed or not; nil if there is none.
func (m *Memory) find(addr uint64) *allocation {
	windows := *m.windows.Load()
	if w := addr >> windowBits; w < uint64(len(windows)) {
		return windows[w]
	}
	return nil
}

// Free gives the memory at addr back, which Alloc returned. Freeing it twice is an error, as is another address.
func (m *Memory) Free(addr uint64) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	a := m.find(addr)
	switch {
	case a == nil || a.base != addr || a.name != "":
		return fmt.Errorf("ptx: free of %#x: no allocation begins there", addr)
	case a.freed.Load():
		return fmt.Errorf("ptx: free of %#x: it was freed before", addr)
	}
	tomb := &allocation{base: a.base, size: a.size}
	tomb.freed.Store(true)
	a.freed.Store(true)
	old := *m.windows.Load()
	windows := make([]*allocation, len(old), cap(old))
	copy(windows, old)
	for w := addr >> windowBits; w < uint64(len(windows)) && windows[w] == a; w++ {
		windows[w] = tomb
	}
	m.windows.Store(&windows)
	m.used -= int64(a.size)
	return nil
}

// Used is the number of bytes allocated at the moment.
func (m *Memory) Used() int64 {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.used
}

// Limit is the number of bytes that NewMemory was given.
func (m *Memory) Limit() int64 { return m.limit }

// span finds n bytes at an address, for the host.
func (m *Memory) span(what string, addr uint64, n int) (data, shadow []byte, err error) {
	a := m.find(addr)
	switch {
	case n == 0:
		return nil, nil, nil
	case n < 0:
		return nil, nil, fmt.Errorf("ptx: %s of %d bytes: the size must not be negative", what, n)
	case a == nil:
		return nil, nil, fmt.Errorf("ptx: %s of %d bytes at %#x: nothing is allocated there", what, n, addr)
	case a.freed.Load():
		return nil, nil, fmt.Errorf("ptx: %s of %d bytes at %#x: %v was freed", what, n, addr, a)
	}
	off := addr - a.base
	if off > a.size || uint64(n) > a.size-off {
		return nil, nil, fmt.Errorf("ptx: %s of %d bytes at %#x: byte %d of %v", what, n, addr, off, a)
	}
	return a.data[off : off+uint64(n) : off+uint64(n)], a.shadow[off : off+uint64(n) : off+uint64(n)], nil
}

// Write copies p to addr and makes the bytes defined.
func (m *Memory) Write(addr uint64, p []byte) error {
	data, shadow, err := m.span("write", addr, len(p))
	copy(data, p)
	fill(shadow, definedByte)
	return err
}

// Read copies from addr to p. Undefined bytes are zeros or what was there before.
func (m *Memory) Read(p []byte, addr uint64) error {
	data, _, err := m.span("read", addr, len(p))
	copy(p, data)
	return err
}

// Copy copies n bytes from one place of the device to another; undefined bytes stay undefined.
func (m *Memory) Copy(dst, src uint64, n int) error {
	from, fromShadow, err := m.span("copy from the device", src, n)
	if err != nil {
		return err
	}
	to, toShadow, err := m.span("copy to the device", dst, n)
	copy(to, from)
	copy(toShadow, fromShadow)
	return err
}

// Bytes is the memory itself, n bytes at addr: for code that plays a library's part. Writing to it defines nothing;
// see Define. It must not be kept beyond Free.
func (m *Memory) Bytes(addr uint64, n int) ([]byte, error) {
	data, _, err := m.span("access", addr, n)
	return data, err
}

// Define makes n bytes at addr defined, as if they had been written.
func (m *Memory) Define(addr uint64, n int) error {
	_, shadow, err := m.span("define", addr, n)
	fill(shadow, definedByte)
	return err
}

// Defined reports whether all of n bytes at addr are defined.
func (m *Memory) Defined(addr uint64, n int) (bool, error) {
	_, shadow, err := m.span("access", addr, n)
	for _, s := range shadow {
		if s != definedByte {
			return false, err
		}
	}
	return true, err
}

// Undefine makes n bytes at addr undefined, as if they had just been allocated, and fills them with a pattern that is
// a NaN in every float format.
func (m *Memory) Undefine(addr uint64, n int) error {
	data, shadow, err := m.span("undefine", addr, n)
	fill(data, 0xff)
	fill(shadow, undefinedByte)
	return err
}

func fill(p []byte, v byte) {
	if len(p) == 0 {
		return
	}
	p[0] = v
	for n := 1; n < len(p); n *= 2 {
		copy(p[n:], p[:n])
	}
}

// Load allocates the module's .global and .const variables in mem and initialises them. Loading twice does nothing; a
// launch loads the module if nobody has. Variables live as long as mem.
func (m *Module) Load(mem *Memory) error {
	_, err := m.load(mem)
	return err
}

func (m *Module) load(mem *Memory) (map[string]*allocation, error) {
	mem.mutex.Lock()
	defer mem.mutex.Unlock()
	if loaded := mem.modules[m]; loaded != nil {
		return loaded, nil
	}
	loaded := map[string]*allocation{}
	for _, v := range m.variables {
		if v.kind != symbolGlobal && v.kind != symbolConst {
			continue
		}
		if v.extn {
			return nil, fmt.Errorf("ptx: line %d: variable %s is external: modules are not linked", v.line, v.name)
		}
		a, err := mem.alloc(v.size, v.name)
		if err != nil {
			return nil, err
		}
		a.readonly = v.kind == symbolConst
		loaded[v.name] = a
	}
	for _, v := range m.variables {
		a := loaded[v.name]
		if a == nil {
			continue
		}
		fill(a.shadow, definedByte) // variables without initialiser are zero
		for _, i := range v.init {
			value := i.value
			if i.name != "" {
				target := loaded[i.name]
				if target == nil {
					return nil,
						fmt.Errorf("ptx: line %d: %s is initialised with the address of %s, which is no variable",
							v.line, v.name, i.name)
				}
				value += target.base
			}
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], value)
			if i.offset+i.size > len(a.data) || i.size > 8 {
				return nil, fmt.Errorf("ptx: line %d: the initialiser of %s is too long", v.line, v.name)
			}
			copy(a.data[i.offset:], b[:i.size])
		}
	}
	mem.modules[m] = loaded
	return loaded, nil
}

// Symbol is the address and the size of a .global or .const variable in mem, which it loads into mem if need be.
func (m *Module) Symbol(mem *Memory, name string) (addr uint64, size int, err error) {
	loaded, err := m.load(mem)
	if err != nil {
		return 0, 0, err
	}
	if a := loaded[name]; a != nil {
		return a.base, int(a.size), nil
	}
	var names []string
	for n := range loaded {
		names = append(names, n)
	}
	return 0, 0, fmt.Errorf("ptx: no variable %q: the module has %s", name, nearest(name, names))
}
