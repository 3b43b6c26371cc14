// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// EnvBlas names the file of cuBLASLt, for one that is found under none of the usual names.
const EnvBlas = "LOCKSTEP_CUBLASLT"

// maxWorkspace is what algorithms may have: what cuBLAS gives itself on the newest devices.
const maxWorkspace = 32 << 20

// blasLibrary is libcublasLt.
type blasLibrary struct {
	create, destroy, getVersion, matmul, heuristic     uintptr
	descCreate, descDestroy, descSet                   uintptr
	layoutCreate, layoutDestroy, layoutSet             uintptr
	preferenceCreate, preferenceDestroy, preferenceSet uintptr
}

// openBlas opens the library, once for the process.
var openBlas = sync.OnceValues(func() (*blasLibrary, error) {
	files := []string{"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13",
		"/usr/local/cuda/lib64/libcublasLt.so.12"}
	if file := os.Getenv(EnvBlas); file != "" {
		files = []string{file}
	}
	lib, err := clib.OpenAny(files...)
	if err != nil {
		return nil, fmt.Errorf("no cuBLASLt: want the libraries of the CUDA toolkit, or the file in %s: %w", EnvBlas,
			err)
	}
	b := &blasLibrary{}
	return b, lib.Bind(map[string]*uintptr{
		"cublasLtCreate": &b.create, "cublasLtDestroy": &b.destroy, "cublasLtGetVersion": &b.getVersion,
		"cublasLtMatmul": &b.matmul, "cublasLtMatmulAlgoGetHeuristic": &b.heuristic,
		"cublasLtMatmulDescCreate": &b.descCreate, "cublasLtMatmulDescDestroy": &b.descDestroy,
		"cublasLtMatmulDescSetAttribute": &b.descSet, "cublasLtMatrixLayoutCreate": &b.layoutCreate,
		"cublasLtMatrixLayoutDestroy": &b.layoutDestroy, "cublasLtMatrixLayoutSetAttribute": &b.layoutSet,
		"cublasLtMatmulPreferenceCreate":       &b.preferenceCreate,
		"cublasLtMatmulPreferenceDestroy":      &b.preferenceDestroy,
		"cublasLtMatmulPreferenceSetAttribute": &b.preferenceSet,
	})
})

// version is as 13.1.0.
func (b *blasLibrary) version() string {
	v := clib.Call(b.getVersion)
	return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100)
}

var statusNames = map[int]string{1: "CUBLAS_STATUS_NOT_INITIALIZED", 3: "CUBLAS_STATUS_ALLOC_FAILED",
	7: "CUBLAS_STATUS_INVALID_VALUE", 8: "CUBLAS_STATUS_ARCH_MISMATCH", 11: "CUBLAS_STATUS_MAPPING_ERROR",
	13: "CUBLAS_STATUS_EXECUTION_FAILED", 14: "CUBLAS_STATUS_INTERNAL_ERROR", 15: "CUBLAS_STATUS_NOT_SUPPORTED",
	16: "CUBLAS_STATUS_LICENSE_ERROR"}

func status(call string, code uintptr) error {
	if int32(code) == 0 {
		return nil
	}
	name := statusNames[int(int32(code))]
	if name == "" {
		name = "unknown"
	}
	return &cuda.Error{Call: call, Code: int(int32(code)), Name: name}
}

// Attributes of cublasLt.h.
const (
	descTransA       = 3
	descTransB       = 4
	descEpilogue     = 7
	descBiasPointer  = 8
	descAuxPointer   = 11
	descAuxLD        = 12
	descBiasType     = 26
	layoutBatch      = 5
	layoutStride     = 6
	preferWorkspace  = 1
	preferReductions = 3
	preferAlignA     = 5 // and B, C, D after it

	// reductionComputeType lets partial sums be kept in the type that is computed in, and never rounded to D's.
	reductionComputeType = 2
)

// plan is a product's descriptors and its algorithm.
type plan struct {
	desc       uintptr
	layouts    [4]uintptr // A, B, C, D
	preference uintptr
	algorithm  heuristicResult
}

// heuristicResult is cublasLtMatmulHeuristicResult_t.
type heuristicResult struct {
	algorithm [8]uint64
	workspace uintptr
	state     int32
	waves     float32
	reserved  [4]int32
}

// describe makes the descriptors of a product.
func (b *blasLibrary) describe(p cuda.Product) (*plan, error) {
	scale := cuda.R32F
	if p.Compute == cuda.Compute64F {
		scale = cuda.R64F
	}
	l := &plan{}
	errs := []error{status("cublasLtMatmulDescCreate", clib.Call(b.descCreate, clib.Address(&l.desc),
		uintptr(p.Compute), uintptr(scale)))}
	for i, m := range []cuda.Matrix{p.A, p.B, p.C, p.D} {
		errs = append(errs, status("cublasLtMatrixLayoutCreate", clib.Call(b.layoutCreate, clib.Address(&l.layouts[i]),
			uintptr(m.Type), uintptr(m.Rows), uintptr(m.Cols), uintptr(m.LD))))
	}
	errs = append(errs, status("cublasLtMatmulPreferenceCreate",
		clib.Call(b.preferenceCreate, clib.Address(&l.preference))))
	if err := errors.Join(errs...); err != nil {
		return l, err
	}
	return l, b.setAttributes(l, p)
}

func (b *blasLibrary) setAttributes(l *plan, p cuda.Product) error {
	var errs []error
	trans := func(t bool) int32 { return map[bool]int32{false: 0, true: 1}[t] }
	errs = append(errs, set(b.descSet, l.desc, descTransA, trans(p.TransA)), set(b.descSet, l.desc, descTransB,
		trans(p.TransB)), set(b.descSet, l.desc, descEpilogue, p.Epilogue))
	if hasBias(p.Epilogue) {
		errs = append(errs, set(b.descSet, l.desc, descBiasType, p.BiasType),
			set(b.descSet, l.desc, descBiasPointer, uintptr(p.Align))) // the alignment counts
	}
	if hasAux(p.Epilogue) {
		errs = append(errs, set(b.descSet, l.desc, descAuxLD, int64(p.AuxLD)),
			set(b.descSet, l.desc, descAuxPointer, uintptr(p.Align)))
	}
	for i, m := range []cuda.Matrix{p.A, p.B, p.C, p.D} {
		if m.Batch > 1 {
			errs = append(errs, set(b.layoutSet, l.layouts[i], layoutBatch, int32(m.Batch)),
				set(b.layoutSet, l.layouts[i], layoutStride, int64(m.Stride)))
		}
		errs = append(errs, set(b.preferenceSet, l.preference, preferAlignA+uintptr(i), uint32(p.Align)))
	}
	return errors.Join(append(errs, set(b.preferenceSet, l.preference, preferWorkspace, uint64(maxWorkspace)),
		set(b.preferenceSet, l.preference, preferReductions, uint32(reductionComputeType)))...)
}

func hasBias(e cuda.Epilogue) bool { return e&cuda.EpilogueBias != 0 }
func hasAux(e cuda.Epilogue) bool  { return e&128 != 0 }

// set sets an attribute of a descriptor.
func set[T any](f, of, attribute uintptr, value T) error {
	v := &value
	err := status("cublasLt…SetAttribute", clib.Call(f, of, attribute, clib.Address(v), unsafe.Sizeof(value)))
	runtime.KeepAlive(v)
	if err != nil {
		return fmt.Errorf("attribute %d, %v: %w", attribute, value, err)
	}
	return nil
}

// discard destroys descriptors.
func (b *blasLibrary) discard(l *plan) {
	for _, x := range l.layouts {
		if x != 0 {
			clib.Call(b.layoutDestroy, x)
		}
	}
	if l.preference != 0 {
		clib.Call(b.preferenceDestroy, l.preference)
	}
	if l.desc != 0 {
		clib.Call(b.descDestroy, l.desc)
	}
}

// blas is the library on a device. Algorithms are chosen by the library's heuristics, once for each product, and never
// by measuring: so that a program computes the same again.
type blas struct {
	lib    *blasLibrary
	v      *device
	handle uintptr

	mu    sync.Mutex // of plans, and of pointers in descriptors
	plans map[cuda.Product]*plan
}

func newBlas(lib *blasLibrary, v *device) (cuda.Blas, error) {
	b := &blas{lib: lib, v: v, plans: map[cuda.Product]*plan{}}
	if err := status("cublasLtCreate", v.within(lib.create, clib.Address(&b.handle))); err != nil {
		return nil, err
	}
	return b, nil
}

// plan finds or makes the plan of a product. b.mu is held.
func (b *blas) plan(p cuda.Product) (*plan, error) {
	if l := b.plans[p]; l != nil {
		return l, nil
	}
	l, err := b.lib.describe(p)
	var found int32
	if err == nil {
		err = status("cublasLtMatmulAlgoGetHeuristic", b.v.within(b.lib.heuristic, b.handle, l.desc, l.layouts[0],
			l.layouts[1], l.layouts[2], l.layouts[3], l.preference, 1, clib.Address(&l.algorithm),
			clib.Address(&found)))
	}
	if err == nil {
		err = status("cublasLtMatmulAlgoGetHeuristic", uintptr(l.algorithm.state))
	}
	if err == nil && found == 0 {
		err = errors.New("cublasLtMatmulAlgoGetHeuristic: no algorithm")
	}
	if err != nil {
		b.lib.discard(l)
		return nil, fmt.Errorf("product %+v: %w", p, err)
	}
	b.plans[p] = l
	return l, nil
}

// Workspace is what the product's algorithm needs.
func (b *blas) Workspace(p cuda.Product) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, err := b.plan(p)
	if err != nil {
		return 0, err
	}
	return int(l.algorithm.workspace), nil
}

// scalars are alpha and beta, in the type that is computed in.
type scalars struct{ alpha, beta uint64 }

func scalarsOf(p cuda.Product) *scalars {
	s := &scalars{}
	for at, x := range map[*uint64]float64{&s.alpha: p.Alpha, &s.beta: p.Beta} {
		if p.Compute == cuda.Compute64F {
			*(*float64)(unsafe.Pointer(at)) = x
		} else {
			*(*float32)(unsafe.Pointer(at)) = float32(x)
		}
	}
	return s
}

// MatMul queues a product.
func (b *blas) MatMul(s cuda.Stream, p cuda.Product, o cuda.Operands, workspace cuda.Ptr) error {
	own, ok := s.(*stream)
	if !ok {
		return errors.New("cublasLtMatmul: a stream of another driver")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l, err := b.plan(p)
	if err != nil {
		return err
	}
	if hasBias(p.Epilogue) {
		err = set(b.lib.descSet, l.desc, descBiasPointer, o.Bias)
	}
	if hasAux(p.Epilogue) {
		err = errors.Join(err, set(b.lib.descSet, l.desc, descAuxPointer, o.Aux))
	}
	if err != nil {
		return err
	}
	c := scalarsOf(p)
	err = status("cublasLtMatmul", b.v.within(b.lib.matmul, b.handle, l.desc, clib.Address(&c.alpha), uintptr(o.A),
		l.layouts[0], uintptr(o.B), l.layouts[1], clib.Address(&c.beta), uintptr(o.C), l.layouts[2], uintptr(o.D),
		l.layouts[3], clib.Address(&l.algorithm), uintptr(workspace), l.algorithm.workspace, own.handle))
	runtime.KeepAlive(c)
	if err != nil {
		return fmt.Errorf("product %+v: %w", p, err)
	}
	return nil
}

// Close destroys everything.
func (b *blas) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.plans {
		b.lib.discard(l)
	}
	b.plans = nil
	return status("cublasLtDestroy", b.v.within(b.lib.destroy, b.handle))
}
