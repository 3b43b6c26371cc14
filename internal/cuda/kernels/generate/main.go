// SPDX-License-Identifier: Apache-2.0

// Generate compiles the CUDA kernels to PTX, and PTX to cubins where they are not in the archive.
//
//	go run ./internal/cuda/kernels/generate --nvcc PATH
//
// nvcc is that of the version that package kernels names; on Linux, pip install nvidia-cuda-nvcc==13.0.88 brings it
// with nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime and nvidia-cuda-cccl. It needs no device, and g++ as
// preprocessor. Names of families as arguments compile these alone.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/cuda/kernels/compile"
)

func main() {
	nvcc := flag.String("nvcc", os.Getenv("LOCKSTEP_NVCC"), "the compiler `path`; default $LOCKSTEP_NVCC")
	dir := flag.String("dir", filepath.Join("internal", "cuda", "kernels"), "the folder of the sources")
	flag.Parse()
	if err := run(context.Background(), *nvcc, *dir, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, nvcc, dir string, families []string) error {
	if err := compile.CheckVersion(ctx, nvcc); err != nil {
		return err
	}
	sources, err := compile.Sources(dir)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, f := range families {
		wanted[strings.TrimSuffix(filepath.Base(f), ".cu")] = true
	}
	all := len(wanted) == 0
	var chosen []string
	for _, s := range sources {
		name := strings.TrimSuffix(filepath.Base(s), ".cu")
		if all || wanted[name] {
			chosen = append(chosen, s)
			delete(wanted, name)
		}
	}
	for name := range wanted {
		return fmt.Errorf("no source %s.cu in %s", name, dir)
	}
	modules, err := compile.All(ctx, nvcc, chosen)
	if err != nil {
		return err
	}
	for i, s := range chosen {
		name := strings.TrimSuffix(filepath.Base(s), ".cu") + ".ptx"
		if err := os.WriteFile(filepath.Join(dir, "ptx", name), modules[i], 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %d bytes\n", name, len(modules[i]))
	}
	return archive(ctx, nvcc, dir, sources)
}

// archive writes all modules and their cubins.
func archive(ctx context.Context, nvcc, dir string, sources []string) error {
	var names []string
	var modules [][]byte
	for _, s := range sources {
		name := strings.TrimSuffix(filepath.Base(s), ".cu")
		text, err := os.ReadFile(filepath.Join(dir, "ptx", name+".ptx"))
		if err != nil {
			return err
		}
		names, modules = append(names, name), append(modules, text)
	}
	b, err := compile.Archive(ctx, nvcc, names, modules)
	if err != nil {
		return err
	}
	fmt.Printf("archive.zip: %d bytes\n", len(b))
	return os.WriteFile(filepath.Join(dir, "archive.zip"), b, 0o644)
}
