// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || noasm

package blockwise

func (m *Map) quantizeVector([]uint8, []float32, []float32) int { return 0 }

func (m *Map) dequantizeVector([]float32, []uint8, []float32) int { return 0 }

func productQ8(rows, columns, blocks int, w []uint8, x, y []float32) {
	productQ8Generic(rows, columns, blocks, w, x, y)
}
