// SPDX-License-Identifier: Apache-2.0

// Command blockwise writes the assembly of package blockwise and its Go declarations.
package main

import (
	"github.com/lockstep-ml/lockstep/internal/kernels/_asm/assemble"
)

func main() { assemble.Main("blockwise", generate) }

// generate writes kernels_amd64.s and kernels_amd64.go to dir.
func generate(dir string) error {
	file := assemble.New("blockwise")
	dequantize(file.Context)
	quantize(file.Context)
	for _, rows := range []int{1, 2, 4, 8} {
		productQ8(file.Context, rows)
	}
	int8Blocks(file.Context)
	return file.Write(dir, "kernels")
}
