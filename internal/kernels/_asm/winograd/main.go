// SPDX-License-Identifier: Apache-2.0

// Command winograd writes the assembly of package winograd and its Go declarations.
package main

import (
	"github.com/lockstep-ml/lockstep/internal/kernels/_asm/assemble"
)

func main() { assemble.Main("winograd", generate) }

// generate writes kernels_amd64.s and kernels_amd64.go to dir.
func generate(dir string) error {
	file := assemble.New("winograd")
	half := oneHalf(file.Context)
	for _, f := range []family{{"AVX512", 16}, {"AVX2", 8}} {
		for _, t := range transforms {
			emit(file.Context, f, t, half)
		}
	}
	return file.Write(dir, "kernels")
}
