// SPDX-License-Identifier: Apache-2.0

package pipelinetest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A few settings have each pair of values that the whole matrix has.
func TestPairs(t *testing.T) {
	all, few := All(), Pairs()
	require.Len(t, all, 2*(7*3-1)*2*2*len(Engines))
	require.Less(t, len(few), len(all)/15)
	want, have := map[pair]bool{}, map[pair]bool{}
	for _, s := range all {
		require.True(t, s.Legal())
		for _, p := range s.pairs() {
			want[p] = true
		}
	}
	for _, s := range few {
		for _, p := range s.pairs() {
			have[p] = true
		}
	}
	require.Equal(t, want, have)
	for _, p := range []pair{{"zbv", "times 4"}, {"tcp", "gpipe"}, {"pp 4", "bf16 true"}, {"mpi", "recompute true"}} {
		require.True(t, have[p], p)
	}
	require.False(t, have[pair{"dualpipev", "times 1"}])
	n := 0
	for _, engine := range Engines {
		n += len(Over(engine, few))
	}
	require.Len(t, few, n)
	t.Log(few)
}
