// SPDX-License-Identifier: Apache-2.0

package vecmath

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// nonTemporalKernels are the kernels that can write by non-temporal stores. Long results are written so:
// TestNonTemporalStores.
var nonTemporalKernels = map[string]any{
	"add": addVector, "affine": affineVector, "axpby": axpbyVector, "div": divVector, "exp": expVector,
	"gelu": geluVector, "geluGrad": geluGradVector, "geluTanh": geluTanhVector, "geluTanhGrad": geluTanhGradVector,
	"logSoftmaxGrad": logSoftmaxGradVector, "mul": mulVector, "normGrad": normGradVector,
	"normGradSums": normGradSumsVector, "normalize": normalizeVector, "normalizeAffine": normalizeAffineVector,
	"normalizeMoments": normalizeMomentsVector, "normalizeScale": normalizeScaleVector, "relu": reluVector,
	"reluGrad": reluGradVector, "scale": scaleVector, "scaleExpSum": scaleExpSumVector, "sigmoid": sigmoidVector,
	"silu": siluVector, "siluGrad": siluGradVector, "softmaxGrad": softmaxGradVector,
	"softmaxGradDot": softmaxGradDotVector, "sub": subVector, "subWide": subWideVector, "swiglu": swigluVector,
	"tanh": tanhVector,
}

// TestNonTemporalKernels calls kernels with either kind of stores on a few blocks: they write the same.
func TestNonTemporalKernels(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		for name, kernel := range nonTemporalKernels {
			for _, n := range []int{16, 37, 176} {
				near, done := callKernel(t, kernel, n, false)
				nonTemporal, _ := callKernel(t, kernel, n, true)
				require.Equal(t, near, nonTemporal, "%s of %d elements", name, n)
				if v != kernels.Generic {
					require.Equal(t, n-n%16, done, name)
				}
			}
		}
	})
}

// callKernel calls a kernel with operands that are the same for every call, and returns what they are afterwards.
func callKernel(t *testing.T, kernel any, n int, nonTemporal bool) (operands []any, done int) {
	t.Helper()
	r := rand.New(rand.NewPCG(7, uint64(n)))
	f := reflect.ValueOf(kernel)
	var arguments []reflect.Value
	for i := range f.Type().NumIn() {
		switch p := f.Type().In(i); p {
		case reflect.TypeFor[int]():
			arguments = append(arguments, reflect.ValueOf(n))
		case reflect.TypeFor[bool]():
			arguments = append(arguments, reflect.ValueOf(nonTemporal))
		case reflect.TypeFor[float32]():
			arguments = append(arguments, reflect.ValueOf(r.Float32()+0.5))
		case reflect.TypeFor[float64]():
			arguments = append(arguments, reflect.ValueOf(r.Float64()+0.5))
		case reflect.TypeFor[*float32]():
			x := aligned(n + 16)
			for j := range x {
				x[j] = 4*r.Float32() - 2
			}
			operands, arguments = append(operands, x), append(arguments, reflect.ValueOf(&x[0]))
		case reflect.TypeFor[*float64]():
			x := make([]float64, 16)
			operands, arguments = append(operands, x), append(arguments, reflect.ValueOf(&x[0]))
		default:
			require.Fail(t, fmt.Sprintf("a parameter of type %s", p))
		}
	}
	return operands, int(f.Call(arguments)[0].Int())
}

// aligned returns n elements that begin with a cache line.
func aligned(n int) []float32 {
	x := make([]float32, n+16)
	for uintptr(unsafe.Pointer(&x[0]))%64 != 0 {
		x = x[1:]
	}
	return x[:n]
}
