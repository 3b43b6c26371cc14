// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || noasm

package vecmath

// There are no kernels with vectors, and nothing calls these.

func maxRowsVector(rows, n int, s *float32, stride int, most, factor *float32, scale float32) {}

func expRowsVector(rows, n int, s *float32, stride int, most, factor *float32, sum *float64, scale float32) {
}

func scoreRowsVector(rows, n int, s, d *float32, stride int, shift, delta *float32, base, scale float32) {
}

func scaleRowsVector(rows, n int, x *float32, stride int, factor *float32) {}

func dotRowsVector(rows, n int, x *float32, xstride int, y *float32, ystride int, sum *float32) {}

func hideRowsVector(rows, n int, s *float32, stride, seen, grow int) {}
