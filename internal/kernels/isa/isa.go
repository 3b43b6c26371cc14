// SPDX-License-Identifier: Apache-2.0

// Package isa reads machine code of amd64 and reports which processor features it needs.
//
// A kernel of a variant may use only the features that the variant asks the processor for. A test that runs the kernel
// does not show this on a machine that has more. This package decodes prefixes, maps and opcodes instead, and needs no
// such machine. It covers the instructions that kernels use; any other is an error.
//
// It is NOT a disassembler: it does not print instructions and knows operands only as far as their length.
package isa

import (
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// Features beyond those of package kernels. No kernel may need them.
const (
	osxsave    kernels.Feature = "OSXSAVE"
	bmi1       kernels.Feature = "BMI1"
	lzcnt      kernels.Feature = "LZCNT"
	popcnt     kernels.Feature = "POPCNT"
	sse3       kernels.Feature = "SSE3"
	avxVNNI    kernels.Feature = "AVX_VNNI"
	avx512VNNI kernels.Feature = "AVX512_VNNI"
	avx512VBMI kernels.Feature = "AVX512_VBMI"
	amxInt8    kernels.Feature = "AMX_INT8"
)

// baseline stands for what every amd64 processor has.
const baseline kernels.Feature = ""

// Needs returns the features that a function's code needs beyond those of every amd64 processor, sorted. The error
// gives the offset and the bytes of an instruction that this package does not know.
func Needs(code []byte) ([]kernels.Feature, error) {
	found := map[kernels.Feature]bool{}
	for at := 0; at < len(code); {
		i, err := decode(code[at:])
		if err != nil {
			return nil, fmt.Errorf("at byte %d: % x: %w", at, code[at:min(len(code), at+15)], err)
		}
		for _, f := range i.needs {
			found[f] = true
		}
		at += i.length
	}
	delete(found, baseline)
	return slices.Sorted(maps.Keys(found)), nil
}

// instruction is as much of one as its length and its features depend on.
type instruction struct {
	length int
	needs  []kernels.Feature
}

// opcode is an instruction's place in the tables.
type opcode struct {
	encoding encoding
	table    int  // opcode map: 0 one byte, 1 0F, 2 0F38, 3 0F3A
	prefix   byte // 0, 0x66, 0xF3 or 0xF2, as a legacy prefix or as the field pp
	code     byte
	wide     bool // the bit W
	length   int  // of vectors in bits; 0: legacy
	modrm    byte // if the opcode has one
}

type encoding int

const (
	legacy encoding = iota
	vex
	evex
)

// register reports whether the r/m operand is a register.
func (o *opcode) register() bool { return o.modrm >= 0xc0 }

// group is the opcode's extension in the reg field of ModRM.
func (o *opcode) group() byte { return o.modrm >> 3 & 7 }

// reader reads the bytes of one instruction.
type reader struct {
	code []byte
	at   int
}

// next returns the next byte; after the end it panics with errShort.
func (r *reader) next() byte {
	if r.at >= len(r.code) {
		panic(errShort)
	}
	r.at++
	return r.code[r.at-1]
}

type decodeError string

func (e decodeError) Error() string { return string(e) }

const (
	errShort   = decodeError("the function ends within an instruction")
	errUnknown = decodeError("unknown instruction")
)

// decode decodes the instruction that code begins with.
func decode(code []byte) (i instruction, err error) {
	defer func() {
		if e, ok := recover().(decodeError); ok {
			err = e
		}
	}()
	r := &reader{code: code}
	o, operand := prefixes(r)
	needs, immediate, modrm := o.look(r)
	if modrm {
		r.memory(o.modrm)
	}
	if immediate == operandSized {
		immediate = operand
	}
	for range immediate {
		r.next()
	}
	return instruction{r.at, needs}, nil
}

// prefixes reads everything before the opcode, and the opcode. operand is the size of an immediate that depends on
// prefixes.
func prefixes(r *reader) (o *opcode, operand int) {
	o, operand = &opcode{}, 4
	b := r.next()
	for ; ; b = r.next() {
		switch b {
		case 0x66:
			operand = 2
			if o.prefix == 0 {
				o.prefix = b
			}
		case 0xf2, 0xf3:
			o.prefix = b
		case 0x2e, 0x3e, 0xf0, 0x64, 0x65: // segments, hints and LOCK
		default:
			if b>>4 == 4 { // REX
				if o.wide = b>>3&1 == 1; o.wide {
					operand = 4
				}
				b = r.next()
			}
			o.readOpcode(r, b)
			return o, operand
		}
	}
}

// readOpcode reads the escape or the prefix of vector instructions that begins with b, and the opcode.
func (o *opcode) readOpcode(r *reader, b byte) {
	prefix := [4]byte{0, 0x66, 0xf3, 0xf2}
	switch b {
	case 0x0f:
		o.table, b = 1, r.next()
		switch b {
		case 0x38:
			o.table, b = 2, r.next()
		case 0x3a:
			o.table, b = 3, r.next()
		}
		o.code = b
	case 0xc5:
		p := r.next()
		o.encoding, o.table, o.prefix, o.length = vex, 1, prefix[p&3], 128<<(p>>2&1)
		o.code = r.next()
	case 0xc4:
		m, p := r.next(), r.next()
		o.encoding, o.table, o.prefix, o.length = vex, int(m&31), prefix[p&3], 128<<(p>>2&1)
		o.wide, o.code = p>>7 == 1, r.next()
	case 0x62:
		m, p, l := r.next(), r.next(), r.next()
		o.encoding, o.table, o.prefix, o.length = evex, int(m&7), prefix[p&3], 128<<(l>>5&3)
		o.wide, o.code = p>>7 == 1, r.next()
		if l>>4&1 == 1 && r.at < len(r.code) && r.code[r.at] >= 0xc0 {
			o.length = 512 // of registers: the field is a mode of rounding
		}
	default:
		o.code = b
	}
}

// memory reads what follows ModRM: SIB and displacement.
func (r *reader) memory(modrm byte) {
	mode, rm := modrm>>6, modrm&7
	if mode == 3 {
		return
	}
	displacement := []int{0, 1, 4}[mode]
	if rm == 4 {
		if base := r.next() & 7; mode == 0 && base == 5 {
			displacement = 4
		}
	} else if mode == 0 && rm == 5 { // relative to the instruction pointer
		displacement = 4
	}
	for range displacement {
		r.next()
	}
}

// operandSized is an immediate of 4 bytes, or of 2 after the prefix 66.
const operandSized = -1

// look finds the instruction in the tables. It reads ModRM if there is one.
func (o *opcode) look(r *reader) (needs []kernels.Feature, immediate int, modrm bool) {
	f := baseline
	switch o.encoding {
	case legacy:
		if modrm = o.hasModRM(); modrm {
			o.modrm = r.next()
		}
		f, immediate = o.legacy()
	case vex:
		if modrm = o.table != 1 || o.code != 0x77; modrm { // VZEROUPPER
			o.modrm = r.next()
		}
		f = o.vex()
	case evex:
		modrm, o.modrm = true, r.next()
		f = o.evex()
		if o.length < 512 && !o.scalar() {
			needs = append(needs, kernels.FeatureAVX512VL)
		}
		needs = append(needs, kernels.FeatureAVX512F)
	}
	if o.encoding != legacy && o.immediateByte() {
		immediate = 1
	}
	return append(needs, f), immediate, modrm
}

// immediateByte reports whether a vector instruction ends with a byte of its own.
func (o *opcode) immediateByte() bool {
	if o.table == 3 {
		return true
	}
	return o.table == 1 && (o.code >= 0x70 && o.code <= 0x73 || o.code == 0xc2 || o.code >= 0xc4 && o.code <= 0xc6)
}
