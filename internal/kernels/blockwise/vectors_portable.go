// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || noasm

package blockwise

func (m *Map) quantizeVector([]uint8, []float32, []float32) int { return 0 }

func (m *Map) dequantizeVector([]float32, []uint8, []float32) int { return 0 }

func productQ8(rows, columns, blocks int, w []uint8, x, y []float32) {
	productQ8Generic(rows, columns, blocks, w, x, y)
}

func largestVector([]float32) (done int, bits uint32) { return 0, 0 }

func quantizeInt8Vector([]byte, []float32, float32) int { return 0 }

func dequantizeInt8Vector([]float32, []byte, float32) int { return 0 }

func addInt8Vector([]float32, []byte, float32) int { return 0 }
