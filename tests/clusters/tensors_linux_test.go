// SPDX-License-Identifier: Apache-2.0

package clusters

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tests/internal/pipelinetest"
)

// TestDividedMatricesOverMPI compares ranks that share matrices over each MPI library with one process whose sums have
// as many parts: weights, moments and losses are the same.
func TestDividedMatricesOverMPI(t *testing.T) {
	dir := t.TempDir()
	corpus, heldOut := filepath.Join(dir, "corpus"), filepath.Join(dir, "heldout")
	require.NoError(t, pipelinetest.WriteCorpora(corpus, heldOut))
	run := func(t *testing.T, bf16 bool, parts int, line func(flags ...string) []string,
		more ...string) pipelinetest.End {
		out, n := filepath.Join(t.TempDir(), "out"), strconv.Itoa(parts)
		flags := pipelinetest.Setting{Ranks: 1, BF16: bf16}.Flags(corpus, heldOut, out)
		p := start(t, line(append(flags, append(more, "--n_head", n, "--tp_parts", n)...)...))
		require.Zero(t, p.wait(), "%s", p.out)
		end, err := pipelinetest.ReadEnd(out)
		require.NoError(t, err)
		return end
	}
	for name, l := range launchers {
		l.engine = "mpi"
		t.Run(name, func(t *testing.T) {
			need(t, name)
			for _, bf16 := range []bool{false, true} {
				parts := 4
				if bf16 {
					parts = 8
				}
				one := run(t, bf16, parts, func(flags ...string) []string { return append([]string{clm}, flags...) })
				for _, ranks := range []int{2, parts} {
					t.Run(fmt.Sprintf("%d ranks, bf16 %v", ranks, bf16), func(t *testing.T) {
						line := func(flags ...string) []string { return l.command(ranks, flags...) }
						require.Equal(t, one, run(t, bf16, parts, line, "--tp_size", strconv.Itoa(ranks)))
					})
				}
			}
		})
	}
}
