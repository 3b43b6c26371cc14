// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
)

// split divides a group into the sub-groups of a mesh, and some of these again.
func (e Engine) split(t *testing.T) {
	t.Run("mesh", e.splitMesh)
	t.Run("colors", e.splitColors)
	t.Run("disagreement", e.splitDisagreement)
	t.Run("arguments", e.splitArguments)
}

// splitMesh makes four kinds of groups with one collective call, and sub-groups of sub-groups with another.
func (e Engine) splitMesh(t *testing.T) {
	mesh, err := comm.Mesh{PP: 2, DPShard: 2, TP: 2}.Of(8)
	require.NoError(t, err)
	sets := []comm.Axes{comm.DPShard, comm.PP | comm.TP, comm.TP, comm.PP}
	groups := e.start(t, 8, comm.Options{})
	subs := make([][]*comm.Group, len(groups))
	each(groups, func(g *comm.Group) (err error) {
		subs[g.Rank()], err = mesh.Groups(g, sets...)
		return err
	}, func(r int, err error) {
		require.NoError(t, err, "rank %d", r)
		require.Len(t, groups[r].Flight().Entries, 1, "rank %d", r)
	})
	for i, axes := range sets {
		list := make([]*comm.Group, len(groups))
		for r := range groups {
			list[r] = subs[r][i]
		}
		t.Cleanup(func() { closeAll(t, list) })
		for r, g := range list {
			require.Equal(t, "world/"+axes.String(), g.Name())
			requireMembers(t, g, mesh.Peers(r, axes))
		}
		sumJobRanks(t, list)
	}
	inner := make([]*comm.Group, len(groups)) // each pp×tp group divided into its columns of tp
	each(groups, func(g *comm.Group) error {
		s, err := subs[g.Rank()][1].Split(comm.Partition{Name: "columns", Color: []int{1, 0, 1, 0}})
		if err == nil {
			inner[g.Rank()] = s[0]
		}
		return err
	}, func(r int, err error) { require.NoError(t, err, "rank %d", r) })
	t.Cleanup(func() { closeAll(t, inner) })
	for r, g := range inner {
		require.Equal(t, "world/pp×tp/columns", g.Name())
		requireMembers(t, g, mesh.Peers(r, comm.PP))
	}
	sumJobRanks(t, inner)
}

// splitColors: a negative color is in no sub-group.
func (e Engine) splitColors(t *testing.T) {
	groups := e.start(t, 4, comm.Options{})
	subs := make([][]*comm.Group, len(groups))
	each(groups, func(g *comm.Group) (err error) {
		subs[g.Rank()], err = g.Split(comm.Partition{Name: "odd", Color: []int{-1, 0, -1, 0}},
			comm.Partition{Name: "own", Color: []int{3, 2, 1, 0}})
		return err
	}, func(r int, err error) { require.NoError(t, err, "rank %d", r) })
	var live []*comm.Group
	for r, list := range subs {
		require.Equal(t, r%2 == 0, list[0] == nil, "rank %d", r)
		requireMembers(t, list[1], []int{r})
		if live = append(live, list[1]); list[0] != nil {
			live = append(live, list[0])
		}
	}
	t.Cleanup(func() { closeAll(t, live) })
	sumJobRanks(t, []*comm.Group{subs[1][0], subs[3][0]})
}

// splitDisagreement: ranks that divide a group differently are told so, instead of waiting for each other.
func (e Engine) splitDisagreement(t *testing.T) {
	groups := e.start(t, 3, comm.Options{})
	each(groups, func(g *comm.Group) error {
		color := []int{0, 0, 1}
		if g.Rank() == 2 {
			color = []int{0, 1, 1}
		}
		_, err := g.Split(comm.Partition{Name: "part", Color: color})
		return err
	}, func(r int, err error) {
		require.Equal(t, 2, as[*comm.MismatchError](t, err).B.Rank, "rank %d", r)
	})
}

func (e Engine) splitArguments(t *testing.T) {
	for _, c := range []struct {
		p    comm.Partition
		want string
	}{
		{comm.Partition{Name: "part", Color: []int{0}},
			`comm: partition "part" with 1 colors: want a name and a color for each of 2 ranks`},
		{comm.Partition{Color: []int{0, 1}},
			`comm: partition "" with 2 colors: want a name and a color for each of 2 ranks`},
	} {
		groups := e.start(t, 2, comm.Options{})
		waiting := groups[0].Barrier()
		_, err := groups[1].Split(c.p)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, failures(t, []*comm.Handle{waiting})[0], c.want)
	}
}

// requireMembers compares the job ranks of a group.
func requireMembers(t *testing.T, g *comm.Group, want []int) {
	t.Helper()
	got := make([]int, g.Size())
	for r := range got {
		got[r] = g.JobRank(r)
	}
	require.Equal(t, want, got)
	require.Contains(t, want, g.JobRank(g.Rank()))
}

// sumJobRanks adds up, in every group, the job ranks of its members.
func sumJobRanks(t *testing.T, groups []*comm.Group) {
	t.Helper()
	sums := make([][]int64, len(groups))
	wait(t, issue(groups, func(i int, g *comm.Group) *comm.Handle {
		sums[i] = []int64{int64(g.JobRank(g.Rank()))}
		return g.AllReduce(comm.Of(sums[i]), comm.Sum)
	}))
	for i, g := range groups {
		var want int64
		for r := range g.Size() {
			want += int64(g.JobRank(r))
		}
		require.Equal(t, []int64{want}, sums[i], fmt.Sprintf("%s, rank %d", g.Name(), g.Rank()))
	}
}
