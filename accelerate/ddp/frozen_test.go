// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// The parameter that is named is one on which ranks differ, and there is none if they agree, for any number of both.
func TestFrozenSetsNameADifference(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 7, 8, 9, 40} {
		for ranks := 2; ranks <= 5; ranks++ {
			for differ := range 4 {
				sets, trained := make([]frozenSet, ranks), make([][]bool, ranks)
				for rank := range ranks {
					trained[rank] = make([]bool, n)
					var params []tensor.Named
					for i := range n {
						trained[rank][i] = i%3 > 0
						if rank > 0 && r.IntN(n) < differ {
							trained[rank][i] = !trained[rank][i]
						}
						params = append(params, tensor.Named{Name: fmt.Sprint(i),
							Tensor: tensor.Zeros(c, tensor.Float32, 1).SetRequiresGrad(trained[rank][i])})
					}
					sets[rank] = newFrozenSet(n)
					sets[rank].fill(params)
				}
				most := newFrozenSet(n)
				for _, s := range sets {
					for i := range s {
						most[i] = max(most[i], s[i])
					}
				}
				alike := func(i int) bool {
					for rank := range ranks {
						if trained[rank][i] != trained[0][i] {
							return false
						}
					}
					return true
				}
				i := most.differing()
				if i >= 0 {
					require.False(t, alike(i))
					continue
				}
				for i := range n {
					require.True(t, alike(i))
				}
			}
		}
	}
}
