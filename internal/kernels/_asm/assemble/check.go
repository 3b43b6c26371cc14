// SPDX-License-Identifier: Apache-2.0

package assemble

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// variants are the instruction sets of a variant beyond those of every amd64 processor, by the part of a kernel's name.
// The names of sets are avo's.
var variants = map[string][]string{
	"":           {"CMOV", "MMX+", "SSE", "SSE2"},
	"AVX2":       {"AVX", "AVX2", "FMA3", "F16C"},
	"AVX512":     {"AVX", "AVX2", "FMA3", "F16C", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"},
	"AVX512BF16": {"AVX", "AVX2", "FMA3", "F16C", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", BF16},
	"AMX": {"AVX", "AVX2", "FMA3", "F16C", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", BF16, "BMI2", Tiles,
		TilesBF16},
}

// Instruction sets that avo does not know.
const (
	BF16      = "AVX512BF16"
	Tiles     = "AMXTILE"
	TilesBF16 = "AMXBF16"
)

var variantOf = regexp.MustCompile(`AVX512BF16|AVX512|AVX2|AMX`)

// Check returns an error unless every kernel keeps to the instructions of the variant in its name. avo allocates 32
// vector registers whatever a kernel is for, and its list of instruction sets is that of the opcode: a register above
// 15 makes an instruction of AVX2 one of AVX-512.
func Check(file *ir.File) error {
	for _, f := range file.Functions() {
		names := variantOf.FindAllString(f.Name, -1)
		if len(names) > 1 {
			return fmt.Errorf("%s names several variants: %q", f.Name, names)
		}
		variant := ""
		if len(names) == 1 {
			variant = names[0]
		}
		for _, i := range f.Instructions() {
			if err := check(variant, i); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
		}
	}
	return nil
}

// check returns an error unless a variant may use an instruction.
func check(variant string, i *ir.Instruction) error {
	of := "a kernel of " + variant
	if variant == "" {
		of = "a function whose name says no variant"
	}
	for _, set := range i.ISA {
		if !slices.Contains(variants[variant], set) && !slices.Contains(variants[""], set) {
			return fmt.Errorf("%s needs %s, which %s may not use", i.Opcode, set, of)
		}
	}
	if slices.Contains(variants[variant], "AVX512F") {
		return nil
	}
	for _, o := range i.Operands {
		r, ok := o.(reg.Physical)
		if !ok {
			continue
		}
		vector := r.Kind() == reg.KindVector
		if vector && r.PhysicalIndex() > 15 || operand.IsZMM(o) || r.Kind() == reg.KindOpmask {
			return fmt.Errorf("%s with %s is encoded for AVX-512, which %s may not use", i.Opcode, r.Asm(), of)
		}
	}
	return nil
}
