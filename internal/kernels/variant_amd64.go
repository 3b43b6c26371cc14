// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package kernels

import "golang.org/x/sys/cpu"

var compiled = []Variant{Generic, AVX2, AVX512, AMX}

// missing consults cpuid through x/sys/cpu, which also checks that the operating system saves the wide registers.
func missing(v Variant) []string {
	type feature struct {
		name    string
		present bool
	}
	var needed []feature
	switch v {
	case AVX2:
		needed = []feature{{"AVX2", cpu.X86.HasAVX2}, {"FMA", cpu.X86.HasFMA}, {"F16C", cpu.X86.HasF16C}}
	case AVX512, AMX:
		needed = []feature{{"AVX2", cpu.X86.HasAVX2}, {"FMA", cpu.X86.HasFMA}, {"F16C", cpu.X86.HasF16C},
			{"AVX512F", cpu.X86.HasAVX512F},
			{"AVX512BW", cpu.X86.HasAVX512BW}, {"AVX512DQ", cpu.X86.HasAVX512DQ}, {"AVX512VL", cpu.X86.HasAVX512VL}}
	}
	if v == AMX {
		needed = append(needed, feature{"AVX512_BF16", cpu.X86.HasAVX512BF16}, feature{"AMX_TILE", cpu.X86.HasAMXTile},
			feature{"AMX_BF16", cpu.X86.HasAMXBF16},
			feature{"leave of the operating system to use tiles", tilesAllowed()})
	}
	var lacking []string
	for _, f := range needed {
		if !f.present {
			lacking = append(lacking, f.name)
		}
	}
	return lacking
}
