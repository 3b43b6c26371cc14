// SPDX-License-Identifier: Apache-2.0

// Package kernels chooses which variant of the CPU kernels runs: portable Go, AVX2 with FMA, AVX-512, or AVX-512 with
// the matrix unit AMX.
//
// Each kernel package (gemm, …) has a generic Go version that is compiled everywhere and is the oracle for the others;
// assembly exists on amd64 unless the build tag noasm removes it. The choice is made once for the whole process, since
// two variants may round differently: ranks that must agree bit for bit compare [Active] when they meet. The
// environment variable LOCKSTEP_KERNELS forces a variant.
//
// It is NOT a collection of kernels, and it does not choose per operation or per shape.
package kernels

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// EnvVar names the environment variable that forces a variant: generic, avx2, avx512 or amx. Empty or unset means the
// best available one.
const EnvVar = "LOCKSTEP_KERNELS"

// Variant is one set of instructions that kernels are written for. Variants are ordered: a later one is preferred.
type Variant uint8

// The variants, from portable to preferred.
const (
	Generic Variant = iota // portable Go, everywhere
	AVX2                   // amd64 with AVX2, FMA and F16C
	AVX512                 // amd64 with AVX-512 F, BW, DQ and VL
	AMX                    // the same with tiles and their products of bfloat16, for large matrix products
	numVariants
)

var variantNames = [numVariants]string{"generic", "avx2", "avx512", "amx"}

// String returns the variant's name as [EnvVar] spells it.
func (v Variant) String() string {
	if v < numVariants {
		return variantNames[v]
	}
	return fmt.Sprintf("variant(%d)", uint8(v))
}

// Parse is the inverse of String; the error names what was given and what is possible.
func Parse(name string) (Variant, error) {
	for v, known := range variantNames {
		if name == known {
			return Variant(v), nil
		}
	}
	return 0, fmt.Errorf("kernels: unknown variant %q: want one of %s", name, strings.Join(variantNames[:], ", "))
}

// Compiled returns the variants that this binary contains, in ascending order. The processor may lack some of them.
func Compiled() []Variant { return append([]Variant(nil), compiled...) }

// Available returns the variants that this binary contains and this processor runs, in ascending order; Generic is
// always the first.
func Available() []Variant {
	var list []Variant
	for _, v := range compiled {
		if len(Missing(v)) == 0 {
			list = append(list, v)
		}
	}
	return list
}

// Missing returns the processor features that v needs and this processor (or its operating system) lacks; it is empty
// for a variant that can run.
func Missing(v Variant) []string { return missing(v) }

// check returns an error unless v can run here.
func check(v Variant) error {
	for _, c := range compiled {
		if c != v {
			continue
		}
		if lacking := missing(v); len(lacking) > 0 {
			return fmt.Errorf("kernels: variant %s is not available: the processor lacks %s (available: %s)",
				v, strings.Join(lacking, ", "), names(Available()))
		}
		return nil
	}
	return fmt.Errorf("kernels: variant %s is not available: it is not part of this build (available: %s)", v,
		names(Available()))
}

func names(list []Variant) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = v.String()
	}
	return strings.Join(parts, ", ")
}

// choose returns the variant that the environment asks for, or the best available one if it asks for none.
func choose(env string) (Variant, error) {
	if env == "" {
		list := Available()
		return list[len(list)-1], nil
	}
	v, err := Parse(env)
	if err == nil {
		err = check(v)
	}
	if err != nil {
		return 0, fmt.Errorf("%s=%s: %w", EnvVar, env, err)
	}
	return v, nil
}

// initial is the choice made from the environment at first use.
var initial = sync.OnceValues(fromEnvironment)

func fromEnvironment() (Variant, error) { return choose(os.Getenv(EnvVar)) }

// active is 1 + the variant of the first use, or of Force; 0 before. Kernels ask for each row.
var active atomic.Uint32

// Init reports whether [EnvVar] is empty or names a variant that can run here; the error says what was given and what
// is available. A program calls it once at its start, so that the mistake is a message to its user and not a panic of
// the first kernel.
func Init() error {
	_, err := initial()
	return err
}

// Active returns the variant that all kernels of this process run. It panics with Init's error if that one is not nil:
// running something else than what was asked for would be worse.
func Active() Variant {
	if v := active.Load(); v != 0 {
		return Variant(v - 1)
	}
	return settle()
}

// Vectors returns the variant of the kernels that work on vectors: AVX512 where [Active] is AMX, whose tiles do nothing
// but multiply matrices.
func Vectors() Variant { return min(Active(), AVX512) }

// settle makes the environment's choice the active variant.
func settle() Variant {
	v, err := initial()
	if err != nil {
		panic(err)
	}
	active.CompareAndSwap(0, uint32(v)+1)
	return v
}

// Force makes v the active variant until restore is called; an error if v cannot run here. It exists for tests and
// benchmarks (see package kernelstest): nothing else may compute meanwhile, for one operation could then mix variants.
func Force(v Variant) (restore func(), err error) {
	if err := check(v); err != nil {
		return nil, err
	}
	previous := active.Swap(uint32(v) + 1)
	return func() { active.Store(previous) }, nil
}
