// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/unbuilt"
)

// Only the ranks along the axes of the data divide the training stream and sum gradients; the others do the same work,
// and all end with the bits of one rank.
func TestMeshDividesTheDataAlongItsDataAxes(t *testing.T) {
	t.Cleanup(unbuilt.AllowAxes())
	var want map[string]string
	err := accelerate.Run(t.Context(), rankArgs(1), func(acc *accelerate.Accelerator) (err error) {
		want, _, err = train(t, acc, 3, everywhere, nowhere)
		return err
	})
	require.NoError(t, err)
	for _, mesh := range []string{"dp=2,tp=2", "pp=2,dp=-1", "tp=4", "dp=4", "dp_replicate=2,dp_shard=2,tp=2",
		"tp=2,dp=2,cp=2"} {
		axes, err := comm.ParseAxes(mesh)
		require.NoError(t, err)
		ranks := 4
		if len(axes) == 3 {
			ranks = 8
		}
		got, places := make([]map[string]string, ranks), make([]string, ranks)
		err = accelerate.Run(t.Context(), rankArgs(ranks), func(acc *accelerate.Accelerator) error {
			w, _, err := train(t, acc, 3, everywhere, nowhere)
			got[acc.Rank()] = w
			places[acc.Rank()] = fmt.Sprintf("%d/%d %d/%d", acc.Data().Rank(), acc.Data().Size(), acc.Model().Rank(),
				acc.Model().Size())
			return err
		}, accelerate.WithLogger(quiet), accelerate.WithMesh(axes...))
		require.NoError(t, err, mesh)
		for rank, w := range got {
			require.Equal(t, want, w, "%s: rank %d", mesh, rank)
		}
		if mesh == "dp=2,tp=2" {
			require.Equal(t, []string{"0/2 0/2", "0/2 1/2", "1/2 0/2", "1/2 1/2"}, places)
		}
	}
}

func TestMeshThatDoesNotFitTheRanks(t *testing.T) {
	body := func(*accelerate.Accelerator) error { return errors.New("not reached") }
	err := accelerate.Run(t.Context(), rankArgs(4), body, accelerate.WithMesh(comm.Axis{Name: "dp", Size: 3}))
	require.EqualError(t, err, "accelerate: comm: mesh dp=3 does not fit 4 ranks: want sizes whose product is 4")
}

// An axis that no step honours is refused by name: its ranks would do the same work, and one would overwrite the
// weights of the other.
func TestMeshWithAxesThatAreNotBuilt(t *testing.T) {
	body := func(*accelerate.Accelerator) error { return errors.New("not reached") }
	for axes, want := range map[string]string{
		"tp=2,dp=2": `accelerate: mesh tp=2,dp=2: tensor parallelism is not built yet (axis "tp"): want axes among ` +
			`dp, dp_replicate, dp_shard`,
		"pp=-1": `accelerate: mesh pp=4: pipeline parallelism is not built yet (axis "pp"): want axes among dp, ` +
			`dp_replicate, dp_shard`,
		"foo=4":      `accelerate: mesh foo=4: unknown axis "foo": want axes among dp, dp_replicate, dp_shard`,
		"dp_foo=4":   `accelerate: mesh dp_foo=4: unknown axis "dp_foo": want axes among dp, dp_replicate, dp_shard`,
		"dp=4,foo=1": `accelerate: mesh dp=4,foo=1: unknown axis "foo": want axes among dp, dp_replicate, dp_shard`,
	} {
		list, err := comm.ParseAxes(axes)
		require.NoError(t, err)
		require.EqualError(t, accelerate.Run(t.Context(), rankArgs(4), body, accelerate.WithMesh(list...)), want)
		_, err = accelerate.Replicas(rankArgs(4), 4, accelerate.WithMesh(list...))
		require.EqualError(t, err, want)
	}
	err := accelerate.Run(t.Context(), rankArgs(2), func(acc *accelerate.Accelerator) error {
		require.Equal(t, 2, acc.Data().Size())
		return nil
	}, accelerate.WithLogger(quiet),
		accelerate.WithMesh(comm.Axis{Name: "tp", Size: 1}, comm.Axis{Name: "dp", Size: 2}))
	require.NoError(t, err)
}

// A rank that fails ends the work of ranks that wait for others than it.
func TestFailureEndsAllGroupsOfAMesh(t *testing.T) {
	t.Cleanup(unbuilt.AllowAxes())
	ranks := accelerators(t, 4, func(_ int, a *args.TrainingArguments) {},
		accelerate.WithMesh(comm.Axis{Name: "dp", Size: 2}, comm.Axis{Name: "tp", Size: 2}))
	errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
		if err := acc.Open(t.Context()); err != nil {
			return err
		}
		if acc.Rank() == 3 {
			return errors.New("out of disk")
		}
		for { // ranks 0 and 2 have no call with rank 3
			if err := acc.Data().Barrier(t.Context()); err != nil {
				return err
			}
		}
	})
	for rank, err := range errs {
		require.ErrorContains(t, err, "out of disk", "rank %d", rank)
	}
}
