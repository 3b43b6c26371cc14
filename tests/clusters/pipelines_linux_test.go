// SPDX-License-Identifier: Apache-2.0

package clusters

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tests/internal/pipelinetest"
)

// TestPipelinesOverMPI requires the weights, moments and losses of one process from pipelines whose ranks exchange over
// each MPI library, with each pair of settings, or with all of them, and from two pipelines side by side.
func TestPipelinesOverMPI(t *testing.T) {
	dir := t.TempDir()
	corpus, heldOut := filepath.Join(dir, "corpus"), filepath.Join(dir, "heldout")
	require.NoError(t, pipelinetest.WriteCorpora(corpus, heldOut))
	run := func(t *testing.T, line []string, out string) (*process, pipelinetest.End) {
		p := start(t, line)
		require.Zero(t, p.wait(), "%s", p.out)
		end, err := pipelinetest.ReadEnd(out)
		require.NoError(t, err)
		return p, end
	}
	ends := map[pipelinetest.Setting]pipelinetest.End{}
	one := func(t *testing.T, s pipelinetest.Setting) pipelinetest.End {
		s = s.One()
		if _, ok := ends[s]; !ok {
			out := filepath.Join(t.TempDir(), "one")
			_, ends[s] = run(t, append([]string{clm}, s.Flags(corpus, heldOut, out)...), out)
		}
		return ends[s]
	}
	same := func(t *testing.T, l launcher, s pipelinetest.Setting, ranks int, more ...string) {
		out := filepath.Join(t.TempDir(), "out")
		p, end := run(t, l.command(ranks, append(s.Flags(corpus, heldOut, out), more...)...), out)
		require.Contains(t, p.out.String(), "ranks "+strconv.Itoa(ranks)+"  launcher "+l.kind+"  engine mpi")
		require.Contains(t, p.out.String(), l.path)
		require.Equal(t, one(t, s), end)
	}
	for name, l := range launchers {
		l.engine = "mpi"
		t.Run(name, func(t *testing.T) {
			need(t, name)
			for _, s := range pipelinetest.Over("mpi", pipelinetest.Chosen()) {
				t.Run(s.String(), func(t *testing.T) { same(t, l, s, s.Ranks) })
			}
			// Four micro-batches are two of each pipeline.
			s := pipelinetest.Setting{Ranks: 2, Schedule: "zb_h1", Times: 2, BF16: true}
			for _, flag := range []string{"--dp_replicate_size", "--dp_shard_size"} {
				t.Run("2 x 2 "+flag, func(t *testing.T) { same(t, l, s, 4, flag, "2") })
			}
		})
	}
}
