// SPDX-License-Identifier: Apache-2.0

// Package kernels holds the CUDA kernels as PTX, which a driver compiles for its device when a module is loaded.
//
// The sources are the *.cu files; each is a family and becomes one module, ptx/*.ptx, so that a program compiles the
// families that it uses. The compiler's version is pinned, and what it makes is committed: building Lockstep takes no
// CUDA. After a change of a source:
//
//	go run ./internal/cuda/kernels/generate --nvcc PATH
//
// Find names the module of a kernel. The package knows neither drivers nor tensors: internal/backend/cuda launches.
package kernels

import (
	"embed"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"sync"
)

// Compiler is the version of nvcc that makes the PTX.
const Compiler = "13.0.88"

// ISA is the version of PTX that the kernels are declared to be: that of CUDA 12.0, whose drivers are numbered from 525
// on. Nothing in them is newer: assemblers refuse that, and so does the test that the PTX is current.
const ISA = "8.0"

// Flags are nvcc's arguments but for the files. The code is for compute capability 8.0 and all later ones. No product
// is fused with an addition unless the source says so: that would be the assembler's choice, which differs by device.
var Flags = []string{"-ptx", "-arch=compute_80", "-fmad=false", "-O3", "-std=c++17"}

//go:embed ptx/*.ptx
var files embed.FS

// Family is a module: the kernels of one source file.
type Family struct {
	Name    string // of the source, without .cu
	PTX     []byte
	Kernels []string // in the order of the file
}

var entry = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)

// Families lists all modules by name.
var Families = sync.OnceValue(func() []*Family {
	names, err := fs.Glob(files, "ptx/*.ptx")
	if err != nil {
		panic(err)
	}
	var families []*Family
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err)
		}
		f := &Family{Name: strings.TrimSuffix(path.Base(name), ".ptx"), PTX: text}
		for _, m := range entry.FindAllSubmatch(text, -1) {
			f.Kernels = append(f.Kernels, string(m[1]))
		}
		families = append(families, f)
	}
	return families
})

var byKernel = sync.OnceValue(func() map[string]*Family {
	table := map[string]*Family{}
	for _, f := range Families() {
		for _, k := range f.Kernels {
			if other := table[k]; other != nil {
				panic("kernels: " + k + " is in " + other.Name + " and " + f.Name)
			}
			table[k] = f
		}
	}
	return table
})

// Find returns the family that a kernel is in, nil if there is no such kernel.
func Find(kernel string) *Family { return byKernel()[kernel] }
