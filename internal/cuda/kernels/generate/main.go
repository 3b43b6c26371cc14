// SPDX-License-Identifier: Apache-2.0

// Generate compiles the CUDA kernels to PTX, and PTX to cubins where they are not in the archive.
//
//	go run ./internal/cuda/kernels/generate --nvcc PATH
//	go run ./internal/cuda/kernels/generate --print flash    # the committed PTX, as text
//
// nvcc is that of the version that package kernels names; on Linux, pip install nvidia-cuda-nvcc==13.0.88 brings it
// with nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime and nvidia-cuda-cccl. It needs no device, and g++ as
// preprocessor. Names of families as arguments compile these alone; the others' PTX stays unchanged in the archive.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
	"github.com/lockstep-ml/lockstep/internal/cuda/kernels/compile"
)

func main() {
	nvcc := flag.String("nvcc", os.Getenv("LOCKSTEP_NVCC"), "the compiler `path`; default $LOCKSTEP_NVCC")
	dir := flag.String("dir", filepath.Join("internal", "cuda", "kernels"), "the folder of the sources")
	show := flag.Bool("print", false, "print the PTX of the families that the arguments name, and compile nothing")
	flag.Parse()
	var err error
	if *show {
		err = printPTX(flag.Args())
	} else {
		err = run(context.Background(), *nvcc, *dir, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func printPTX(families []string) error {
	for _, name := range families {
		text := committed(name)
		if text == nil {
			return fmt.Errorf("no family %q in archive.zip", name)
		}
		if _, err := os.Stdout.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// committed is the PTX of a family in the archive, nil if it has none.
func committed(family string) []byte {
	for _, f := range kernels.Families() {
		if f.Name == family {
			return f.PTX()
		}
	}
	return nil
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
		wanted[family(f)] = true
	}
	all := len(wanted) == 0
	var chosen []string
	for _, s := range sources {
		if name := family(s); all || wanted[name] {
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
	made := map[string][]byte{}
	for i, s := range chosen {
		made[family(s)] = modules[i]
		fmt.Printf("%s: %d bytes of PTX\n", family(s), len(modules[i]))
	}
	return archive(ctx, nvcc, dir, sources, made)
}

// family is the name of a source without folder and .cu.
func family(source string) string { return strings.TrimSuffix(filepath.Base(source), ".cu") }

// archive writes all modules and their cubins: those just made, and the committed ones of the other sources.
func archive(ctx context.Context, nvcc, dir string, sources []string, made map[string][]byte) error {
	var names []string
	var modules [][]byte
	for _, s := range sources {
		name := family(s)
		text := made[name]
		if text == nil {
			text = committed(name)
		}
		if text == nil {
			return fmt.Errorf("archive.zip has no %s: compile it too", name)
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
