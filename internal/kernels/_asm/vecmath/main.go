// SPDX-License-Identifier: Apache-2.0

// Command vecmath writes the assembly of package vecmath and its Go declarations.
package main

import (
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/ir"

	"github.com/lockstep-ml/lockstep/internal/kernels/_asm/assemble"
)

func main() { assemble.Main("vecmath", generate) }

// generate writes the assembly, its declarations and the two dispatchers to dir.
func generate(dir string) error {
	file := assemble.New("vecmath")
	table := newConstants(file.Context)
	var emitted []kernel
	chosen := ways{}
	for _, lanes := range []int{8, 16} {
		g := &generator{Context: file.Context, constants: table, lanes: lanes, ways: chosen}
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
	file.Before = []func(*ir.File) error{interleave, chosen.choose, broadcast, alignShort}
	if err := file.Write(dir, "kernels"); err != nil {
		return err
	}
	amd64, portable, err := dispatchers(emitted)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"dispatch_amd64.go": amd64, "dispatch_portable.go": portable} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
