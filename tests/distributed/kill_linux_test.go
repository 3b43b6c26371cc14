// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limit is how long losing a rank may take to be noticed, by the ranks and the launcher: moments, except for a machine
// that is busy with other tests. Who waits for a deadline takes longer: --ddp_timeout is half an hour.
const limit = 20 * time.Second

// environs are the environments of the living processes that p has started, and its own. It is asked for many times a
// second: what is known to be another's is not read again.
func (p *process) environs() map[int][]string {
	p.t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(p.t, err)
	found, others := map[int][]string{}, map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p.others[pid] {
			others[pid] = true
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		switch {
		case err != nil || len(text) == 0: // it has ended meanwhile, or begins
		case bytes.Contains(text, []byte(p.marker)):
			found[pid] = strings.Split(string(text), "\x00")
		default:
			others[pid] = true
		}
	}
	p.others = others // without those that have ended, whose numbers others may get
	return found
}

// ranks are the processes of the ranks that were started in the given attempt, by rank.
func (p *process) ranks(attempt int) map[int]int {
	p.t.Helper()
	pids := map[int]int{}
	for pid, environ := range p.environs() {
		rank := variable(environ, "RANK")
		if rank == "" || variable(environ, "TORCHELASTIC_RESTART_COUNT") != fmt.Sprint(attempt) {
			continue
		}
		n, err := strconv.Atoi(rank)
		require.NoError(p.t, err)
		pids[n] = pid
	}
	return pids
}

// variable is one of an environment's, of which the last of a name counts.
func variable(environ []string, name string) (value string) {
	for _, e := range environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// newest is the step of a run's newest checkpoint, 0 if there is none.
func newest(t testing.TB, out string) int {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(out, "checkpoint-*"))
	require.NoError(t, err)
	last := 0
	for _, f := range folders {
		step, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(f), "checkpoint-"))
		require.NoError(t, err)
		last = max(last, step)
	}
	return last
}

// TestKilledRanksAreRestarted kills a random rank at two random moments and requires the end
// of a run that nobody disturbed, which has one process.
func TestKilledRanksAreRestarted(t *testing.T) {
	t.Parallel()
	const steps = 70
	dir := t.TempDir()
	flags := []string{"--max_steps", strconv.Itoa(steps), "--save_steps", "5", "--eval_steps", "50",
		"--save_total_limit", "3"}
	whole := filepath.Join(dir, "whole")
	succeed(t, plain(tiny(whole, flags...)))
	inParts := filepath.Join(dir, "parts")
	succeed(t, plain(tiny(inParts, append(flags, "--tp_parts", "2")...)))
	kinds := [][]string{{"shm", "--fsdp", "full_shard"}, {"shm", "--pp_size", "2"}, {"shm", "--tp_size", "2"}}
	for _, backend := range backends() {
		kinds = append(kinds, []string{backend})
	}
	for _, kind := range kinds {
		t.Run(strings.Join(kind, " "), func(t *testing.T) {
			whole, out := whole, filepath.Join(dir, strings.Join(kind, ""))
			argv := tiny(out, slices.Concat(flags, []string{"--ddp_backend"}, kind)...)
			p := start(t, launched(4, argv, "--max_restarts", "3", "--restart_delay", "0.1"))
			r := rand.New(rand.NewPCG(7, uint64(len(kind[0]))))
			for kill := range 2 {
				before := newest(t, out)
				var pids map[int]int
				p.await("all ranks to run", func() bool { pids = p.ranks(kill); return len(pids) == 4 })
				p.await("another checkpoint", func() bool { return newest(t, out) > before })
				time.Sleep(time.Duration(r.IntN(30_000)) * time.Microsecond)
				require.NoError(t, syscall.Kill(pids[r.IntN(4)], syscall.SIGKILL), "the run must still be under way")
			}
			text := p.requireEnd(0)
			require.Equal(t, 2, strings.Count(text, "all ranks are started again"), "%s", text)
			require.Equal(t, 2, strings.Count(text, `cause killed by SIGKILL`),
				"the root cause is the rank that was killed\n%s", text)
			if slices.Contains(kind, "--tp_size") {
				whole = inParts
			}
			requireSameEnd(t, whole, out, steps)
		})
	}
}

// TestKilledAtTheStart kills a random rank before it has made a step, often before it has
// met the others, and requires the others to give up and the next start to be undisturbed.
func TestKilledAtTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	succeed(t, plain(tiny(whole)))
	r := rand.New(rand.NewPCG(9, 10))
	for i := range 4 {
		out := filepath.Join(dir, strconv.Itoa(i))
		p := start(t, launched(4, tiny(out, "--ddp_backend", []string{"shm", "tcp"}[i%2]), "--max_restarts", "1",
			"--restart_delay", "0.1", "--settle_time", "0.3"))
		victim := r.IntN(4)
		pid := 0
		p.await("a rank", func() bool { pid = p.ranks(0)[victim]; return pid != 0 })
		time.Sleep(time.Duration(r.IntN(60_000)) * time.Microsecond)
		began := time.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		text := p.requireEnd(0)
		require.Equal(t, 1, strings.Count(text, "all ranks are started again"), "%s", text)
		require.Contains(t, text, fmt.Sprintf(`rank %d  cause killed by SIGKILL`, victim))
		require.Less(t, p.endedAt.Sub(began), limit, "the others gave up at once\n%s", text)
		requireSameEnd(t, whole, out, 24)
	}
}

// long are the flags of a run that will not end by itself.
func long(out string, more ...string) []string {
	return tiny(out, append([]string{"--max_steps", "1000000", "--eval_strategy", "no", "--save_strategy", "no"},
		more...)...)
}

// lost is what survivors say of rank 2, a process, in any of their groups.
const lost = `rank 2 (\(\d in the group\) )?\(process %d on .*\) is lost`

// TestKilledRankUnderLauncher requires one root cause, and survivors that name the rank.
func TestKilledRankUnderLauncher(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"shm"}, {"tcp"}, {"shm", "--fsdp", "full_shard"}, {"tcp", "--fsdp", "full_shard"},
		{"shm", "--fsdp", "full_shard", "--fsdp_share_parameters", "false"}, {"shm", "--pp_size", "2"},
		{"shm", "--cp_size", "4"}, {"tcp", "--cp_size", "2", "--dp_shard_size", "2"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			p := start(t, launched(4, long(t.TempDir(), append([]string{"--ddp_backend"}, flags...)...)))
			p.awaitPrinted("step 5 ")
			struck := p.strike(2, syscall.SIGKILL)
			text := p.requireEnd(128 + int(syscall.SIGKILL))
			t.Logf("the launcher ended %v after the kill", p.endedAt.Sub(struck))
			require.Less(t, p.endedAt.Sub(struck), 2*limit)
			require.Equal(t, 1, strings.Count(text, "failed first"), "%s", text)
			require.Contains(t, text, "rank 2 failed first: killed by SIGKILL")
			require.Regexp(t, `then: rank 0 exit code 1, rank 1 exit code 1, rank 3 exit code 1`, text)
			require.Regexp(t, `(?m)^  flight records: .*/flight/[0-9a-f]+-0$`, text)
			require.Regexp(t, `(?m)^  flight record: group "world.*: .*(no record of rank(s .*)? 2$|rank 2 did not come)`, text)
			for _, rank := range []int{0, 1, 3} {
				require.Regexp(t, fmt.Sprintf(`(?m)^\[%d\] clm: .*`+lost, rank, reported(text)), text)
			}
		})
	}
}

// reported is the process that the launcher's report names.
func reported(text string) int {
	m := regexp.MustCompile(`failed first: .*\n  process (\d+),`).FindStringSubmatch(text)
	if m == nil {
		return -1
	}
	pid, _ := strconv.Atoi(m[1]) // digits
	return pid
}

// strike sends a signal to a rank of the first attempt.
func (p *process) strike(rank int, s syscall.Signal) time.Time {
	p.t.Helper()
	pid, ok := p.ranks(0)[rank]
	require.True(p.t, ok, "rank %d runs", rank)
	at := time.Now()
	require.NoError(p.t, syscall.Kill(pid, s))
	return at
}

// TestKilledRankWithoutLauncher has nobody but the ranks themselves to notice.
func TestKilledRankWithoutLauncher(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"shm"}, {"tcp"}, {"shm", "--pp_size", "2"},
		{"tcp", "--pp_size", "4", "--n_layer", "2"}, {"tcp", "--tp_size", "2"}, {"shm", "--tp_size", "2"},
		{"tcp", "--pp_size", "2", "--tp_size", "2", "--n_layer", "2"},
		{"shm", "--cp_size", "2", "--cp_strategy", "ring"}, {"tcp", "--cp_size", "2", "--cp_strategy", "ulysses"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			out := t.TempDir()
			ranks := startRanks(t, 4, func(int) ([]string, []string) {
				return long(out, append([]string{"--ddp_backend"}, flags...)...), nil
			})
			ranks[0].awaitPrinted("step 5 ")
			struck := time.Now()
			ranks[2].signal(syscall.SIGKILL)
			for r, p := range ranks {
				p.wait()
				if r == 2 {
					continue
				}
				t.Logf("rank %d ended %v after the kill", r, p.endedAt.Sub(struck))
				require.Less(t, p.endedAt.Sub(struck), limit, "rank %d", r)
				require.Equal(t, 1, p.code(), "rank %d", r)
				require.Regexp(t, fmt.Sprintf(`(?m)^clm: .*`+lost, ranks[2].cmd.Process.Pid), p.stderr.String())
				requireNoTrace(t, p.stderr.String())
			}
		})
	}
}

// TestStoppedRank requires the deadline's error, which names the rank that stands still.
func TestStoppedRank(t *testing.T) {
	t.Parallel()
	for _, backend := range backends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			p := start(t, launched(4, long(t.TempDir(), "--ddp_backend", backend, "--ddp_timeout", "3"),
				"--settle_time", "0.5", "--grace_period", "0.5"))
			p.awaitPrinted("step 5 ")
			struck := p.strike(1, syscall.SIGSTOP)
			text := p.requireEnd(1)
			t.Logf("the launcher ended %v after the stop", p.endedAt.Sub(struck))
			require.Greater(t, p.endedAt.Sub(struck), 2*time.Second)
			require.Less(t, p.endedAt.Sub(struck), 3*time.Second+limit)
			require.Contains(t, text, "rank 1 failed first: its process was stopped, so that the others waited in vain")
			require.Regexp(t,
				`(?m)^  flight record: group "world": ranks 0, 2, 3 did not finish .* after 3.*s; there is no record of rank 1$`, text)
			for _, rank := range []int{0, 2, 3} {
				require.Regexp(t, fmt.Sprintf(`(?m)^\[%d\] clm: .*timed out after 3s on rank \d: rank 1 did not arrive`,
					rank), text)
			}
		})
	}
}

// TestStoppedRankOfASubGroup: a rank that only the ranks of its sub-group wait for is named by its number in the job.
func TestStoppedRankOfASubGroup(t *testing.T) {
	t.Parallel()
	for _, backend := range backends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			p := start(t, launched(4, long(t.TempDir(), "--ddp_backend", backend, "--ddp_timeout", "3", "--fsdp",
				"hybrid_shard", "--dp_replicate_size", "2", "--fsdp_share_parameters", "false"), "--settle_time", "0.5",
				"--grace_period", "0.5"))
			p.awaitPrinted("step 5 ")
			stopped := p.ranks(0)[3]
			p.strike(3, syscall.SIGSTOP)
			p.wait()
			text := p.stderr.String()
			require.Contains(t, text, "rank 3 failed first: its process was stopped, so that the others waited in vain")
			require.Equal(t, stopped, reported(text), "%s", text)
			require.Contains(t, text, "there is no record of rank 3\n")
			require.NotContains(t, text, "no record of rank 1") // which is its number in its groups
			requireNoTrace(t, text)
			p.requireNothingLeft()
		})
	}
}

// TestRankStoppedBeforeTheJoin: so is one that stands still before it has met the others, the one that serves their
// store included.
func TestRankStoppedBeforeTheJoin(t *testing.T) {
	t.Parallel()
	for _, rank := range []int{0, 2} {
		t.Run(fmt.Sprint(rank), func(t *testing.T) {
			t.Parallel()
			line := launched(4, nil, "--settle_time", "0.5", "--grace_period", "0.5")
			line = append(line[:len(line)-1], "sh", "-c",
				fmt.Sprintf(`if [ "$RANK" = %d ]; then kill -STOP $$; fi; exec "$@"`, rank), "sh", clm)
			p := start(t, append(line, long(t.TempDir(), "--ddp_timeout", "3")...))
			p.wait()
			text := p.stderr.String()
			require.Contains(t, text, fmt.Sprintf("rank %d failed first: its process was stopped, so that the others "+
				"waited in vain", rank))
			requireNoTrace(t, text)
			p.requireNothingLeft()
		})
	}
}

// TestAFrozenRankIsNamedLongBeforeTheDeadline: every other rank names it, the deadline is half an hour away, and
// nothing is lost once it continues.
func TestAFrozenRankIsNamedLongBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"shm", "tcp"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			p := start(t, launched(4, long(t.TempDir(), "--ddp_backend", backend)))
			p.awaitPrinted("step 5 ")
			frozen := p.ranks(0)[1]
			struck := p.strike(1, syscall.SIGSTOP)
			for _, rank := range []int{0, 2, 3} {
				line := regexp.MustCompile(fmt.Sprintf(`(?m)^\[%d\] .*a rank does not answer.* rank 1  process %d `,
					rank, frozen))
				p.await(fmt.Sprintf("rank %d names rank 1", rank), func() bool {
					return line.MatchString(p.stderr.String())
				})
			}
			t.Logf("named %v after the stop", time.Since(struck))
			require.NotRegexp(t, `a rank does not answer.*  rank [023] `, p.stderr.String(), "ranks that wait are alive")
			p.strike(1, syscall.SIGCONT)
			p.awaitPrinted("the rank answers again")
			p.signal(syscall.SIGINT)
			p.requireEnd(130)
		})
	}
}

// TestResumeOnOtherRanks goes from 4 ranks to 2 and back.
func TestResumeOnOtherRanks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder := func(name, seed string, step int) string {
		out := filepath.Join(dir, name)
		checkpoint := fmt.Sprintf("checkpoint-%d", step)
		require.NoError(t, os.CopyFS(filepath.Join(out, checkpoint), os.DirFS(filepath.Join(seed, checkpoint))))
		return out
	}
	whole := filepath.Join(dir, "whole")
	succeed(t, launched(4, tiny(whole)))
	two := folder("two", whole, 8)
	succeed(t, launched(2, tiny(two, "--resume_from_checkpoint", "last")))
	requireSameWeights(t, whole, two, 24)
	four := folder("four", two, 16)
	succeed(t, launched(4, tiny(four, "--resume_from_checkpoint", "last")))
	requireSameWeights(t, whole, four, 24)
	for out, from := range map[string]int{two: 8, four: 16} {
		all := figures(t, whole)
		require.Subset(t, all, figures(t, out))
		require.NotContains(t, strings.Join(figures(t, out), "\n"), fmt.Sprintf("step=%d ", from),
			"it goes on from there")
	}
}
