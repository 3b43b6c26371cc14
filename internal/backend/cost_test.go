// SPDX-License-Identifier: Apache-2.0

package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// view is a contiguous float32 view.
func view(shape ...int) backend.View {
	v := backend.View{DType: dtype.Float32, NDim: len(shape)}
	n := 1
	for d := len(shape) - 1; d >= 0; d-- {
		v.Shape[d], v.Stride[d] = shape[d], n
		n *= shape[d]
	}
	return v
}

func TestCost(t *testing.T) {
	call := func(op backend.Op, outs, ins []backend.View, ints ...int) (flops, bytes float64) {
		c := &backend.Call{Op: op, NOut: len(outs), NIn: len(ins)}
		copy(c.Out[:], outs)
		copy(c.In[:], ins)
		copy(c.Ints[:], ints)
		return c.Cost()
	}
	flops, bytes := call(backend.OpMatMul, []backend.View{view(2, 3, 5)}, []backend.View{view(2, 3, 4), view(2, 4, 5)})
	require.Equal(t, 2.0*2*3*4*5, flops)
	require.Equal(t, 4.0*(30+24+40), bytes)
	_, more := call(backend.OpMatMul, []backend.View{view(2, 3, 5)}, []backend.View{view(2, 3, 4), view(2, 4, 5)}, 1)
	require.Equal(t, bytes+4*30, more, "adding reads the output")

	x, w, y := view(2, 3, 8, 8), view(5, 3, 2, 2), view(2, 5, 7, 7)
	for op, operands := range map[backend.Op][3]backend.View{backend.OpConv2D: {y, x, w},
		backend.OpConv2DGrad: {x, y, w}, backend.OpConv2DParamGrad: {w, x, y}} {
		flops, bytes = call(op, operands[:1], operands[1:])
		require.Equal(t, 2.0*2*5*7*7*3*2*2, flops, "%s", op)
		require.Equal(t, 4.0*(2*3*8*8+5*3*2*2+2*5*7*7), bytes, "%s", op)
	}

	repeated := view(8)
	repeated.Stride[0] = 0
	flops, bytes = call(backend.OpAdd, []backend.View{view(8)}, []backend.View{view(8), repeated})
	require.Zero(t, flops)
	require.Equal(t, 4.0*(8+8+1), bytes)
	_, bytes = call(backend.OpAdd, []backend.View{view(0, 3)}, []backend.View{view(0, 3), view(0, 3)})
	require.Zero(t, bytes)

	q, k, v := view(2, 3, 4, 8), view(2, 3, 4, 8), view(2, 3, 4, 6)
	flops, _ = call(backend.OpAttention, []backend.View{view(2, 3, 4, 6)}, []backend.View{q, k, v})
	require.Equal(t, 2.0*2*3*4*4*(8+6), flops)
	causal, _ := call(backend.OpAttention, []backend.View{view(2, 3, 4, 6)}, []backend.View{q, k, v}, 1)
	require.Equal(t, 2.0*2*3*10*(8+6), causal, "4·5/2 of 4·4 pairs")
	flops, _ = call(backend.OpAttentionGrad, []backend.View{q, k, v}, []backend.View{q, k, v})
	require.Equal(t, 2.0*2*3*4*4*(3*8+2*6), flops)
}
