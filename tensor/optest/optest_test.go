// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/backend/meta"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/tensor"
)

func openCPU(t *testing.T, workers int) *tensor.Device { return closed(t, tensor.NewCPU(workers)) }

func openDeferred(t *testing.T, workers int) *tensor.Device {
	return closed(t, joint.Device[*tensor.Device](deferred.New(workers)))
}

func openCUDA(t *testing.T) *tensor.Device {
	d, err := cuda.Open(fake.New(fake.Options{Seed: 1, Memory: 1 << 30}), 0)
	require.NoError(t, err)
	return closed(t, joint.Device[*tensor.Device](d))
}

// closed closes the device when the test ends.
func closed(t *testing.T, dev *tensor.Device) *tensor.Device {
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

func TestCPU(t *testing.T) {
	Run(t, func(t *testing.T) *tensor.Device { return openCPU(t, 2) })
}

func TestDeferred(t *testing.T) {
	Run(t, func(t *testing.T) *tensor.Device { return openDeferred(t, 2) })
}

// TestCUDA runs the table on a simulated GPU, with the kernels of real ones.
func TestCUDA(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's: tests/cuda is enough for it
	}
	RunLike(t, func(t *testing.T) *tensor.Device { return openCUDA(t) }, openCPU(t, 1))
}

// TestCUDAConvolutionsWithoutCuDNN runs convolutions on one without cuDNN, where they are products.
func TestCUDAConvolutionsWithoutCuDNN(t *testing.T) {
	if testing.Short() {
		return // likewise
	}
	d, err := cuda.Open(fake.New(fake.Options{Seed: 1, Memory: 1 << 30, NoDnn: true}), 0)
	require.NoError(t, err)
	row(t, closed(t, joint.Device[*tensor.Device](d)), "Conv2D")
}

// TestMeta: on the device without values, where memory is estimated, results and gradients have the CPU's shapes.
func TestMeta(t *testing.T) {
	cpu, empty := openCPU(t, 1), closed(t, joint.Device[*tensor.Device](meta.New()))
	onCPU, onMeta := runner{dev: cpu, c: tensor.NewCtx(cpu)}, runner{dev: empty, c: tensor.NewCtx(empty)}
	for _, op := range Table() {
		for _, s := range op.Samples {
			if s.Large {
				continue
			}
			in, how := s.values(op.Name, op.DTypes[0]), call{dt: op.DTypes[0]}
			want := onCPU.run(&s, in, how)
			for _, how.delay = range []bool{false, true} {
				got := onMeta.run(&s, in, how)
				require.Equal(t, shapes(want.out), shapes(got.out), "%s %s", op.Name, s.Name)
				require.Equal(t, shapes(want.grad), shapes(got.grad), "%s %s: gradients", op.Name, s.Name)
			}
		}
	}
	require.Zero(t, empty.MemStats().InUse)
}

func shapes(list []Array) (out [][]int) {
	for _, a := range list {
		out = append(out, a.Shape)
	}
	return out
}

func TestPrecisions(t *testing.T) {
	RunPrecisions(t, func(t *testing.T) *tensor.Device { return openCPU(t, 1) })
}

// TestBits: results depend neither on the number of workers, nor on chance, nor on when
// kernels run, under any variant of the kernels.
func TestBits(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		if testing.Short() { // what the race detector sees workers share, they share here
			RunBits(t, openCPU(t, 3), openDeferred(t, 1))
			return
		}
		// internal/backend/cpu has 2, and 1 again
		RunBits(t, openCPU(t, 1), openCPU(t, 3), openDeferred(t, 1), openCPU(t, 8))
	})
}

// notOps are the exported functions on a *Ctx that have no row, and why.
var notOps = map[string]string{
	"Empty":      "its elements are not defined; the tests of accelerate use it",
	"FromSlice":  "from host data; tested in package tensor",
	"FromBytes":  "from host data; tested in package tensor",
	"ToSlice":    "to host data; every check reads results by it",
	"ReadBytes":  "to host data; every check reads bits by it",
	"WriteBytes": "from host data; tested in package tensor",
	"WriteFrom":  "from host data; tested in package tensor",
	"FromHost":   "over host memory; tested in package tensor",
	"FromOwner":  "as FromHost",
	"HostBytes":  "shows host memory; tested in package tensor",
	"Item":       "to host data; tested in package tensor",
	"Backward":   "every gradient check calls it; tested in package tensor",
	"Custom":     "takes functions; tested in package tensor",
	"Checkpoint": "takes functions; tested in package tensor",

	"ClipFactor": "of float64 alone; tested in packages backendtest and optim",
	"Quantize":   "changes how a weight is kept; tested in package tensor",
	"AdamWAll":   "a list of AdamW; tested in package optim",

	"BackwardSpan": "takes functions; tested in package nn",
}

func TestEveryOpHasOneRow(t *testing.T) {
	rows := map[string]bool{}
	for _, op := range Table() {
		require.False(t, rows[op.Name], "two rows for %s", op.Name)
		rows[op.Name] = true
	}
	onCtx := map[string]bool{}
	paths, err := filepath.Glob("../*.go")
	require.NoError(t, err)
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.IsExported() && takesCtx(f.Type) {
				onCtx[f.Name.Name] = true
				require.True(t, rows[f.Name.Name] || notOps[f.Name.Name] != "",
					"%s has no row in the table of ops: add one, see Table", f.Name.Name)
			}
		}
	}
	require.Greater(t, len(onCtx), 70)
	for name := range notOps {
		require.True(t, onCtx[name], "%s is listed as no op, but there is no such function", name)
		require.False(t, rows[name], "%s is listed as no op and has a row", name)
	}
	for name := range rows {
		require.True(t, onCtx[name], "row %s: there is no such function", name)
	}
}

func takesCtx(f *ast.FuncType) bool {
	if len(f.Params.List) == 0 {
		return false
	}
	star, ok := f.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	name, ok := star.X.(*ast.Ident)
	return ok && name.Name == "Ctx"
}

// TestRowsAreComplete: what the suite cannot see missing.
func TestRowsAreComplete(t *testing.T) {
	for _, op := range Table() {
		require.NotEmpty(t, op.Samples, op.Name)
		require.NotEmpty(t, op.DTypes, op.Name)
		names, tested, operands, empty := map[string]bool{}, false, false, false
		for _, s := range op.Samples {
			require.False(t, names[s.Name], "%s has two samples %q", op.Name, s.Name)
			names[s.Name] = true
			tested = tested || s.Want != nil
			operands = operands || len(s.In) > 0
			empty = empty || emptySample(s)
		}
		require.True(t, tested, "%s has no oracle", op.Name)
		if operands {
			require.True(t, empty, "%s has no sample of size 0", op.Name)
		}
	}
}
