// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// queue issues 1,000 all-reduces of random sizes before it waits for the first.
func (e Engine) queue(t *testing.T) {
	const n, calls = 4, 1000
	most := 3000
	if testing.Short() { // a short run is the race detector's, which the number of calls is for
		most = 500
	}
	groups := e.start(t, n, comm.Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	inputs, want := make([][][]byte, calls), make([][]byte, calls)
	handles := make([][]*comm.Handle, calls)
	ordinary := newArena(n)
	for k := range inputs {
		inputs[k] = random(ordinary.place, n, rng.IntN(most), dtype.Float32, uint64(k))
		want[k] = Combine(inputs[k], dtype.Float32, comm.Sum)
	}
	for k := range inputs {
		handles[k] = issue(groups, func(r int, g *comm.Group) *comm.Handle {
			return g.AllReduce(comm.Bytes(inputs[k][r], dtype.Float32), comm.Sum, comm.Label(fmt.Sprint("bucket ", k)))
		})
	}
	for k := range inputs {
		wait(t, handles[k])
		for r := range inputs[k] {
			require.True(t, bytes.Equal(want[k], inputs[k][r]), "call %d, rank %d", k, r)
		}
		require.Equal(t, uint64(k+1), handles[k][0].Signature().Seq)
	}
}

// messages sends rings and pairs beside a collective call, in patterns that block where a send waits for its receiver.
func (e Engine) messages(t *testing.T) {
	const n, rounds = 4, 20
	groups := e.start(t, n, comm.Options{})
	most := 200_001
	if testing.Short() {
		most = 50_001 // twenty of them fill what systems keep of a connection, too
	}
	for _, count := range []int{0, 1, 1000, most} {
		var handles []*comm.Handle
		sent, got := make([][][]int32, n), make([][][]int32, n)
		for r, g := range groups {
			sent[r], got[r] = make([][]int32, rounds), make([][]int32, rounds)
			for k := range rounds {
				sent[r][k], got[r][k] = make([]int32, count), make([]int32, count)
				for i := range sent[r][k] {
					sent[r][k][i] = int32(1000*r + k + 7*i)
				}
				handles = append(handles, g.Send(comm.Of(sent[r][k]), (r+1)%n)) // all send first
			}
		}
		for r, g := range groups {
			handles = append(handles, g.Barrier()) // a collective call does not wait for messages
			for k := range rounds {
				handles = append(handles, g.Recv(comm.Of(got[r][k]), (r+n-1)%n))
			}
		}
		wait(t, handles)
		for r := range groups {
			require.Equal(t, sent[(r+n-1)%n], got[r], "rank %d", r)
		}
	}
}

// objects are structures that travel as JSON.
func (e Engine) objects(t *testing.T) {
	type object struct {
		Name string
		List []int
	}
	groups := e.start(t, 3, comm.Options{})
	ctx := context.Background()
	each(groups, func(g *comm.Group) error {
		o := object{Name: fmt.Sprint("rank ", g.Rank()), List: make([]int, g.Rank()*1000)}
		if err := comm.BroadcastObject(ctx, g, &o, 1); err != nil {
			return err
		}
		if o.Name != "rank 1" || len(o.List) != 1000 {
			return fmt.Errorf("broadcast %q, list of %d", o.Name, len(o.List))
		}
		all, err := comm.AllGatherObject(ctx, g,
			object{Name: fmt.Sprint("from ", g.Rank()), List: make([]int, g.Rank())})
		if err != nil {
			return err
		}
		for r, o := range all {
			if o.Name != fmt.Sprint("from ", r) || len(o.List) != r {
				return fmt.Errorf("gathered %+v from rank %d", o, r)
			}
		}
		return nil
	}, func(r int, err error) { require.NoError(t, err, "rank %d", r) })
}

// subGroups work beside their parent and fail alone.
func (e Engine) subGroups(t *testing.T) {
	groups := e.start(t, 5, comm.Options{})
	members := [][]int{{4, 0, 2}, {1, 3}}
	subs := divide(t, groups, func(i int) string { return fmt.Sprint("part", i) }, members...)
	for i, m := range members {
		for k, r := range m {
			require.NotNil(t, subs[r])
			require.Equal(t, k, subs[r].Rank())
			require.Equal(t, len(m), subs[r].Size())
			require.Equal(t, fmt.Sprint("world/part", i), subs[r].Name())
		}
	}
	sums := make([][]int64, len(groups))
	var handles []*comm.Handle
	for r := range groups {
		sums[r] = []int64{int64(r), int64(r)}
		handles = append(handles, subs[r].AllReduce(comm.Of(sums[r][:1]), comm.Sum),
			groups[r].AllReduce(comm.Of(sums[r][1:]), comm.Sum))
	}
	wait(t, handles)
	for r := range groups {
		require.Equal(t, []int64{[]int64{6, 4}[r%2], 10}, sums[r], "rank %d", r)
	}
	e.subGroupFails(t, groups, subs, members[1])
}

func (e Engine) subGroupFails(t *testing.T, groups, subs []*comm.Group, members []int) {
	var handles []*comm.Handle
	for _, r := range members {
		handles = append(handles, subs[r].AllReduce(comm.Of(make([]float32, r)), comm.Sum))
	}
	for _, err := range failures(t, handles) {
		require.Equal(t, "world/part1", as[*comm.MismatchError](t, err).Group)
	}
	wait(t, issue(groups, func(_ int, g *comm.Group) *comm.Handle { return g.Barrier() }))
	wait(t, []*comm.Handle{subs[0].Barrier(), subs[2].Barrier(), subs[4].Barrier()})
}
