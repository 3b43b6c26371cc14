// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// TestLargeOutputs: an output that is written by non-temporal stores has the bits of its halves, which are not.
func TestLargeOutputs(t *testing.T) {
	if testing.Short() {
		t.Skip("large operands")
	}
	const rows, cols = nonTemporalBytes / 4 / 1024, 1024
	d := New(3)
	defer d.Close()
	number := func(i int) float32 { return float32(i*7919%2001-1000) / 500 }
	x, dy := view(t, d, number, rows, cols), view(t, d, func(i int) float32 { return number(i + 1) }, rows, cols)
	w, b := view(t, d, number, cols), view(t, d, number, cols)
	mean, rstd := view(t, d, zero, rows), view(t, d, func(int) float32 { return 1 }, rows)
	v := func(v ...backend.View) []backend.View { return v }
	for _, k := range []struct {
		op   backend.Op
		ins  []backend.View
		outs int // statistics, after the result
		sums int // gradients of parameters, which are those of the half that was last
	}{
		{backend.OpReLU, v(x), 0, 0}, {backend.OpGELU, v(x), 0, 0}, {backend.OpAdd, v(x, dy), 0, 0},
		{backend.OpSwiGLU, v(x, dy), 0, 0}, {backend.OpGELUTanhGrad, v(x, dy), 0, 0},
		{backend.OpSoftmax, v(x), 0, 0}, {backend.OpSoftmaxGrad, v(x, dy), 0, 0}, {backend.OpLogSoftmax, v(x), 0, 0},
		{backend.OpLogSoftmaxGrad, v(x, dy), 0, 0},
		{backend.OpLayerNorm, v(x, w, b), 2, 0}, {backend.OpRMSNorm, v(x, w), 1, 0},
		{backend.OpLayerNormGrad, v(x, mean, rstd, dy, w), 0, 0}, {backend.OpRMSNormGrad, v(x, rstd, dy, w), 0, 0},
		{backend.OpLayerNormGrad, v(x, mean, rstd, dy, w), 0, 2},
		{backend.OpLayerNormGrad, v(x, mean, rstd, dy, w), 0, 1},
	} {
		whole, parts := view(t, d, zero, rows, cols), view(t, d, zero, rows, cols)
		stats := append([]backend.View{view(t, d, zero, rows), view(t, d, zero, rows)}[:k.outs],
			[]backend.View{view(t, d, zero, cols), view(t, d, zero, cols)}[:k.sums]...)
		launch := func(out backend.View, from, to int) {
			c := call(k.op, append(v(out), stats...), k.ins)
			half := func(v *backend.View) {
				if v.Shape[0] == rows {
					v.Offset, v.Shape[0] = from*v.Stride[0], to-from
				}
			}
			for i := range c.NIn {
				half(&c.In[i])
			}
			for i := range c.NOut {
				half(&c.Out[i])
			}
			kernels[k.op].run(d, c)
		}
		launch(parts, 0, rows/2)
		launch(parts, rows/2, rows)
		for _, overlapRows = range []bool{!overlapRows, overlapRows} {
			launch(whole, 0, rows)
			require.Equal(t, parts.Buf.(*buffer).bytes(), whole.Buf.(*buffer).bytes(), "%s, overlapped: %t", k.op,
				overlapRows)
		}
		d.mem.release(whole.Buf.(*buffer))
		d.mem.release(parts.Buf.(*buffer))
	}
}
