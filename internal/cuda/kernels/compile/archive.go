// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
)

var (
	entry = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)
	// spilt is what the assembler says of a kernel that has too few registers.
	spilt = regexp.MustCompile(
		`Compiling entry function '(\w+)' for '(\w+)'[^\n]*\n[^\n]*\n[^\n]*? ([1-9]\d*) bytes spill`)
)

// Assemble makes a cubin of PTX for the devices of an architecture, with the assembler beside nvcc. It is an error if a
// kernel needs more registers than there are.
func Assemble(ctx context.Context, nvcc string, ptx []byte, architecture int) ([]byte, error) {
	dir, err := os.MkdirTemp("", "cubin")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	text, cubin := filepath.Join(dir, "a.ptx"), filepath.Join(dir, "a.cubin")
	if err := os.WriteFile(text, ptx, 0o600); err != nil {
		return nil, err
	}
	said, err := exec.CommandContext(ctx, filepath.Join(filepath.Dir(nvcc), "ptxas"), "-v",
		fmt.Sprintf("-arch=sm_%d", architecture), text, "-o", cubin).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("ptxas: %w\n%s", err, said)
	}
	if m := spilt.FindSubmatch(said); m != nil {
		return nil, fmt.Errorf("%s for %s spills %s bytes of registers", m[1], m[2], m[3])
	}
	return os.ReadFile(cubin)
}

// Sum is the archive's note of the PTX that cubins were made of.
func Sum(ptx []byte) string { return fmt.Sprintf("%x", sha256.Sum256(ptx)) }

// Archive makes archive.zip of all modules, by name. Cubins of PTX that the program's own archive has are taken from
// there.
func Archive(ctx context.Context, nvcc string, names []string, modules [][]byte) ([]byte, error) {
	made := make([][][]byte, len(names)) // by family: PTX, then cubins
	var all errgroup.Group
	all.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		made[i] = [][]byte{modules[i]}
		if !kernels.Assembled(name) {
			continue
		}
		have := slices.IndexFunc(kernels.Families(), func(f *kernels.Family) bool { return f.Sum == Sum(modules[i]) })
		for k, a := range kernels.Architectures {
			made[i] = append(made[i], nil)
			if have >= 0 {
				made[i][k+1] = kernels.Families()[have].Cubin(a)
			}
			if made[i][k+1] == nil {
				all.Go(func() (err error) {
					if made[i][k+1], err = Assemble(ctx, nvcc, modules[i], a); err != nil {
						err = fmt.Errorf("%s: %w", name, err)
					}
					return err
				})
			}
		}
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	w.RegisterCompressor(kernels.Method, zstd.ZipCompressor(zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithWindowSize(8<<20)))
	var errs []error
	for i, name := range names {
		errs = append(errs, add(w, name, made[i]))
	}
	if err := errors.Join(append(errs, w.Close())...); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// add writes a family's file.
func add(w *zip.Writer, name string, made [][]byte) error {
	c := kernels.Contents{Sum: Sum(made[0])}
	for _, m := range entry.FindAllSubmatch(made[0], -1) {
		c.Kernels = append(c.Kernels, string(m[1]))
	}
	for i, data := range made {
		p := kernels.Part{Bytes: len(data), CRC32: crc32.ChecksumIEEE(data)}
		if i > 0 {
			p.Architecture = kernels.Architectures[i-1]
		}
		c.Parts = append(c.Parts, p)
	}
	comment, err := json.Marshal(c)
	if err != nil {
		return err
	}
	file, err := w.CreateHeader(&zip.FileHeader{Name: name, Comment: string(comment), Method: kernels.Method})
	if err != nil {
		return err
	}
	_, err = file.Write(slices.Concat(made...))
	return err
}
