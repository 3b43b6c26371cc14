// SPDX-License-Identifier: Apache-2.0

package kernels_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
	"github.com/lockstep-ml/lockstep/internal/cuda/kernels/compile"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

func TestFind(t *testing.T) {
	require.Nil(t, kernels.Find("no_such_kernel"))
	n := 0
	for _, f := range kernels.Families() {
		require.NotEmpty(t, f.Kernels, f.Name)
		for _, k := range f.Kernels {
			require.Same(t, f, kernels.Find(k), k)
			n++
		}
	}
	require.Greater(t, n, 10)
}

// Every source has its PTX and every PTX its source.
func TestSources(t *testing.T) {
	sources, err := compile.Sources(".")
	require.NoError(t, err)
	var names []string
	for _, s := range sources {
		names = append(names, strings.TrimSuffix(s, ".cu"))
	}
	var families []string
	for _, f := range kernels.Families() {
		families = append(families, f.Name)
	}
	require.Equal(t, families, names)
}

// The cubins were made of the PTX beside them.
func TestArchive(t *testing.T) {
	for _, f := range kernels.Families() {
		require.Equal(t, compile.Sum(f.PTX()), f.Sum, "the cubins of %s are of another PTX: run the generator", f.Name)
		for _, a := range kernels.Architectures {
			cubin := f.Cubin(a)
			require.Equal(t, kernels.Assembled(f.Name), cubin != nil, "%s.sm_%d", f.Name, a)
			if cubin != nil {
				of, architecture := kernels.OfCubin(cubin)
				require.Same(t, f, of)
				require.Equal(t, a, architecture)
			}
		}
	}
}

func TestCubin(t *testing.T) {
	f := kernels.Find("flash_64_bf16")
	for capability, architecture := range map[[2]int]int{{8, 0}: 80, {8, 7}: 86, {8, 9}: 89, {9, 0}: 90, {10, 3}: 100,
		{12, 1}: 120, {7, 5}: 0, {11, 0}: 0} {
		got := f.For(capability)
		require.Equal(t, architecture == 0, got == nil, "%v", capability)
		if got != nil {
			_, of := kernels.OfCubin(got)
			require.Equal(t, architecture, of, "%v", capability)
		}
	}
	require.Nil(t, kernels.Find("cumsum_f32").For([2]int{9, 0}))
}

var (
	// ptxas may fuse a product with an addition unless both are rounded by the text.
	unrounded = regexp.MustCompile(`\b(mul|add|sub)(\.ftz)?(\.sat)?\.f(32|64)\b`)
	// An atomic addition of floats takes the threads in any order.
	floatAtomic = regexp.MustCompile(`\b(atom|red)\.[\w.:]*\.(f16|bf16|f32|f64|f16x2|bf16x2)\b`)
	local       = regexp.MustCompile(`^\s*\.local `)
	function    = regexp.MustCompile(`\.(?:entry|func)\s+(?:\(.*?\)\s*)?(\w+)\(`)
)

// inLocalMemory are the functions that keep an array there: the reduction of large arguments of sin and cos.
var inLocalMemory = regexp.MustCompile(`^(sin|cos)_|^__internal_trig_reduction_slowpath`)

func TestLint(t *testing.T) {
	for _, f := range kernels.Families() {
		in := ""
		for i, line := range strings.Split(string(f.PTX()), "\n") {
			if m := function.FindStringSubmatch(line); m != nil {
				in = m[1]
			}
			at := func(what string) {
				t.Errorf("PTX of %s:%d: %s: %s: %s", f.Name, i+1, in, what, strings.TrimSpace(line))
			}
			switch {
			case unrounded.MatchString(line):
				at("no rounding")
			case floatAtomic.MatchString(line):
				at("an atomic operation on floats")
			case local.MatchString(line) && !inLocalMemory.MatchString(in):
				at("local memory")
			}
		}
	}
}

// The committed PTX is what the pinned compiler makes of the sources, and the cubins of all architectures are what it
// makes of the PTX, without an error and without a register that is spilt.
func TestCurrent(t *testing.T) {
	nvcc := os.Getenv("LOCKSTEP_NVCC")
	if nvcc == "" {
		lacking.Skip(t, lacking.Tools, "nvcc", "LOCKSTEP_NVCC names no nvcc "+kernels.Compiler)
	}
	require.NoError(t, compile.CheckVersion(context.Background(), nvcc))
	sources, err := compile.Sources(".")
	require.NoError(t, err)
	modules, err := compile.All(context.Background(), nvcc, sources)
	require.NoError(t, err)
	for i, s := range sources {
		name := strings.TrimSuffix(s, ".cu")
		f := kernels.Families()[i]
		require.Equal(t, name, f.Name)
		require.True(t, string(f.PTX()) == string(modules[i]), "PTX of %s is not what nvcc makes: run the generator",
			name)
		for _, a := range kernels.Architectures {
			cubin, err := compile.Assemble(context.Background(), nvcc, f.PTX(), a)
			require.NoError(t, err, "%s.sm_%d", name, a)
			if kernels.Assembled(name) {
				require.True(t, string(f.Cubin(a)) == string(cubin),
					"%s.sm_%d is not what ptxas makes: run the generator", name, a)
			}
		}
	}
}

func TestCheckVersion(t *testing.T) {
	require.ErrorContains(t, compile.CheckVersion(context.Background(), ""), "LOCKSTEP_NVCC")
	fake := filepath.Join(t.TempDir(), "nvcc")
	require.NoError(t, os.WriteFile(fake, []byte("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n"),
		0o755))
	require.ErrorContains(t, compile.CheckVersion(context.Background(), fake), "is not nvcc "+kernels.Compiler)
}
