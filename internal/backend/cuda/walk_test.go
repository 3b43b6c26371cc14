// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// places are the addresses of all operands at each element.
type places [maxOperands]cuda.Ptr

// visit lists the places of a walk in its order, as a kernel finds them.
func visit(w *walk) (all []places) {
	for i := range w.n {
		p := w.at
		rest := uint32(i)
		for d := range w.nd {
			q := uint32(0)
			if d < w.nd-1 {
				mul, shift := divisor(uint32(w.size[d]))
				high, _ := bits.Mul32(rest, mul)
				q = (high + rest) >> shift
			}
			for k := range w.ops {
				p[k] += cuda.Ptr((int(rest) - int(q)*w.size[d]) * w.stride[k][d] * w.bytes[k])
			}
			rest = q
		}
		all = append(all, p)
	}
	return all
}

// A walk visits what the views show, whole or in parts: sorted in any order, else in row-major order.
func TestWalk(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s *stream
	for range 300 {
		ops, nd := 1+r.IntN(maxOperands), r.IntN(backend.MaxDims+1)
		views := make([]*backend.View, ops)
		shape := [backend.MaxDims]int{}
		for d := range nd {
			shape[d] = []int{1, 2, 3, 5}[r.IntN(4)]
		}
		for k := range views {
			v := &backend.View{Buf: &buffer{at: cuda.Ptr(1 << (20 + k))}, NDim: nd, Shape: shape, Offset: r.IntN(4)}
			v.DType = []dtype.DType{dtype.Uint8, dtype.Float32}[k%2]
			n := 1 + r.IntN(2) // row-major, with gaps
			for _, d := range r.Perm(nd)[:nd] {
				v.Stride[d] = n
				n = n*v.Shape[d] + r.IntN(2)
				if k > 0 && r.IntN(4) == 0 {
					v.Stride[d] = 0
				}
			}
			if r.IntN(2) == 0 {
				n = 1
				for d := nd - 1; d >= 0; d-- {
					v.Stride[d] = n
					n *= v.Shape[d]
				}
			}
			views[k] = v
		}
		var want []places
		for i := range views[0].Numel() {
			var p places
			for k, v := range views {
				at, rest := v.Offset, i
				for d := nd - 1; d >= 0; d-- {
					at += rest % shape[d] * v.Stride[d]
					rest /= shape[d]
				}
				p[k] = s.addr(&backend.View{Buf: v.Buf, DType: v.DType, Offset: at})
			}
			want = append(want, p)
		}
		for _, most := range []int{maxWalk, 1 + r.IntN(40)} {
			for _, sorted := range []bool{false, true} {
				w := s.walkOf(sorted, views...)
				var got []places
				for i := range w.pieces(most) {
					p := w.piece(most, i)
					require.LessOrEqual(t, p.n, most)
					got = append(got, visit(&p)...)
				}
				if !sorted {
					require.Equal(t, want, got)
					continue
				}
				order := func(p, q places) int { return slices.Compare(p[:], q[:]) }
				slices.SortFunc(got, order)
				expected := slices.SortedFunc(slices.Values(want), order)
				require.Equal(t, expected, got)
				contiguous := !slices.ContainsFunc(views, func(v *backend.View) bool { return !v.Contiguous() })
				require.True(t, w.contiguous() || !contiguous, "%v", views)
			}
		}
	}
}

// The products that stand for divisions are right up to 2³¹.
func TestDivisor(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100_000 {
		n := 1 + r.Uint32N(1<<31-1)>>r.IntN(31)
		i := r.Uint32N(1<<31) >> r.IntN(31)
		if r.IntN(2) == 0 {
			i = i/n*n - r.Uint32N(2)&min(1, i/n)
		}
		mul, shift := divisor(n)
		high, _ := bits.Mul32(i, mul)
		require.Equal(t, i/n, (high+i)>>shift, "%d / %d", i, n)
	}
}
