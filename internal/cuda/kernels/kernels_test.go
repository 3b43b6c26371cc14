// SPDX-License-Identifier: Apache-2.0

package kernels_test

import (
	"context"
	"os"
	"os/exec"
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
		for i, line := range strings.Split(string(f.PTX), "\n") {
			if m := function.FindStringSubmatch(line); m != nil {
				in = m[1]
			}
			at := func(what string) {
				t.Errorf("%s.ptx:%d: %s: %s: %s", f.Name, i+1, in, what, strings.TrimSpace(line))
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

// The committed PTX is what the pinned compiler makes of the sources.
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
	ptxas := filepath.Join(filepath.Dir(nvcc), "ptxas")
	for i, s := range sources {
		name := filepath.Join("ptx", strings.TrimSuffix(s, ".cu")+".ptx")
		committed, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, string(committed) == string(modules[i]), "%s is not what nvcc makes of %s: run the generator",
			name, s)
		out, err := exec.Command(ptxas, "-arch=sm_80", name, "-o", filepath.Join(t.TempDir(), "cubin")).CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
	}
}

func TestCheckVersion(t *testing.T) {
	require.ErrorContains(t, compile.CheckVersion(context.Background(), ""), "LOCKSTEP_NVCC")
	fake := filepath.Join(t.TempDir(), "nvcc")
	require.NoError(t, os.WriteFile(fake, []byte("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n"),
		0o755))
	require.ErrorContains(t, compile.CheckVersion(context.Background(), fake), "is not nvcc "+kernels.Compiler)
}
