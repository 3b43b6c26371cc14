// SPDX-License-Identifier: Apache-2.0

//go:build (mpi || cuda) && unix

package clib

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Library is a shared library that is open.
type Library struct {
	File   string
	Handle uintptr
}

// Open opens a library by its file, or by a name that the loader looks for. The error is the loader's.
func Open(file string) (Library, error) { return open(file, purego.RTLD_LOCAL) }

// OpenAny opens the first of some files that can be opened. The error is what the loader said of each.
func OpenAny(files ...string) (Library, error) {
	var failed []error
	for _, file := range files {
		lib, err := Open(file)
		if err == nil {
			return lib, nil
		}
		failed = append(failed, err)
	}
	return Library{}, errors.Join(failed...)
}

// OpenGlobal is Open for a library whose own plug-ins look for its symbols.
func OpenGlobal(file string) (Library, error) { return open(file, purego.RTLD_GLOBAL) }

func open(file string, scope int) (Library, error) {
	h, err := purego.Dlopen(file, purego.RTLD_NOW|scope)
	if err != nil {
		return Library{}, fmt.Errorf("%s cannot be opened: %w", file, err)
	}
	return Library{file, h}, nil
}

// Bind finds functions by their names.
func (l Library) Bind(table map[string]*uintptr) error {
	for name, f := range table {
		var err error
		if *f, err = purego.Dlsym(l.Handle, name); err != nil {
			return fmt.Errorf("%s has no function %s", l.File, name)
		}
	}
	return nil
}

// Call calls a function with arguments of up to a word each, and returns its first word. What arguments point to must
// not move: see Address.
func Call(f uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(f, args...)
	return r
}

// Address is where x lies. It makes the compiler put x on the heap: a stack moves when it grows, and nobody would
// correct the number. The caller keeps x alive until the call that is given the address has returned.
func Address[T any](x *T) uintptr {
	if never {
		heap = x
	}
	return uintptr(unsafe.Pointer(x))
}

var (
	never bool
	heap  any
)

// Pointer makes a Go pointer of an address in C's memory.
func Pointer(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

// Text is C's string at an address; "" at 0.
func Text(at uintptr) string {
	if at == 0 {
		return ""
	}
	p, n := Pointer(at), 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// Cut is the string of C in a buffer, up to the zero that ends it.
func Cut(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// Setenv sets a variable of C's environment, which Go's os.Setenv does not change without cgo. A variable that is set
// is kept unless replace is true.
func Setenv(name, value string, replace bool) error {
	setenv, err := purego.Dlsym(purego.RTLD_DEFAULT, "setenv")
	if err != nil {
		return err
	}
	n, v, how := append([]byte(name), 0), append([]byte(value), 0), uintptr(0)
	if replace {
		how = 1
	}
	if code := int32(Call(setenv, Address(&n[0]), Address(&v[0]), how)); code != 0 {
		return fmt.Errorf("setenv of %s returned %d", name, code)
	}
	return nil
}
