// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// library is a shared library that is open.
type library struct {
	file   string
	handle uintptr
}

func load(file string) (library, error) {
	h, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return library{}, fmt.Errorf("%s cannot be opened: %w", file, err)
	}
	return library{file, h}, nil
}

// symbols finds functions.
func (l library) symbols(table map[string]*uintptr) error {
	for name, f := range table {
		var err error
		if *f, err = purego.Dlsym(l.handle, name); err != nil {
			return fmt.Errorf("%s has no function %s", l.file, name)
		}
	}
	return nil
}

// address is where x lies: on the heap, where it stays. The caller keeps it alive until the call has returned.
func address[T any](x *T) uintptr {
	if never {
		heap = x
	}
	return uintptr(unsafe.Pointer(x))
}

// never and heap make the compiler put what address is given on the heap: stacks move when they grow.
var (
	never bool
	heap  any
)

// invoke calls a C function.
func invoke(f uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(f, args...)
	return r
}

// pointer makes a Go pointer of an address of C's memory.
func pointer(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

// textAt is C's string at an address.
func textAt(at uintptr) string {
	p := (*byte)(pointer(at))
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// cut is a C string in a Go buffer.
func cut(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
