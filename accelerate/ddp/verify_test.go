// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
)

// verifyRanks runs Verify on ranks with the given parameters and returns what each said.
func verifyRanks(t *testing.T, c *tensor.Ctx, ranks [][]tensor.Named) (differed []int, errs []error) {
	groups := local.New(len(ranks), options)
	differed, errs = make([]int, len(ranks)), make([]error, len(ranks))
	var all sync.WaitGroup
	for r, g := range groups {
		all.Go(func() {
			defer g.Close()
			own := tensor.NewCtx(c.Device())
			differed[r], errs[r] = Verify(t.Context(), own, g, ranks[r])
			own.Sync()
		})
	}
	all.Wait()
	return differed, errs
}

// What two models may differ in is one and the same error on every rank, and no parameter
// is touched.
func TestVerifyDifferences(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	p := func(name string, dt tensor.DType, shape ...int) tensor.Named {
		return tensor.Named{Name: name, Tensor: tensor.Ones(c, dt, shape...).SetRequiresGrad(true)}
	}
	frozen := p("b", tensor.Float32, 3)
	frozen.SetRequiresGrad(false)
	ref := []tensor.Named{p("a", tensor.Float32, 2, 3), p("b", tensor.Float32, 3)}
	for want, other := range map[string][]tensor.Named{
		"parameter 1 is b float32[3] on rank 0 and c float32[3] on rank 2": {p("a", tensor.Float32, 2, 3),
			p("c", tensor.Float32, 3)},
		"parameter 0 is a float32[2 3] on rank 0 and a float32[3 2] on rank 2": {p("a", tensor.Float32, 3, 2),
			p("b", tensor.Float32, 3)},
		"parameter 1 is b float32[3] on rank 0 and b float64[3] on rank 2": {p("a", tensor.Float32, 2, 3),
			p("b", tensor.Float64, 3)},
		"parameter 1 is b float32[3] on rank 0 and b float32[3] (frozen) on rank 2": {p("a", tensor.Float32, 2, 3),
			frozen},
		"2 parameters on rank 0 and 1 on rank 2, which lacks b float32[3]": {p("a", tensor.Float32, 2, 3)},
		"2 parameters on rank 0 and 3 on rank 2, which has c float32[1] besides": {p("a", tensor.Float32, 2, 3),
			p("b", tensor.Float32, 3), p("c", tensor.Float32, 1)},
		"2 parameters on rank 0 and 0 on rank 2, which lacks a float32[2 3]": nil,
	} {
		same := []tensor.Named{p("a", tensor.Float32, 2, 3), p("b", tensor.Float32, 3)}
		_, errs := verifyRanks(t, c, [][]tensor.Named{ref, same, other})
		for _, err := range errs {
			require.EqualError(t, err, "ddp: the models of ranks 0 and 2 differ: "+want)
		}
	}
}

// Values become rank 0's, and each rank knows how many were others.
func TestVerifyAdoptsRankZerosValues(t *testing.T) {
	for _, dev := range devices(t) {
		c := tensor.NewCtx(dev).NoGrad()
		ranks := make([][]tensor.Named, 3)
		for r := range ranks {
			ranks[r] = newParams(c)
			for i, p := range ranks[r] {
				same := r
				if i%(r+1) != 0 {
					same = 0
				}
				tensor.WriteBytes(c, p.Tensor, gradient(5, same, i)[:p.Bytes()])
			}
		}
		c.Sync()
		differed, errs := verifyRanks(t, c, ranks)
		for r := range ranks {
			require.NoError(t, errs[r])
			for i, p := range ranks[r] {
				require.Equal(t, gradient(5, 0, i)[:p.Bytes()], tensor.ReadBytes(c, p.Tensor), "rank %d, %s", r, p.Name)
			}
		}
		require.Equal(t, []int{0, 5 - 1, 3 - 1}, differed, "an empty parameter never differs")
	}
}

func TestVerifyOnADeadGroup(t *testing.T) {
	groups := local.New(2, options)
	require.NoError(t, groups[1].Close())
	_, err := Verify(t.Context(), tensor.NewCtx(tensor.CPU()), groups[0], sized(3))
	var lost *comm.RankLostError
	require.ErrorAs(t, err, &lost)
	require.ErrorContains(t, err, "ddp: comparing parameters: ")
	require.NoError(t, groups[0].Close())
}

func devices(t *testing.T) []*tensor.Device {
	own := joint.Device[*tensor.Device](deferred.New(1))
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	return []*tensor.Device{tensor.CPU(), own}
}
