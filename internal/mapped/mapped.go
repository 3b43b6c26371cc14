// SPDX-License-Identifier: Apache-2.0

// Package mapped turns faults in mapped files into errors. Where a file was cut short, or its disk fails, touching its
// memory raises a signal that ends the process without naming the file. Code that maps a file registers it, and code
// that computes on mapped memory does so within [Guard].
//
// It is NOT for data that are read once: reading a file by position returns errors.
package mapped

import (
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// FaultError says which file could not be read or written through its memory.
type FaultError struct {
	File   string
	Offset int64 // bytes from its beginning
}

// Error implements error.
func (e *FaultError) Error() string {
	return fmt.Sprintf("%s: its memory at byte %d cannot be accessed: the file was cut short, or its disk failed or "+
		"is full", e.File, e.Offset)
}

// file is a registered file.
type file struct {
	begin, end uintptr
	name       string
}

var (
	count atomic.Int32
	mu    sync.Mutex
	files []file
)

// Register says that memory, which is not empty, is the file of that name.
func Register(memory []byte, name string) {
	begin := uintptr(unsafe.Pointer(&memory[0]))
	mu.Lock()
	defer mu.Unlock()
	files = append(files, file{begin, begin + uintptr(len(memory)), name})
	count.Store(int32(len(files)))
}

// Private is a file that is mapped into memory: pages that are written become the process's own, and the file stays
// unchanged. The garbage collector gives it up, when nothing refers to it any more; whoever has a part of Memory must
// refer to it. A file that was renamed or removed stays mapped. One that is cut short is a fault, see Guard. If one is
// written in place, the pages that nobody has written change.
type Private struct{ Memory []byte }

// Zeros writes n bytes of zeros to a file that is to be mapped, which reserves them on any file system.
func Zeros(w io.Writer, n int) error {
	zeros := make([]byte, 1<<20)
	for n > 0 {
		k, err := w.Write(zeros[:min(n, len(zeros))])
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// Forget undoes Register, before memory is unmapped.
func Forget(memory []byte) {
	begin := uintptr(unsafe.Pointer(&memory[0]))
	mu.Lock()
	defer mu.Unlock()
	files = slices.DeleteFunc(files, func(f file) bool { return f.begin == begin })
	count.Store(int32(len(files)))
}

// Any reports whether a file is registered. It costs a load.
func Any() bool { return count.Load() > 0 }

// Holds reports whether memory begins in a registered file.
func Holds(memory []byte) bool {
	return len(memory) > 0 && Any() && find(uintptr(unsafe.Pointer(&memory[0]))) != nil
}

// Guard calls f and returns a fault in the memory of a registered file, a *FaultError, as an error; other panics
// continue. Goroutines that f starts must set debug.SetPanicOnFault themselves and hand their panics on.
func Guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			fault := faultOf(p)
			if fault == nil {
				panic(p)
			}
			err = fault
		}
	}()
	f()
	return nil
}

// faultOf returns the fault that a panic is, nil if it is none of a registered file.
func faultOf(p any) *FaultError {
	if at, ok := p.(interface{ Addr() uintptr }); ok { // the runtime's, see debug.SetPanicOnFault
		return find(at.Addr())
	}
	return nil
}

// find returns what a fault at an address is, nil if no registered file is there.
func find(at uintptr) *FaultError {
	mu.Lock()
	defer mu.Unlock()
	for _, f := range files {
		if f.begin <= at && at < f.end {
			return &FaultError{File: f.name, Offset: int64(at - f.begin)}
		}
	}
	return nil
}
