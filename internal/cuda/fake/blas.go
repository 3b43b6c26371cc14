// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"encoding/binary"
	"math"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// statuses of cublas_v2.h.
const (
	notInitialized = 1
	invalidProduct = 7
	notSupported   = 15
)

func refused(status int, format string, args ...any) error {
	err := failed("cublasLtMatmul", status, format, args...).(*cuda.Error)
	err.Name = map[int]string{notInitialized: "CUBLAS_STATUS_NOT_INITIALIZED",
		invalidProduct: "CUBLAS_STATUS_INVALID_VALUE", notSupported: "CUBLAS_STATUS_NOT_SUPPORTED"}[status]
	return err
}

// blas computes products by their definition.
type blas struct{ d *device }

// workspaceBytes is what each product needs, so that callers who forget it are found out.
const workspaceBytes = 1024

// Workspace checks a product.
func (b *blas) Workspace(p cuda.Product) (int, error) { return workspaceBytes, check(p) }

// check refuses what cuBLASLt refuses. Source: NVIDIA, "cuBLAS", version 13.0, sections on cublasLtMatmul() and on the
// attributes of its descriptor.
func check(p cuda.Product) error {
	m, n, k := p.D.Rows, p.D.Cols, p.A.Cols
	if p.TransA {
		k = p.A.Rows
	}
	of := func(x cuda.Matrix, trans bool) [2]int {
		if trans {
			return [2]int{x.Cols, x.Rows}
		}
		return [2]int{x.Rows, x.Cols}
	}
	switch {
	case m <= 0 || n <= 0 || k <= 0:
		return refused(invalidProduct, "a product of %d×%d×%d", m, n, k)
	case of(p.A, p.TransA) != [2]int{m, k} || of(p.B, p.TransB) != [2]int{k, n} || of(p.C, false) != [2]int{m, n}:
		return refused(invalidProduct, "op(A) %v times op(B) %v gives no %v", of(p.A, p.TransA), of(p.B, p.TransB),
			of(p.D, false))
	case p.C.Type != p.D.Type || p.C.LD != p.D.LD && p.Beta != 0:
		return refused(notSupported, "C %+v is not laid out as D %+v", p.C, p.D)
	}
	for name, x := range map[string]cuda.Matrix{"A": p.A, "B": p.B, "C": p.C, "D": p.D} {
		if x.LD < x.Rows {
			return refused(invalidProduct, "%s has %d rows and a leading dimension of %d", name, x.Rows, x.LD)
		}
		if x.Batch != p.D.Batch || x.Batch < 1 || x.Batch > 1 && x.Stride < 0 {
			return refused(invalidProduct, "%s is a batch of %d with stride %d, D of %d", name, x.Batch, x.Stride,
				p.D.Batch)
		}
	}
	if !typesFit(p) {
		return refused(notSupported, "type %d times %d gives no %d under compute type %d", p.A.Type, p.B.Type, p.D.Type,
			p.Compute)
	}
	return checkEpilogue(p)
}

func typesFit(p cuda.Product) bool {
	switch p.Compute {
	case cuda.Compute64F:
		return p.A.Type == cuda.R64F && p.B.Type == cuda.R64F && p.D.Type == cuda.R64F
	case cuda.Compute32FTF32:
		return p.A.Type == cuda.R32F && p.B.Type == cuda.R32F && p.D.Type == cuda.R32F
	case cuda.Compute32F:
		return p.A.Type == p.B.Type && p.A.Type != cuda.R64F && (p.D.Type == p.A.Type || p.D.Type == cuda.R32F)
	}
	return false
}

func checkEpilogue(p cuda.Product) error {
	if p.Epilogue == cuda.EpilogueNone {
		return nil
	}
	if p.Compute == cuda.Compute64F {
		return refused(notSupported, "float64 has no epilogues")
	}
	switch p.Epilogue {
	case cuda.EpilogueBias, cuda.EpilogueReLUBias, cuda.EpilogueGELUBias, cuda.EpilogueGELUAuxBias:
		if p.BiasType != p.D.Type {
			return refused(notSupported, "a bias of type %d for D of type %d", p.BiasType, p.D.Type)
		}
	case cuda.EpilogueReLU, cuda.EpilogueGELU, cuda.EpilogueGELUAux:
	default:
		return refused(invalidProduct, "epilogue %d", p.Epilogue)
	}
	if (p.Epilogue == cuda.EpilogueGELUAux || p.Epilogue == cuda.EpilogueGELUAuxBias) &&
		(p.AuxLD < p.D.Rows || p.AuxLD%8 != 0 || p.D.Rows%8 != 0) {
		return refused(notSupported, "a leading dimension of %d of the epilogue's second output of %d rows: want a "+
			"multiple of 8", p.AuxLD, p.D.Rows)
	}
	if p.D.Batch > 1 {
		return refused(notSupported, "an epilogue of a batch: the strides of its operands are not set")
	}
	return nil
}

// MatMul queues a product.
func (b *blas) MatMul(s cuda.Stream, p cuda.Product, o cuda.Operands, workspace cuda.Ptr) error {
	if err := check(p); err != nil {
		return err
	}
	own, ok := s.(*stream)
	if !ok || own.d != b.d {
		return refused(invalidProduct, "a stream of another device")
	}
	for _, x := range []cuda.Ptr{o.A, o.B, o.C, o.D, o.Bias, o.Aux} {
		if p.Align < 1 || p.Align > 256 || x%cuda.Ptr(p.Align) != 0 {
			return refused(invalidProduct, "address %#x is no multiple of %d", x, p.Align)
		}
	}
	if workspace == 0 || workspace%256 != 0 {
		return refused(invalidProduct, "workspace at %#x", workspace)
	}
	own.count()
	return own.push(false, func() error {
		if err := b.d.mem.Write(uint64(workspace), make([]byte, workspaceBytes)); err != nil {
			return failed("cublasLtMatmul", illegalAddress, "the workspace: %v", err)
		}
		for i := range p.D.Batch {
			if err := b.product(p, o, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// product computes product i of a batch.
func (b *blas) product(p cuda.Product, o cuda.Operands, i int) error {
	m, n := p.D.Rows, p.D.Cols
	a, err := b.load("A", p.A, o.A, i)
	if err != nil {
		return err
	}
	other, err := b.load("B", p.B, o.B, i)
	if err != nil {
		return err
	}
	if p.Compute == cuda.Compute32FTF32 {
		for _, x := range [][]float64{a, other} {
			for i := range x {
				x[i] = tf32(x[i])
			}
		}
	}
	sums := multiply(a, p.A, p.TransA, other, p.TransB, m, n)
	var c []float64
	if p.Beta != 0 {
		if c, err = b.load("C", p.C, o.C, i); err != nil {
			return err
		}
	}
	var bias []float64
	switch p.Epilogue {
	case cuda.EpilogueBias, cuda.EpilogueReLUBias, cuda.EpilogueGELUBias, cuda.EpilogueGELUAuxBias:
		if bias, err = b.load("bias", cuda.Matrix{Type: p.BiasType, Rows: m, Cols: 1, LD: m}, o.Bias, 0); err != nil {
			return err
		}
	}
	var aux []float64
	if p.Epilogue == cuda.EpilogueGELUAux || p.Epilogue == cuda.EpilogueGELUAuxBias {
		aux = make([]float64, m*n)
	}
	for at := range sums {
		x := p.Alpha * sums[at]
		if c != nil {
			x += p.Beta * c[at]
		}
		if bias != nil {
			x += bias[at%m]
		}
		if aux != nil {
			aux[at] = x
		}
		switch p.Epilogue {
		case cuda.EpilogueReLU, cuda.EpilogueReLUBias:
			x = max(x, 0)
		case cuda.EpilogueGELU, cuda.EpilogueGELUBias, cuda.EpilogueGELUAux, cuda.EpilogueGELUAuxBias:
			x = 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		}
		sums[at] = x
	}
	if aux != nil {
		if err := b.store("the second output", cuda.Matrix{Type: p.D.Type, Rows: m, Cols: n, LD: p.AuxLD}, o.Aux, 0,
			aux); err != nil {
			return err
		}
	}
	return b.store("D", p.D, o.D, i, sums)
}

// multiply is op(A)·op(B) in column-major order without gaps, added in float64.
func multiply(a []float64, la cuda.Matrix, transA bool, b []float64, transB bool, m, n int) []float64 {
	k := la.Cols
	if transA {
		k = la.Rows
	} else {
		a = transposed(a, m, k)
	}
	if transB {
		b = transposed(b, n, k)
	}
	sums := make([]float64, m*n)
	for j := range n {
		column := b[j*k : j*k+k]
		for i := range m {
			var sum float64
			for q, x := range a[i*k : i*k+k] {
				sum += x * column[q]
			}
			sums[j*m+i] = sum
		}
	}
	return sums
}

// tf32 rounds to 10 bits of fraction.
func tf32(x float64) float64 {
	bits := math.Float32bits(float32(x))
	return float64(math.Float32frombits((bits + 0xFFF + bits>>13&1) &^ 0x1FFF))
}

// transposed makes the rows of a column-major matrix of rows × cols its columns.
func transposed(x []float64, rows, cols int) []float64 {
	y := make([]float64, len(x))
	for j := range cols {
		for i := range rows {
			y[i*cols+j] = x[j*rows+i]
		}
	}
	return y
}

var sizes = map[cuda.DataType]int{cuda.R32F: 4, cuda.R64F: 8, cuda.R16F: 2, cuda.R16BF: 2}

// load reads matrix i of a batch, column after column.
func (b *blas) load(name string, x cuda.Matrix, at cuda.Ptr, i int) ([]float64, error) {
	size := sizes[x.Type]
	if at%cuda.Ptr(size) != 0 {
		return nil, failed("cublasLtMatmul", illegalAddress, "%s at %#x", name, at)
	}
	out := make([]float64, 0, x.Rows*x.Cols)
	raw := make([]byte, x.Rows*size)
	for j := range x.Cols {
		from := uint64(at) + uint64((i*x.Stride+j*x.LD)*size)
		if err := b.d.defined(from, raw); err != nil {
			return nil, failed("cublasLtMatmul", illegalAddress, "%s, column %d: %v", name, j, err)
		}
		for r := range x.Rows {
			out = append(out, get(raw[r*size:], x.Type))
		}
	}
	return out, nil
}

// store writes matrix i of a batch.
func (b *blas) store(name string, x cuda.Matrix, at cuda.Ptr, i int, v []float64) error {
	size := sizes[x.Type]
	raw := make([]byte, x.Rows*size)
	for j := range x.Cols {
		for r := range x.Rows {
			put(raw[r*size:], x.Type, v[j*x.Rows+r])
		}
		if err := b.d.mem.Write(uint64(at)+uint64((i*x.Stride+j*x.LD)*size), raw); err != nil {
			return failed("cublasLtMatmul", illegalAddress, "%s, column %d: %v", name, j, err)
		}
	}
	return nil
}

func get(b []byte, t cuda.DataType) float64 {
	switch t {
	case cuda.R64F:
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	case cuda.R16F:
		return float64(dtype.F16(binary.LittleEndian.Uint16(b)).Float32())
	case cuda.R16BF:
		return float64(dtype.BF16(binary.LittleEndian.Uint16(b)).Float32())
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
}

func put(b []byte, t cuda.DataType, x float64) {
	switch t {
	case cuda.R64F:
		binary.LittleEndian.PutUint64(b, math.Float64bits(x))
	case cuda.R16F:
		binary.LittleEndian.PutUint16(b, uint16(dtype.ToF16(float32(x))))
	case cuda.R16BF:
		binary.LittleEndian.PutUint16(b, uint16(dtype.ToBF16(float32(x))))
	default:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(x)))
	}
}

// Close does nothing.
func (b *blas) Close() error { return nil }
