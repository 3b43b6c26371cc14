// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || noasm

package gemm

// panels32 returns the only kernels there are.
func panels32() *panelKernels[float32] { return &genericPanels32 }

// unfold32 is Unfold.
func unfold32(dst []float32, pitch, places int, src []float32, step, planes, planeStride, rows, rowStride, run int) {
	unfoldGeneric(dst, pitch, places, src, step, planes, planeStride, rows, rowStride, run)
}
