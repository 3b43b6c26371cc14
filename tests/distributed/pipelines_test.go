// SPDX-License-Identifier: Apache-2.0

//go:build unix

package distributed

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tests/internal/pipelinetest"
)

// pipelines starts runs of settings, and knows how one process ends.
type pipelines struct {
	corpus, heldOut string
	mu              sync.Mutex
	ends            map[pipelinetest.Setting]pipelinetest.End
}

// one runs the process whose bits settings must have.
func (p *pipelines) one(t *testing.T, s pipelinetest.Setting) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "one")
	r := succeed(t, plain(s.Flags(p.corpus, p.heldOut, out)))
	m := regexp.MustCompile(`samples +(\d+) blocks`).FindStringSubmatch(r.stdout.String())
	require.NotNil(t, m, "%s", r.stdout)
	blocks, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	require.NotZero(t, blocks%2, "an epoch must end in the middle of a step")
	require.Less(t, blocks, 40, "20 steps of 2 micro-batches must reach the end of an epoch")
	end, err := pipelinetest.ReadEnd(out)
	require.NoError(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends[s] = end
}

func (p *pipelines) same(t *testing.T, s pipelinetest.Setting) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	argv := s.Flags(p.corpus, p.heldOut, out)
	if s.Engine == "goroutines" {
		succeed(t, plain(append(argv, "--num_replicas", strconv.Itoa(s.Ranks))))
	} else {
		r := succeed(t, launched(s.Ranks, append(argv, "--ddp_backend", s.Engine)))
		require.Contains(t, r.stderr.String(), "engine "+s.Engine)
	}
	end, err := pipelinetest.ReadEnd(out)
	require.NoError(t, err)
	require.Equal(t, p.ends[s.One()], end)
	t.Log("ended as one process") // progress: results of parallel tests come when all have ended
}

// TestPipelines requires the weights, moments and losses of one process from pipelines, with each pair of settings; or
// with all of them. The settings of the engine mpi are tests/clusters'.
func TestPipelines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := &pipelines{corpus: filepath.Join(dir, "corpus"), heldOut: filepath.Join(dir, "heldout"),
		ends: map[pipelinetest.Setting]pipelinetest.End{}}
	require.NoError(t, pipelinetest.WriteCorpora(p.corpus, p.heldOut))
	var settings, alone []pipelinetest.Setting
	for _, engine := range kinds {
		settings = append(settings, pipelinetest.Over(engine, pipelinetest.Chosen())...)
	}
	for _, s := range settings {
		if !slices.Contains(alone, s.One()) {
			alone = append(alone, s.One())
		}
	}
	t.Run("one process", func(t *testing.T) {
		for _, s := range alone {
			t.Run(s.String(), func(t *testing.T) { p.one(t, s) })
		}
	})
	require.Len(t, p.ends, len(alone))
	for _, s := range settings {
		t.Run(s.String(), func(t *testing.T) { p.same(t, s) })
	}
	t.Run("refused", func(t *testing.T) {
		s := pipelinetest.Setting{Ranks: 2, Schedule: "dualpipev", Times: 1}
		require.False(t, s.Legal())
		r := start(t, plain(append(s.Flags(p.corpus, p.heldOut, filepath.Join(dir, "out")), "--num_replicas", "2")))
		r.wait()
		require.NotZero(t, r.code())
		require.Contains(t, r.stderr.String(), "pp_schedule")
		require.Contains(t, r.stderr.String(), "schedule dualpipev: 2 micro-batches on 2 ranks: want at least 4")
	})
}

// Processes that read different data end before the first step, and say so.
func TestDataOfRanksDiffer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	more := filepath.Join(dir, "more.txt")
	require.NoError(t, os.WriteFile(more, bytes.Repeat([]byte("all work and no play\n"), 100), 0o600))
	const training = "trainer: the training data of rank 1 have fingerprint "
	const evaluation = "trainer: the evaluation data (eval_loss) of rank 1 have fingerprint "
	for _, c := range []struct{ axis, flag, want string }{
		{"--pp_size", "--train_file", training}, {"--pp_size", "--validation_file", evaluation},
		{"--tp_size", "--train_file", training}, {"--cp_size", "--validation_file", evaluation},
		{"--dp_shard_size", "--train_file",
			"trainer: the training data of rank 1 have 174 samples, those of rank 0 143: "},
		{"--dp_replicate_size", "--validation_file", "trainer: the evaluation data (eval_loss) of rank 1 have "},
	} {
		line := []string{lockstep, "launch", "--nproc_per_node", "2", "--", "sh", "-c",
			`test $RANK = 0 || set -- "$@" ` + c.flag + ` "` + more + `"; exec "$0" "$@"`, clm}
		r := start(t, append(line, tiny(filepath.Join(dir, c.axis+c.flag), c.axis, "2", "--eval_strategy", "epoch")...))
		r.wait()
		require.NotZero(t, r.code())
		require.Contains(t, r.stderr.String(), c.want)
		require.NotContains(t, r.stdout.String(), "step 1")
	}
}
