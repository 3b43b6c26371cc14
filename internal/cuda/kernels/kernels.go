// SPDX-License-Identifier: Apache-2.0

// Package kernels holds the CUDA kernels: as PTX, which a driver compiles for its device when a module is loaded, and
// those that training uses as cubins too, which are compiled for the devices of an architecture.
//
// The sources are the *.cu files; each is a family and becomes one module, so that a program loads the families that it
// uses. archive.zip, which programs embed, has all modules and the cubins. The compiler's version is pinned, and what
// it makes is committed: building Lockstep takes no CUDA. After a change of a source:
//
//	go run ./internal/cuda/kernels/generate --nvcc PATH
//
// With --print FAMILY it prints the PTX that the archive has.
//
// Find names the module of a kernel. The package knows neither drivers nor tensors: internal/backend/cuda launches.
package kernels

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Compiler is the version of nvcc that makes the PTX.
const Compiler = "13.0.88"

// ISA is the version of PTX that the kernels are declared to be: that of CUDA 12.0, whose drivers are numbered from 525
// on. Nothing in them is newer: assemblers refuse that, and so does the test that the PTX is current.
const ISA = "8.0"

// Flags are nvcc's arguments except for the files. The code is for compute capability 8.0 and all later ones. No
// product is fused with an addition unless the source says so: that would be the assembler's choice, which differs by
// device.
var Flags = []string{"-ptx", "-arch=compute_80", "-fmad=false", "-O3", "-std=c++17"}

// Architectures are those that cubins are made for: 80 is compute capability 8.0.
var Architectures = []int{80, 86, 89, 90, 100, 120}

// Assembled reports whether a family has cubins: those that training uses, apart from float64's.
func Assembled(family string) bool {
	return family != "scan" && !strings.HasSuffix(family, "_f64")
}

//go:embed archive.zip
var archive string

// Method is how the archive's files are compressed: by Zstandard, since the cubins of a family have much in common,
// which is too far apart for Deflate.
const Method = zstd.ZipMethodWinZip

// Contents are the parts of a family's file in the archive, in order: its comment, as JSON.
type Contents struct {
	Kernels []string // in the order of the source
	Sum     string   // SHA-256 of the PTX that the cubins were made of
	Parts   []Part
}

// Part is a module.
type Part struct {
	Architecture int // of the cubin; 0: PTX
	Bytes        int
	CRC32        uint32
}

// Family is the kernels of one source file.
type Family struct {
	Name string // of the source, without .cu
	Contents
	file *zip.File
}

// PTX is the module as text.
func (f *Family) PTX() []byte { return f.Cubin(0) }

// Cubin is the module for exactly an architecture, nil if there is none.
func (f *Family) Cubin(architecture int) []byte {
	from := 0
	for _, p := range f.Parts {
		if p.Architecture == architecture {
			return f.content()[from : from+p.Bytes]
		}
		from += p.Bytes
	}
	return nil
}

// For is the cubin for devices of a compute capability, nil if there is none for them.
func (f *Family) For(capability [2]int) []byte {
	if a := f.ArchitectureFor(capability); a != 0 {
		return f.Cubin(a)
	}
	return nil
}

// ArchitectureFor is that of the cubin for devices of a compute capability, 0 if there is none for them: the newest
// with the same first number which is not newer than the device.
func (f *Family) ArchitectureFor(capability [2]int) (best int) {
	for _, p := range f.Parts {
		if a := p.Architecture; a/10 == capability[0] && a%10 <= capability[1] {
			best = max(best, a)
		}
	}
	return best
}

// content decompresses the file, which cannot fail unless the program is damaged.
func (f *Family) content() []byte {
	r, err := f.file.Open()
	if err == nil {
		defer r.Close() //nolint:errcheck // of a reader in memory
		var b []byte
		if b, err = io.ReadAll(r); err == nil {
			return b
		}
	}
	panic(fmt.Errorf("kernels: %s in the archive: %w", f.Name, err))
}

// Families lists all modules by name.
var Families = sync.OnceValue(func() []*Family {
	r, err := zip.NewReader(strings.NewReader(archive), int64(len(archive)))
	if err != nil {
		panic(fmt.Errorf("kernels: the archive: %w", err))
	}
	r.RegisterDecompressor(Method, zstd.ZipDecompressor())
	var families []*Family
	for _, file := range r.File {
		f := &Family{Name: file.Name, file: file}
		if err := json.Unmarshal([]byte(file.Comment), &f.Contents); err != nil {
			panic(fmt.Errorf("kernels: %s in the archive: %w", f.Name, err))
		}
		families = append(families, f)
	}
	return families
})

// OfCubin finds the family and the architecture that a cubin is of, nil if it is none of the archive's.
func OfCubin(cubin []byte) (f *Family, architecture int) {
	sum := crc32.ChecksumIEEE(cubin)
	for _, f := range Families() {
		for _, p := range f.Parts {
			if p.Architecture != 0 && p.CRC32 == sum && bytes.Equal(f.Cubin(p.Architecture), cubin) {
				return f, p.Architecture
			}
		}
	}
	return nil, 0
}

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
