// SPDX-License-Identifier: Apache-2.0

// Command asm writes the assembly of package vecmath and its Go declarations.
//
// It is a module of its own, so that the main module does not depend on avo; the folder's name hides it from ./...
// patterns. Run it by go generate in the folder above. A test of package vecmath fails if its output is not what is
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

// generate writes the assembly, its declarations and the two dispatchers to dir.
func generate(dir string) error {
	c := build.NewContext()
	c.ConstraintExpr("!noasm")
	table := newConstants(c)
	var emitted []kernel
	for _, lanes := range []int{8, 16} {
		g := &generator{Context: c, constants: table, lanes: lanes}
		g.flight = lanes / 4 // as many as the registers hold
		g.exponentials()
		g.activations()
		g.flight = 0
		g.arithmetic()
		g.sums()
		g.norms()
		g.optimizers()
		g.halves()
		g.philox()
		g.pools()
		g.attention()
		emitted = g.emitted
	}
	file, err := c.Result()
	if err != nil {
		return err
	}
	interleave(file)
	broadcast(file)
	if err := pass.Compile.Execute(file); err != nil {
		return err
	}
	files := map[string][]byte{}
	config := printer.Config{Name: "internal/kernels/vecmath/_asm", Pkg: "vecmath"}
	for name, p := range map[string]printer.Printer{
		"kernels_amd64.s":  printer.NewGoAsm(config),
		"kernels_amd64.go": printer.NewStubs(config),
	} {
		if files[name], err = p.Print(file); err != nil {
			return err
		}
	}
	if files["dispatch_amd64.go"], files["dispatch_portable.go"], err = dispatchers(emitted); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
