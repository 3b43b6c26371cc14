// SPDX-License-Identifier: Apache-2.0

// Command gemm writes the assembly of package gemm and its Go declarations.
package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"

	"github.com/lockstep-ml/lockstep/internal/kernels/_asm/assemble"
)

func main() { assemble.Main("gemm", generate) }

// generate writes the kernels to dir, those of each type of elements to two files of their own.
func generate(dir string) error {
	for name, emit := range map[string]func(*build.Context){"kernels": single, "kernels64": double,
		"kernelshalf": halves, "kernelstiles": tiles} {
		file := assemble.New("gemm")
		emit(file.Context)
		file.Before = []func(*ir.File) error{markDots}
		file.After = []func(*ir.File) error{encodeDots, encodeTiles}
		if err := file.Write(dir, name); err != nil {
			return err
		}
	}
	return nil
}

// single emits the kernels for float32.
func single(c *build.Context) {
	for rows := 1; rows <= avx512.mr; rows++ {
		micro(c, avx512, rows)
	}
	for rows := 1; rows <= avx2.mr; rows++ {
		micro(c, avx2, rows)
	}
	for _, f := range []family{avx512, avx2} {
		rows(c, f, false)
		panels(c, f)
		placed(c, f)
		stream(c, f)
		dots(c, f, "")
	}
	lanes(c)
	for _, f := range []family{avx512, avx2} {
		strideds(c, f)
	}
	for _, f := range []family{avx512, avx2} {
		outer(c, f, false)
		outer(c, f, true)
	}
	keeping(c, avx512)
	fence(c)
	gemvHalves(c, avx512)
	gemvColumns(c, avx512)
	gemvColumnsCrowded(c, avx512)
	for _, f := range []family{avx512, avx2} {
		gemvRows(c, f, 1, false)
		gemvRows(c, f, gemvRowsAtOnce, false)
		gemvRows(c, f, gemvRowsAtOnce, true)
		addBlocks(c, f)
	}
	copyRows(c, avx512)
	copyRows(c, avx2)
	copyTall(c, avx512)
	copyTall(c, avx2)
	transpose4(c)
	transpose8(c)
	transpose16(c)
}
