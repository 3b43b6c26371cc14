// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// TestWithoutADriver holds that a machine without NVIDIA's driver gets an error that says so.
func TestWithoutADriver(t *testing.T) {
	if noDriver == nil {
		t.Skip("this machine has a driver")
	}
	_, err := New()
	require.ErrorContains(t, err, "CUDA cannot be used: no NVIDIA driver: libcuda.so.1 cannot be opened")
	require.ErrorContains(t, err, "No such file")
	require.NotContains(t, err.Error(), "NVIDIA_DRIVER_CAPABILITIES")
	require.ErrorContains(t, noCompute, `: NVIDIA_DRIVER_CAPABILITIES is "utility" in this container: want compute`)
}

// blasForTest opens the library that the environment names.
func blasForTest(t *testing.T) *blasLibrary {
	if os.Getenv(EnvBlas) == "" {
		lacking.Skip(t, lacking.Tools, "cublaslt", EnvBlas+" names no cuBLASLt")
	}
	lib, err := openBlas()
	require.NoError(t, err)
	return lib
}

// products are all forms that the backend asks for.
func products() []cuda.Product {
	var all []cuda.Product
	for _, types := range []struct {
		in, out cuda.DataType
		compute cuda.Compute
	}{
		{cuda.R32F, cuda.R32F, cuda.Compute32F}, {cuda.R32F, cuda.R32F, cuda.Compute32FTF32},
		{cuda.R64F, cuda.R64F, cuda.Compute64F}, {cuda.R16F, cuda.R16F, cuda.Compute32F},
		{cuda.R16BF, cuda.R16BF, cuda.Compute32F}, {cuda.R16BF, cuda.R32F, cuda.Compute32F},
		{cuda.R16F, cuda.R32F, cuda.Compute32F},
	} {
		for trans := range 4 {
			p := cuda.Product{Compute: types.compute, TransA: trans&1 == 1, TransB: trans&2 == 2, Alpha: 1,
				Beta: float64(trans / 2), Epilogue: cuda.EpilogueNone, Align: 16}
			p.A = cuda.Matrix{Type: types.in, Rows: 24, Cols: 40, LD: 24, Batch: 1}
			p.B = cuda.Matrix{Type: types.in, Rows: 40, Cols: 56, LD: 48, Batch: 1}
			if p.TransA {
				p.A.Rows, p.A.Cols, p.A.LD = 40, 24, 40
			}
			if p.TransB {
				p.B.Rows, p.B.Cols, p.B.LD = 56, 40, 56
			}
			p.C = cuda.Matrix{Type: types.out, Rows: 24, Cols: 56, LD: 24, Batch: 1}
			p.D = p.C
			all = append(all, p)
			batch := p
			for i, m := range []*cuda.Matrix{&batch.A, &batch.B, &batch.C, &batch.D} {
				m.Batch, m.Stride = 7, []int{0, 4000, 2000, 2000}[i] // A is repeated
			}
			all = append(all, batch)
			if types.compute == cuda.Compute64F {
				continue
			}
			for _, e := range []cuda.Epilogue{cuda.EpilogueReLU, cuda.EpilogueBias, cuda.EpilogueReLUBias,
				cuda.EpilogueGELU, cuda.EpilogueGELUBias, cuda.EpilogueGELUAux, cuda.EpilogueGELUAuxBias} {
				fused := p
				fused.Epilogue, fused.BiasType, fused.AuxLD = e, types.out, 24
				all = append(all, fused)
			}
		}
	}
	return all
}

// TestDescriptors holds that the library takes the descriptors of all products, as far as it looks at them without a
// device, and that what it keeps is what was set.
func TestDescriptors(t *testing.T) {
	lib := blasForTest(t)
	require.Regexp(t, `^1[23]\.\d+\.\d+$`, lib.version())
	var attribute, layout uintptr
	handle, err := clib.Open(os.Getenv(EnvBlas))
	require.NoError(t, err)
	require.NoError(t, handle.Bind(map[string]*uintptr{"cublasLtMatmulDescGetAttribute": &attribute,
		"cublasLtMatrixLayoutGetAttribute": &layout}))
	for _, p := range products() {
		l, err := lib.describe(p)
		require.NoError(t, err, "%+v", p)
		require.Equal(t, p.Epilogue, kept[cuda.Epilogue](t, attribute, l.desc, descEpilogue))
		require.Equal(t, p.TransA, kept[int32](t, attribute, l.desc, descTransA) == 1)
		require.Equal(t, p.TransB, kept[int32](t, attribute, l.desc, descTransB) == 1)
		require.Equal(t, p.Compute, kept[cuda.Compute](t, attribute, l.desc, 0))
		if hasAux(p.Epilogue) {
			require.EqualValues(t, p.AuxLD, kept[int64](t, attribute, l.desc, descAuxLD))
		}
		for i, m := range []cuda.Matrix{p.A, p.B, p.C, p.D} {
			require.Equal(t, m.Type, kept[cuda.DataType](t, layout, l.layouts[i], 0))
			require.EqualValues(t, m.Rows, kept[uint64](t, layout, l.layouts[i], 2))
			require.EqualValues(t, m.Cols, kept[uint64](t, layout, l.layouts[i], 3))
			require.EqualValues(t, m.LD, kept[int64](t, layout, l.layouts[i], 4))
			require.EqualValues(t, m.Batch, kept[int32](t, layout, l.layouts[i], layoutBatch))
			require.EqualValues(t, m.Stride, kept[int64](t, layout, l.layouts[i], layoutStride))
		}
		lib.discard(l)
	}
}

// kept reads an attribute back.
func kept[T any](t *testing.T, f, of, attribute uintptr) T {
	v, n := new(T), new(uintptr)
	require.NoError(t, status("…GetAttribute", clib.Call(f, of, attribute, clib.Address(v), unsafe.Sizeof(*v),
		clib.Address(n))))
	require.Equal(t, unsafe.Sizeof(*v), *n)
	return *v
}

// TestAttributesOfTheWrongSize holds that the numbers of attributes are the library's: each takes a value of its own
// size and refuses others.
func TestAttributesOfTheWrongSize(t *testing.T) {
	lib := blasForTest(t)
	l, err := lib.describe(products()[0])
	require.NoError(t, err)
	defer lib.discard(l)
	require.ErrorContains(t, set(lib.descSet, l.desc, descEpilogue, uint64(1)), "CUBLAS_STATUS_INVALID_VALUE (7)")
	require.ErrorContains(t, set(lib.descSet, l.desc, descAuxLD, int32(8)), "CUBLAS_STATUS_INVALID_VALUE (7)")
	require.ErrorContains(t, set(lib.layoutSet, l.layouts[0], layoutBatch, int64(2)), "CUBLAS_STATUS_INVALID_VALUE (7)")
	require.ErrorContains(t, set(lib.preferenceSet, l.preference, preferWorkspace, uint32(1)),
		"CUBLAS_STATUS_INVALID_VALUE (7)")
}

// TestCreateWithoutADevice holds that the library's refusal is an error with its name.
func TestCreateWithoutADevice(t *testing.T) {
	lib := blasForTest(t)
	if noDriver == nil {
		t.Skip("this machine has a driver")
	}
	var handle uintptr
	require.EqualError(t, status("cublasLtCreate", clib.Call(lib.create, clib.Address(&handle))),
		"cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED (1)")
}
