// SPDX-License-Identifier: Apache-2.0

// Command asm writes the assembly of package gemm and its Go declarations.
//
// It is a module of its own, so that the main module does not depend on avo; the folder's name hides it from ./...
// patterns. Run it by go generate in the folder above. A test of package gemm fails if its output is not what is
// committed.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

func main() {
	dir := flag.String("dir", "..", "folder to write to")
	flag.Parse()
	if err := generate(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "asm:", err)
		os.Exit(1)
	}
}

// generate writes the kernels to dir, those of each type of elements to two files of their own.
func generate(dir string) error {
	for name, emit := range map[string]func(*build.Context){"kernels": single, "kernels64": double,
		"kernelshalf": halves, "kernelstiles": tiles} {
		if err := write(dir, name, emit); err != nil {
			return err
		}
	}
	return nil
}

// write writes what emit emits to NAME_amd64.s and NAME_amd64.go.
func write(dir, name string, emit func(*build.Context)) error {
	c := build.NewContext()
	c.ConstraintExpr("!noasm")
	emit(c)
	file, err := c.Result()
	if err != nil {
		return err
	}
	if err := pass.Compile.Execute(file); err != nil {
		return err
	}
	if err := encodeDots(file); err != nil {
		return err
	}
	if err := encodeTiles(file); err != nil {
		return err
	}
	config := printer.Config{Name: "internal/kernels/gemm/_asm", Pkg: "gemm"}
	for suffix, p := range map[string]printer.Printer{
		"_amd64.s":  printer.NewGoAsm(config),
		"_amd64.go": printer.NewStubs(config),
	} {
		text, err := p.Print(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+suffix), text, 0o644); err != nil {
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
		for rows := 1; rows < len(streamVectors(f)); rows++ {
			stream(c, f, rows)
		}
		for rows := 1; rows < len(dotsVectors(f)); rows++ {
			dots(c, f, rows)
		}
	}
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
	copyTall(c, avx512.mr)
	copyTall(c, avx2.mr)
	transpose4(c)
	transpose8(c)
	transpose16(c)
}
