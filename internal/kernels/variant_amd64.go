// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package kernels

import (
	"runtime"

	"golang.org/x/sys/cpu"
)

var compiled = []Variant{Generic, AVX2, AVX512, AMX}

// host is the processor that runs this program.
var host = processor{cpuid, xcr0, tilesAllowed}

func missing(v Variant) []string { return host.missing(v) }

// Has reports whether this processor has a feature and the operating system saves its registers.
func Has(f Feature) bool { return host.has(f) }

// cpuid executes the instruction of that name.
//
//go:noescape
func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

// xgetbv executes the instruction of that name for XCR0.
//
//go:noescape
func xgetbv() (eax, edx uint32)

// xcr0 returns which registers the operating system saves. Darwin sets the bits of AVX-512 when a thread first uses it;
// golang.org/x/sys/cpu knows where.
func xcr0() uint64 {
	low, high := xgetbv()
	state := uint64(high)<<32 | uint64(low)
	if runtime.GOOS == "darwin" && cpu.X86.HasAVX512F {
		state |= wideState
	}
	return state
}
