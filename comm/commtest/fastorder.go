// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// fastOrder: any order, but the same bits on all ranks, and the exact result where no order matters. The sizes are on
// both sides of those from which on engines change their algorithm, and leave chunks that are not full.
func (e Engine) fastOrder(t *testing.T) {
	const perRank = 270_001 // more than 1 MiB of float32
	for _, n := range []int{2, 3, 5, 8} {
		groups := e.start(t, n, comm.Options{FastOrder: true})
		for _, d := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Int64} {
			for _, count := range []int{1, 7_001} {
				e.fastSums(t, groups, count, d)
			}
		}
		if !e.Slow && (n == 3 || n == 8 && !testing.Short()) {
			e.fastSums(t, groups, n*perRank, dtype.Float32)
		}
		wait(t, issue(groups, func(_ int, g *comm.Group) *comm.Handle { return g.Barrier() }))
	}
	t.Run("failures", e.fastFailures)
}

func (e Engine) fastSums(t *testing.T, groups []*comm.Group, count int, d dtype.DType) {
	n := len(groups)
	what := fmt.Sprintf("%v × %d on %d ranks", d, count, n)
	plain := func(_, n int) []byte { return comm.Aligned(n) }
	in := random(plain, n, count, d, uint64(count))
	exact := Combine(in, d, comm.Max)
	top := clone(in)
	for r := range top {
		top[r] = append(comm.Aligned(len(in[r]))[:0], in[r]...)
	}
	for op, list := range map[comm.ReduceOp][][]byte{comm.Sum: in, comm.Max: top} {
		handles := issue(groups, func(r int, g *comm.Group) *comm.Handle {
			return g.AllReduce(comm.Bytes(list[r], d), op)
		})
		wait(t, handles)
		require.True(t, handles[0].Signature().Fast)
	}
	for r := range in {
		require.True(t, bytes.Equal(in[0], in[r]), "all-reduce of %s: ranks 0 and %d differ", what, r)
		require.True(t, bytes.Equal(exact, top[r]), "maximum of %s, rank %d", what, r)
	}
	if d == dtype.Int64 {
		require.True(t, bytes.Equal(Combine(random(plain, n, count, d, uint64(count)), d, comm.Sum), in[0]), what)
	}
	block := (count + n - 1) / n
	in = random(plain, n, n*block, d, 7)
	kept, out := clone(in), random(plain, n, block, d, 8)
	exact = Combine(in, d, comm.Max)
	wait(t, issue(groups, func(r int, g *comm.Group) *comm.Handle {
		return g.ReduceScatter(comm.Bytes(out[r], d), comm.Bytes(in[r], d), comm.Max)
	}))
	size := block * d.Size()
	for r := range out {
		require.True(t, bytes.Equal(exact[r*size:(r+1)*size], out[r]), "reduce-scatter of %s, rank %d", what, r)
		require.True(t, bytes.Equal(kept[r], in[r]), "the input of a reduce-scatter of %s, rank %d", what, r)
	}
	wait(t, issue(groups, func(r int, g *comm.Group) *comm.Handle { // into its own part of the input
		return g.ReduceScatter(comm.Bytes(in[r][r*size:(r+1)*size], d), comm.Bytes(in[r], d), comm.Max)
	}))
	for r := range in {
		require.True(t, bytes.Equal(exact[r*size:(r+1)*size], in[r][r*size:(r+1)*size]),
			"reduce-scatter in place of %s, rank %d", what, r)
	}
}

// fastFailures: a rank that is lost, late or gives up is named, though not all ranks hear from it directly.
func (e Engine) fastFailures(t *testing.T) {
	sum := func(g *comm.Group, opts ...comm.CallOption) *comm.Handle {
		return g.AllReduce(comm.Of(make([]float32, 1_100_000)), comm.Sum, opts...)
	}
	others := func(groups []*comm.Group, opts ...comm.CallOption) []*comm.Handle {
		return []*comm.Handle{sum(groups[0], opts...), sum(groups[1], opts...), sum(groups[3], opts...)}
	}
	t.Run("missing", func(t *testing.T) {
		groups := e.start(t, 4, comm.Options{FastOrder: true})
		for _, err := range failures(t, others(groups, comm.Timeout(300*time.Millisecond))) {
			require.Equal(t, []int{2}, as[*comm.TimeoutError](t, err).Missing)
		}
	})
	t.Run("departure", func(t *testing.T) {
		groups := e.start(t, 4, comm.Options{FastOrder: true})
		wait(t, issue(groups, func(_ int, g *comm.Group) *comm.Handle { return sum(g) }))
		require.NoError(t, groups[2].Close())
		for _, err := range failures(t, others(groups)) {
			require.Equal(t, 2, as[*comm.RankLostError](t, err).Rank)
		}
	})
	t.Run("abort", func(t *testing.T) {
		groups := e.start(t, 4, comm.Options{FastOrder: true})
		handles := others(groups)
		groups[2].Abort(errors.New("boom"))
		for _, err := range failures(t, handles) {
			require.Equal(t, 2, as[*comm.AbortError](t, err).Rank)
		}
		require.Error(t, groups[2].Barrier().Wait(context.Background()))
	})
}
