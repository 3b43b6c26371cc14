// SPDX-License-Identifier: Apache-2.0

// Package compile calls nvcc for the generator of kernels, and for the test that its output is current.
package compile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
)

// CheckVersion returns an error unless nvcc is the pinned version.
func CheckVersion(ctx context.Context, nvcc string) error {
	if nvcc == "" {
		return errors.New("no compiler: want --nvcc PATH or LOCKSTEP_NVCC")
	}
	out, err := exec.CommandContext(ctx, nvcc, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", nvcc, err)
	}
	if m := version.FindSubmatch(out); m == nil || string(m[1]) != kernels.Compiler {
		return fmt.Errorf("%s is not nvcc %s but:\n%s", nvcc, kernels.Compiler, bytes.TrimSpace(out))
	}
	return nil
}

var version = regexp.MustCompile(`, V([0-9.]+)`)

// Sources lists the source files of a folder, by name.
func Sources(dir string) ([]string, error) {
	sources, err := filepath.Glob(filepath.Join(dir, "*.cu"))
	if err == nil && len(sources) == 0 {
		err = fmt.Errorf("no *.cu in %s", dir)
	}
	return sources, err
}

// All compiles sources to PTX, several at a time.
func All(ctx context.Context, nvcc string, sources []string) ([][]byte, error) {
	modules, errs := make([][]byte, len(sources)), make([]error, len(sources))
	var wait sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, s := range sources {
		wait.Add(1)
		go func() {
			defer wait.Done()
			slots <- struct{}{}
			defer func() { <-slots }()
			modules[i], errs[i] = one(ctx, nvcc, s)
		}()
	}
	wait.Wait()
	return modules, errors.Join(errs...)
}

func one(ctx context.Context, nvcc, source string) ([]byte, error) {
	var out, messages bytes.Buffer
	c := exec.CommandContext(ctx, nvcc, slices.Concat(kernels.Flags, []string{filepath.Base(source), "-o", "-"})...)
	c.Dir = filepath.Dir(source) // so that no path gets into the output
	c.Stdout, c.Stderr = &out, &messages
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", source, err, messages.Bytes())
	}
	return tidy(out.Bytes(), strings.TrimSuffix(filepath.Base(source), ".cu")), nil
}

// placed is part of the names of what is local to a file: a number that the compiler makes of the folder.
var placed = regexp.MustCompile(`_INTERNAL_[0-9a-f]{8}_`)

var (
	isa = regexp.MustCompile(`(?m)^\.version [0-9.]+$`)
	// unused tells the assembler that parts of a wide load are not looked at. Older drivers do not know the hint.
	unused = regexp.MustCompile(`(?m)^\s*\.pragma "used_bytes_mask [0-9A-Fa-fx]+";\n`)
)

// tidy replaces the compiler's own comments by one line, removes what depends on the folder, and declares the oldest
// version of PTX that has all instructions: a driver refuses what is newer than itself.
func tidy(ptx []byte, family string) []byte {
	if i := bytes.Index(ptx, []byte(".version")); i >= 0 {
		ptx = ptx[i:]
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "// Code generated from %s.cu by nvcc %s; DO NOT EDIT.\n// SPDX-License-Identifier: Apache-2.0\n\n",
		family, kernels.Compiler)
	for line := range bytes.Lines(ptx) {
		if text := bytes.TrimSpace(line); bytes.HasPrefix(text, []byte("// ")) || len(text) == 0 {
			continue
		}
		b.Write(placed.ReplaceAllLiteral(line, []byte("_INTERNAL_")))
	}
	text := unused.ReplaceAllLiteral(b.Bytes(), nil)
	return isa.ReplaceAllLiteral(text, []byte(".version "+kernels.ISA))
}
