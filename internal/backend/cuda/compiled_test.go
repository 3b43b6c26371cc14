// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package cuda

import (
	"os/exec"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/cuda/compiled"
	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// byLibraries are the ops that need products.
var byLibraries = append([]backend.Op{backend.OpMatMul, backend.OpLinear}, convolutionOps...)

// unreached are the kernels of these ops.
var unreached = regexp.MustCompile(`^(conv_|col2im_wide_)`)

// TestCompiledKernels runs the suite with the kernels' sources compiled for the CPU. The interpreter of their PTX
// passes the same suite: two executors that share no code agree on every kernel.
func TestCompiledKernels(t *testing.T) {
	compiler, err := exec.LookPath("g++")
	if err != nil {
		lacking.Skip(t, lacking.Tools, "g++", "no C++ compiler")
	}
	library, err := compiled.Build(compiler, "../../cuda/kernels", t.TempDir())
	require.NoError(t, err)
	ran := map[string]bool{}
	driver, err := compiled.New(library, func(kernel string) { ran[kernel] = true })
	require.NoError(t, err)
	d, err := Open(driver, 0)
	require.NoError(t, err)
	d.SetGraphs(Graphs{Off: true})
	var ops []backend.Op
	for op := backend.OpInvalid + 1; op < backend.NumOps; op++ {
		if !slices.Contains(byLibraries, op) {
			ops = append(ops, op)
		}
	}
	backendtest.RunOps(t, d, ops...)
	require.NoError(t, d.Close())
	if testing.Short() || partial() {
		return
	}
	var missing []string
	for _, f := range kernels.Families() {
		for _, k := range f.Kernels {
			if !ran[k] && !unreached.MatchString(k) {
				missing = append(missing, k)
			}
		}
	}
	require.Empty(t, missing, "kernels that the suite does not run")
}
