// SPDX-License-Identifier: Apache-2.0

package clusters

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"
	"github.com/lockstep-ml/lockstep/tests/internal/pipelinetest"
)

// TestDividedMatricesOverMPI compares ranks that share matrices over each MPI library with one process whose sums have
// as many parts: weights, moments and losses are the same, of a GPT-2 and of a block as Llama's.
func TestDividedMatricesOverMPI(t *testing.T) {
	dir := t.TempDir()
	corpus, heldOut := filepath.Join(dir, "corpus"), filepath.Join(dir, "heldout")
	require.NoError(t, pipelinetest.WriteCorpora(corpus, heldOut))
	config := filepath.Join(dir, "config.json")
	require.NoError(t, os.WriteFile(config, []byte(clmtest.Llama), 0o600))
	type model struct {
		name  string
		parts int
		bf16  bool
		flags func(flags []string) []string
	}
	gpt2 := func(flags []string) []string { return append(flags, "--n_head", "8") }
	llama := func(flags []string) []string { return clmtest.Follow(config, flags) }
	run := func(t *testing.T, m model, line func(flags ...string) []string, more ...string) pipelinetest.End {
		out := filepath.Join(t.TempDir(), "out")
		flags := m.flags(pipelinetest.Setting{Ranks: 1, BF16: m.bf16}.Flags(corpus, heldOut, out))
		p := start(t, line(append(flags, append(more, "--tp_parts", strconv.Itoa(m.parts))...)...))
		require.Zero(t, p.wait(), "%s", p.out)
		end, err := pipelinetest.ReadEnd(out)
		require.NoError(t, err)
		return end
	}
	for name, l := range launchers {
		l.engine = "mpi"
		t.Run(name, func(t *testing.T) {
			need(t, name)
			half := name == "mpich" // the libraries take turns
			for _, m := range []model{{"gpt2", 8, half, gpt2}, {"llama", 4, !half, llama}} {
				one := run(t, m, func(flags ...string) []string { return append([]string{clm}, flags...) })
				for _, ranks := range []int{2, m.parts} {
					t.Run(fmt.Sprintf("%s, %d ranks, bf16 %v", m.name, ranks, m.bf16), func(t *testing.T) {
						line := func(flags ...string) []string { return l.command(ranks, flags...) }
						require.Equal(t, one, run(t, m, line, "--tp_size", strconv.Itoa(ranks)))
					})
				}
			}
		})
	}
}
