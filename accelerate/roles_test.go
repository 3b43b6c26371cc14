// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Only the ranks along the axes of the data divide the training stream. The others do the same work, and all end with
// the bits of one rank.
func TestMeshDividesTheDataAlongItsDataAxes(t *testing.T) {
	var want map[string]string
	err := accelerate.Run(t.Context(), rankArgs(1), func(acc *accelerate.Accelerator) (err error) {
		want, _, err = train(t, acc, 3, everywhere, nowhere)
		return err
	})
	require.NoError(t, err)
	for ranks, meshes := range map[int][]string{
		4: {"dp_replicate=2,tp=2", "tp=4", "dp_replicate=4", "dp_shard=4"},
		8: {"dp_replicate=2,dp_shard=2,tp=2"},
	} {
		for _, text := range meshes {
			mesh, err := comm.ParseMesh(text)
			require.NoError(t, err)
			got, places := make([]map[string]string, ranks), make([]string, ranks)
			a := rankArgs(ranks)
			a.TPPlan = map[string]any{"first": "replicate", "second": "replicate", "extra": "replicate"}
			err = accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
				w, _, err := train(t, acc, 3, everywhere, nowhere)
				got[acc.Rank()], places[acc.Rank()] = w, roles(acc)
				return err
			}, accelerate.WithLogger(quiet), accelerate.WithMesh(mesh))
			require.NoError(t, err, text)
			for rank, w := range got {
				require.Equal(t, want, w, "%s: rank %d", text, rank)
			}
		}
	}
}

// The peers of a rank follow from its place in the mesh.
func TestRolesOfRanks(t *testing.T) {
	places := make([]string, 8)
	err := accelerate.Run(t.Context(), rankArgs(8), func(acc *accelerate.Accelerator) error {
		places[acc.Rank()] = roles(acc)
		return nil
	}, accelerate.WithLogger(quiet), accelerate.WithMesh(comm.Mesh{DPReplicate: 2, CP: 2, TP: 2}))
	require.NoError(t, err)
	require.Equal(t, []string{
		"data 0/2 loss 0/4 model 0/4 tensor 0/2 pipe 0/1 context 0/2",
		"data 0/2 loss 0/4 model 1/4 tensor 1/2 pipe 0/1 context 0/2",
		"data 0/2 loss 1/4 model 2/4 tensor 0/2 pipe 0/1 context 1/2",
		"data 0/2 loss 1/4 model 3/4 tensor 1/2 pipe 0/1 context 1/2",
		"data 1/2 loss 2/4 model 0/4 tensor 0/2 pipe 0/1 context 0/2",
		"data 1/2 loss 2/4 model 1/4 tensor 1/2 pipe 0/1 context 0/2",
		"data 1/2 loss 3/4 model 2/4 tensor 0/2 pipe 0/1 context 1/2",
		"data 1/2 loss 3/4 model 3/4 tensor 1/2 pipe 0/1 context 1/2",
	}, places)
}

// roles are a rank's numbers among its peers.
func roles(acc *accelerate.Accelerator) string {
	var list []string
	for _, k := range []struct {
		name  string
		peers *ranks.Peers
	}{{"data", acc.DataRanks()}, {"loss", acc.LossRanks()}, {"model", acc.ModelRanks()}, {"tensor", acc.TensorRanks()},
		{"pipe", acc.PipelineRanks()}, {"context", acc.ContextRanks()}} {
		list = append(list, fmt.Sprintf("%s %d/%d", k.name, k.peers.Rank(), k.peers.WorldSize()))
	}
	return strings.Join(list, " ")
}

// Ranks that hold other parts of the model have other parameters, which rank 0's do not replace.
func TestRanksOfAnotherPartKeepTheirParameters(t *testing.T) {
	for _, mesh := range []comm.Mesh{{DPReplicate: 2, TP: 2}, {PP: 2, DPReplicate: 2}} {
		part := func(acc *accelerate.Accelerator) int { return acc.TensorRanks().Rank() + acc.PipelineRanks().Rank() }
		values := make([][]float32, 4)
		err := accelerate.Run(t.Context(), rankArgs(4), func(acc *accelerate.Accelerator) error {
			m := nn.NewLinear(nn.NewInit(acc.Device(), uint64(acc.Rank())),
				nn.LinearConfig{In: 2, Out: 1 + part(acc)})
			if err := acc.Open(t.Context()); err != nil {
				return err
			}
			err := acc.SyncParameters(t.Context(), m)
			values[acc.Rank()] = tensor.ToSlice[float32](acc.Ctx().NoGrad(), m.Weight.Tensor)
			return err
		}, accelerate.WithLogger(quiet), accelerate.WithMesh(mesh))
		require.NoError(t, err, "%v", mesh)
		first := nn.NewLinear(nn.NewInit(tensor.CPU(), 0), nn.LinearConfig{In: 2, Out: 1})
		require.Equal(t, tensor.ToSlice[float32](tensor.NewCtx(tensor.CPU()).NoGrad(), first.Weight.Tensor), values[0])
		for r, peer := range [][]int{{2, 3, 0, 1}, {1, 0, 3, 2}}[min(1, mesh.PP)] {
			require.Equal(t, values[r], values[peer], "%v: rank %d", mesh, r)
		}
		require.Len(t, values[3], 4, "%v", mesh)
	}
}

func TestRanksOfOnePartMustAgree(t *testing.T) {
	errs := make([]error, 4)
	_ = accelerate.Run(t.Context(), rankArgs(4), func(acc *accelerate.Accelerator) error {
		if err := acc.Open(t.Context()); err != nil {
			return err
		}
		m := nn.NewLinear(nn.NewInit(acc.Device(), 0), nn.LinearConfig{In: 2, Out: 1 + acc.Rank()/3})
		errs[acc.Rank()] = acc.SyncParameters(t.Context(), m)
		return errs[acc.Rank()]
	}, accelerate.WithLogger(quiet), accelerate.WithMesh(comm.Mesh{DPReplicate: 2, TP: 2}))
	for _, rank := range []int{1, 3} {
		require.ErrorContains(t, errs[rank], "ddp: the models of ranks 1 and 3 differ: parameter 0 is weight "+
			"float32[1 2] on rank 1 and weight float32[2 2] on rank 3")
	}
}

func TestMeshThatDoesNotFitTheRanks(t *testing.T) {
	body := func(*accelerate.Accelerator) error { return errors.New("not reached") }
	err := accelerate.Run(t.Context(), rankArgs(4), body, accelerate.WithMesh(comm.Mesh{DPShard: 3}))
	require.EqualError(t, err, "accelerate: comm: mesh dp_shard=3 does not fit 4 ranks: want sizes whose product is 4")
	a := rankArgs(4)
	a.FSDP, a.DPReplicateSize = []string{"full_shard"}, 2
	err = accelerate.Run(t.Context(), a, body, accelerate.WithMesh(comm.Mesh{DPReplicate: 4}))
	require.EqualError(t, err, "accelerate: mesh dp_replicate=4 of the program, and dp_replicate_size is 2: want "+
		"one of both, or the same\naccelerate: mesh dp_replicate=4 has no ranks to spread the model over: want "+
		"dp_shard_size of at least 2, or no sharding (fsdp, zero_stage)")
}

// A mesh of arguments takes the ranks that its sizes leave, and one that does not fit says what would.
func TestMeshOfArguments(t *testing.T) {
	type sizes = args.TrainingArguments
	for _, c := range []struct {
		set   sizes
		ranks int
		want  comm.Mesh
		fault string
	}{
		{sizes{}, 4, comm.Mesh{DPReplicate: 4}, ""},
		{sizes{ZeroStage: 2}, 4, comm.Mesh{DPShard: 4}, ""},
		{sizes{DPReplicateSize: 1, DPShardSize: 1}, 4, comm.Mesh{DPReplicate: 4}, ""},
		{sizes{DPReplicateSize: 1, DPShardSize: 1, ZeroStage: 3}, 4, comm.Mesh{DPShard: 4}, ""},
		{sizes{DPReplicateSize: 4}, 4, comm.Mesh{DPReplicate: 4}, ""},
		{sizes{DPReplicateSize: 2, ZeroStage: 1}, 8, comm.Mesh{DPReplicate: 2, DPShard: 4}, ""},
		{sizes{DPShardSize: 4}, 8, comm.Mesh{DPReplicate: 2, DPShard: 4}, ""},
		{sizes{DPReplicateSize: 2, DPShardSize: 2}, 4, comm.Mesh{DPReplicate: 2, DPShard: 2}, ""},
		{sizes{DPReplicateSize: 4, ZeroStage: 3}, 4, comm.Mesh{}, "accelerate: mesh dp_replicate=4 has no ranks to " +
			"spread the model over: want dp_shard_size of at least 2, or no sharding (fsdp, zero_stage)"},
		{sizes{ZeroStage: 3}, 1, comm.Mesh{}, ""},
		{sizes{DPShardSize: 3}, 4, comm.Mesh{}, "accelerate: mesh dp_shard=3 does not fit 4 ranks: want a multiple " +
			"of 3 ranks, or sizes whose product divides 4 (1, 2, 4)"},
		{sizes{DPReplicateSize: 2, DPShardSize: 3}, 4, comm.Mesh{}, "accelerate: mesh dp_replicate=2,dp_shard=3 does " +
			"not fit 4 ranks: want 6 ranks, or sizes whose product is 4"},
		{sizes{DPReplicateSize: 2}, 4, comm.Mesh{}, "accelerate: mesh dp_replicate=2 does not fit 4 ranks: want 2 " +
			"ranks, or sizes whose product is 4; or dp_shard_size 2, which shards the model"},
		{sizes{CPSize: 2}, 4, comm.Mesh{DPReplicate: 2, CP: 2}, ""},
		{sizes{SPSize: 4}, 4, comm.Mesh{CP: 4}, ""},
		{sizes{TPSize: 2}, 4, comm.Mesh{DPReplicate: 2, TP: 2}, ""},
		{sizes{PPSize: 2, SPSize: 2, TPSize: 3}, 8, comm.Mesh{}, "accelerate: mesh pp=2,cp=2,tp=3 does not fit 8 " +
			"ranks: want a multiple of 12 ranks, or sizes whose product divides 8 (1, 2, 4, 8)"},
	} {
		m, err := accelerate.MeshOf(&c.set, c.ranks)
		if c.fault != "" {
			require.EqualError(t, err, c.fault)
			continue
		}
		require.NoError(t, err, "%v", c.want)
		want, err := c.want.Of(c.ranks)
		require.NoError(t, err)
		require.Equal(t, want, m)
	}
}

// A rank that fails ends the work of ranks that wait for others than it.
func TestFailureEndsAllGroupsOfAMesh(t *testing.T) {
	ranks := accelerators(t, 4, func(_ int, a *args.TrainingArguments) {},
		accelerate.WithMesh(comm.Mesh{DPShard: 2, TP: 2}))
	errs := job(t, ranks, func(acc *accelerate.Accelerator) error {
		if err := acc.Open(t.Context()); err != nil {
			return err
		}
		if acc.Rank() == 3 {
			return errors.New("out of disk")
		}
		for { // ranks 0 and 2 have no call with rank 3
			if err := acc.DataRanks().Barrier(t.Context()); err != nil {
				return err
			}
		}
	})
	for rank, err := range errs {
		require.ErrorContains(t, err, "out of disk", "rank %d", rank)
	}
}
