// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"

	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/tests/internal/twohosts"
)

// hosts are two network namespaces, each with its own name, and what crosses the wire between them.
type hosts struct {
	*twohosts.Hosts
	t     testing.TB
	relay *relay
}

// newHosts makes two whose frames take so long; the test is skipped where that cannot be
// done.
func newHosts(t testing.TB, number int, delay time.Duration) *hosts {
	t.Helper()
	if os.Geteuid() != 0 {
		lacking.Skip(t, lacking.Hosts, "namespaces", "two hosts are network namespaces, which only root can make")
	}
	if _, err := exec.LookPath("tc"); err != nil {
		lacking.Skip(t, lacking.Hosts, "namespaces",
			fmt.Sprintf("two hosts are made with tc: %v (.ci/run tools installs it)", err))
	}
	h := &hosts{t: t, relay: &relay{streams: map[flow]*recording{}}}
	var err error
	h.Hosts, err = twohosts.New(fmt.Sprintf("ls%d%d", os.Getpid()%100000, number), delay, h.relay.pass)
	var unavailable *twohosts.UnavailableError
	if errors.As(err, &unavailable) {
		lacking.Skip(t, lacking.Hosts, "namespaces", err.Error())
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// limit makes both hosts send no faster than rate, in tc's terms, not even a second frame at once.
func (h *hosts) limit(rate string) {
	h.t.Helper()
	for i, n := range h.Names {
		out, err := exec.Command("ip", "netns", "exec", n, "tc", "qdisc", "add", "dev", h.Link(i), "root", "tbf",
			"rate", rate, "burst", "2kb", "latency", "1s").CombinedOutput()
		require.NoError(h.t, err, "%s", out)
	}
}

// held is how often a host's frames had to wait for the rate.
func (h *hosts) held(i int) int {
	h.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", h.Names[i], "tc", "-s", "qdisc", "show", "dev",
		h.Link(i)).CombinedOutput()
	require.NoError(h.t, err, "%s", out)
	m := regexp.MustCompile(`overlimits (\d+)`).FindSubmatch(out)
	require.NotNil(h.t, m, "%s", out)
	n, err := strconv.Atoi(string(m[1]))
	require.NoError(h.t, err)
	return n
}

// start starts a launcher with two ranks on each host. flags are the launchers'.
func (h *hosts) start(argv, flags []string, env ...string) (launchers [2]*process) {
	h.t.Helper()
	for i, name := range h.Names {
		line := h.Command(i, launched(2, argv,
			append([]string{"--nnodes", "2", "--node_rank", fmt.Sprint(i), "--master_addr", twohosts.Address(0),
				"--master_port", "29617",
				"--settle_time", "5", "--grace_period", "1"}, flags...)...)...)
		launchers[i] = start(h.t, line, append(env, "LOCKSTEP_HOST_ID="+name,
			"LOCKSTEP_JOB_TOKEN=a token that both hosts of the test know")...)
	}
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("host 0:\n%s\nhost 1:\n%s", launchers[0].stderr, launchers[1].stderr)
		}
	})
	return launchers
}

// TestTwoHosts requires the bits of one process from 2 × 2 ranks that reduce inside hosts
// first: over a wire that is as fast as can be, and over one of 100 Mbit/s and 5 ms each way. The
// first carries plain text, and no byte that the formula does not count; the second carries what
// the hosts send when nobody says otherwise, and nothing that can be read.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	succeed(t, plain(tiny(whole)))
	for i, wire := range []struct {
		name  string
		rate  string
		delay time.Duration
		env   []string
	}{
		{"fast", "", 0, []string{rendezvous.EnvTLS + "=" + string(rendezvous.TLSNone)}},
		{"slow", "100mbit", 5 * time.Millisecond, nil},
	} {
		t.Run(wire.name, func(t *testing.T) {
			if wire.delay > 0 && testing.Short() {
				t.Skip("it waits for seconds")
			}
			h := newHosts(t, i, wire.delay)
			if wire.rate != "" {
				h.limit(wire.rate)
			}
			out := filepath.Join(dir, wire.name)
			launchers := h.start(tiny(out, "--log_level", "info"), nil, wire.env...)
			for host, p := range launchers {
				p.requireEnd(0)
				require.Equal(t, wire.rate != "", h.held(host) > 0, "the rate is what holds frames back")
			}
			require.Regexp(t, `engine tcp  path hierarchical: shared memory of 2 processes on each of 2 hosts`,
				launchers[0].stderr.String())
			if wire.env != nil {
				h.requireGradients()
			} else {
				h.relay.requireSecret(t)
			}
			requireSameEnd(t, whole, out, 24)
		})
	}
}

// requireGradients checks what the 24 steps of a tiny run have sent from host to host.
func (h *hosts) requireGradients() {
	h.t.Helper()
	calls, sent := h.relay.requireFormula(h.t)
	reduced := 0
	for _, c := range calls {
		if strings.HasPrefix(c.Label, "bucket") {
			reduced += c.Count * c.DType.Size()
		}
	}
	const gradients = 24 * 23392 * 4
	require.Equal(h.t, gradients, reduced, "each step reduces each gradient once")
	for i := range h.Names {
		h.t.Logf("host %d sent %d bytes in %d calls, %.3f of the gradients", i, sent[i], len(calls),
			float64(sent[i])/gradients)
		require.Less(h.t, sent[i], gradients*3/2, "flat, the gradients alone would be twice as much")
	}
}

// TestCutLink cuts the only wire and requires every rank to name, soon, a rank and the host on
// the other side.
func TestCutLink(t *testing.T) {
	t.Parallel()
	h := newHosts(t, 2, 0)
	out := t.TempDir()
	silence, env := rendezvous.DefaultSilence, []string{}
	if testing.Short() {
		silence, env = time.Second, []string{rendezvous.EnvSilence + "=1s"}
	}
	launchers := h.start(long(out), nil, env...)
	launchers[0].awaitPrinted("step 5 ")
	cut := time.Now()
	h.Wire.Set(twohosts.Lose)
	for i, p := range launchers {
		text := p.requireEnd(1)
		t.Logf("host %d ended %v after the cut", i, p.endedAt.Sub(cut))
		require.Less(t, p.endedAt.Sub(cut), silence+limit)
		for _, rank := range []int{2 * i, 2*i + 1} {
			m := regexp.MustCompile(fmt.Sprintf(`(?m)^\[%d\] clm: .*`, rank)).FindString(text)
			t.Log(m)
			require.Regexp(t, fmt.Sprintf(`rank [%d%d] \(process \d+ on %s\) is lost`, 2-2*i, 3-2*i, h.Names[1-i]), m,
				"%s", text)
		}
	}
}

// TestKilledRankOnOneOfTwoHosts requires both launchers to start their ranks again, and the end
// of a run that nobody disturbed.
func TestKilledRankOnOneOfTwoHosts(t *testing.T) {
	t.Parallel()
	const steps = 120
	dir := t.TempDir()
	flags := []string{"--max_steps", strconv.Itoa(steps), "--save_steps", "5", "--eval_steps", "50",
		"--save_total_limit", "3"}
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	succeed(t, plain(tiny(whole, flags...)))
	h := newHosts(t, 3, 0)
	launchers := h.start(tiny(out, flags...), []string{"--max_restarts", "2", "--restart_delay", "0.1"})
	for attempt, host := range []int{1, 0} {
		before := newest(t, out)
		p := launchers[host]
		var pids map[int]int
		p.await("all ranks to run", func() bool { pids = p.ranks(attempt); return len(pids) == 2 })
		p.await("another checkpoint", func() bool { return newest(t, out) > before })
		require.NoError(t, syscall.Kill(pids[2*host+attempt], syscall.SIGKILL), "the run must still be under way")
	}
	for host, p := range launchers {
		text := p.requireEnd(0)
		require.Equal(t, 2, strings.Count(text, "all ranks are started again"), "host %d: %s", host, text)
		require.Equal(t, 1, strings.Count(text, `cause killed by SIGKILL`), "host %d: %s", host, text)
	}
	requireSameEnd(t, whole, out, steps)
}

// TestInterruptOnOneOfTwoHosts interrupts one launcher and requires the ranks of both hosts to
// end after the same step, with one checkpoint, and none to be started again.
func TestInterruptOnOneOfTwoHosts(t *testing.T) {
	t.Parallel()
	h := newHosts(t, 4, 0)
	out := filepath.Join(t.TempDir(), "out")
	launchers := h.start(tiny(out, "--max_steps", "1000000", "--eval_strategy", "no", "--save_steps", "1000000"),
		[]string{"--max_restarts", "3", "--restart_delay", "0.1"})
	launchers[0].awaitPrinted("step 5 ")
	launchers[1].signal(syscall.SIGINT)
	for i, p := range launchers {
		require.Contains(t, p.requireEnd(130), []string{"interrupted by SIGINT that another process or host was sent",
			"interrupted by SIGINT"}[i])
	}
	require.NotNil(t, latest(t, out))
}

// TestLinkThatComesBack cuts the wire until both launchers have started their ranks again,
// and requires the end of a run that nobody disturbed.
func TestLinkThatComesBack(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes both sides seconds to give up the link")
	}
	const steps = 120
	dir := t.TempDir()
	flags := []string{"--max_steps", strconv.Itoa(steps), "--save_steps", "5", "--eval_steps", "50",
		"--save_total_limit", "3"}
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	succeed(t, plain(tiny(whole, flags...)))
	h := newHosts(t, 5, 0)
	launchers := h.start(tiny(out, flags...), []string{"--max_restarts", "1", "--restart_delay", "0.1"},
		rendezvous.EnvSilence+"=1s")
	launchers[0].await("a checkpoint", func() bool { return newest(t, out) > 0 })
	h.Wire.Set(twohosts.Lose)
	for _, p := range launchers {
		p.awaitPrinted("all ranks are started again")
	}
	h.Wire.Set(nil)
	for _, p := range launchers {
		p.requireEnd(0)
	}
	requireSameEnd(t, whole, out, steps)
}

// TestFlippedBitOnTheLink changes one bit of what the hosts send, as somebody on the link can who
// also mends the checksum, and requires both to end with an error.
func TestFlippedBitOnTheLink(t *testing.T) {
	t.Parallel()
	h := newHosts(t, 6, 0)
	launchers := h.start(long(t.TempDir()), nil)
	launchers[0].awaitPrinted("step 5 ")
	h.relay.flip.Store(true)
	for _, p := range launchers {
		require.Contains(t, p.requireEnd(1), "bad record MAC")
	}
	require.False(t, h.relay.flip.Load(), "a bit was changed")
}
