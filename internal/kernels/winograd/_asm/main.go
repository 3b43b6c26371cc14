// SPDX-License-Identifier: Apache-2.0

// Command asm writes the assembly of package winograd and its Go declarations.
//
// It is a module of its own, so that the main module does not depend on avo; the folder's name hides it from ./...
// patterns. Run it by go generate in the folder above. A test of package winograd fails if its output is not what is
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

// generate writes kernels_amd64.s and kernels_amd64.go to dir.
func generate(dir string) error {
	c := build.NewContext()
	c.ConstraintExpr("!noasm")
	half := oneHalf(c)
	for _, f := range []family{{"AVX512", 16}, {"AVX2", 8}} {
		for _, t := range transforms {
			emit(c, f, t, half)
		}
	}
	file, err := c.Result()
	if err != nil {
		return err
	}
	if err := pass.Compile.Execute(file); err != nil {
		return err
	}
	config := printer.Config{Name: "internal/kernels/winograd/_asm", Pkg: "winograd"}
	for name, p := range map[string]printer.Printer{
		"kernels_amd64.s":  printer.NewGoAsm(config),
		"kernels_amd64.go": printer.NewStubs(config),
	} {
		text, err := p.Print(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
