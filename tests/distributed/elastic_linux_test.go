// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
	"github.com/lockstep-ml/lockstep/internal/recordtest"
)

// swarm is hosts that come and go: network namespaces on one bridge, or only different names for this one.
type swarm struct {
	t        testing.TB
	prefix   string // of the namespaces' names; "" for none
	endpoint string
	argv     []string
	steps    int    // of the run that the hosts train,
	out      string // its folder,
	whole    string // and that of the same run by one process
	ranks    int    // of each host; 0: one
	env      []string
	token    string // "": the test's
}

// swarms tells those of parallel tests apart.
var swarms atomic.Int32

// newSwarm makes so many namespaces; the test is skipped where that cannot be done.
func newSwarm(t testing.TB, hosts int) *swarm {
	t.Helper()
	if os.Geteuid() != 0 {
		lacking.Skip(t, lacking.Hosts, "namespaces", "hosts are network namespaces, which only root can make")
	}
	s := &swarm{t: t, prefix: fmt.Sprintf("lse%dn%d", os.Getpid()%100000, swarms.Add(1)), endpoint: "10.77.0.1:29618"}
	if err := s.ip("netns add " + s.prefix + "hub"); err != nil {
		lacking.Skip(t, lacking.Hosts, "namespaces", err.Error())
	}
	t.Cleanup(func() { require.NoError(t, s.ip("netns del "+s.prefix+"hub")) })
	commands := []string{"-n HUB link add br0 type bridge", "-n HUB link set br0 up"}
	for i := range hosts {
		name := s.name(i)
		require.NoError(t, s.ip("netns add "+name))
		t.Cleanup(func() { require.NoError(t, s.ip("netns del "+name)) })
		commands = append(commands, fmt.Sprintf("-n HUB link add v%d type veth peer name eth0 netns %s", i, name),
			fmt.Sprintf("-n HUB link set v%d master br0 up", i),
			fmt.Sprintf("-n %s addr add 10.77.0.%d/24 dev eth0", name, i+1),
			fmt.Sprintf("-n %s link set eth0 up", name), fmt.Sprintf("-n %s link set lo up", name))
	}
	for _, c := range commands {
		require.NoError(t, s.ip(strings.ReplaceAll(c, "HUB", s.prefix+"hub")))
	}
	return s
}

func (s *swarm) name(i int) string { return fmt.Sprintf("%sh%d", s.prefix, i) }

// ip runs the command of that name.
func (s *swarm) ip(line string) error {
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, out)
	}
	return nil
}

// start starts a host's launcher.
func (s *swarm) start(i int) *process {
	s.t.Helper()
	line := launched(max(s.ranks, 1), s.argv, "--nnodes", "1:4", "--rdzv_endpoint", s.endpoint, "--last_call", "0.5",
		"--max_restarts", "1", "--settle_time", "5", "--grace_period", "5")
	if s.prefix != "" {
		line = append([]string{"ip", "netns", "exec", s.name(i)}, line...)
	}
	return start(s.t, line, append(s.env, fmt.Sprint("LOCKSTEP_HOST_ID=host", i),
		"LOCKSTEP_JOB_TOKEN="+cmp.Or(s.token, "a token that the hosts of the test know"))...)
}

// round waits for a round after another one, with so many hosts, and returns its number.
func (s *swarm) round(p *process, after, hosts int) (number int) {
	s.t.Helper()
	p.await(fmt.Sprintf("a round of %d hosts after round %d", hosts, after), func() bool {
		for _, r := range recordtest.Having(p.stderr.String(), "round", "nodes") {
			number = int(r.Number(s.t, "round"))
			if number > after && r["nodes"] == strconv.Itoa(hosts) {
				return true
			}
		}
		return false
	})
	return number
}

// train sets what the hosts train, with further flags, and trains it in one process.
func (s *swarm) train(steps int, flags ...string) {
	s.t.Helper()
	dir := s.t.TempDir()
	s.steps, s.out, s.whole = steps, filepath.Join(dir, "out"), filepath.Join(dir, "whole")
	base := []string{"--max_steps", fmt.Sprint(steps), "--save_steps", "5", "--eval_strategy", "no",
		"--save_total_limit", "3", "--logging_steps", "5"}
	succeed(s.t, plain(tiny(s.whole, base...)))
	s.argv = tiny(s.out, append(base, flags...)...)
}

// progress waits for another checkpoint.
func (s *swarm) progress(p *process) {
	s.t.Helper()
	before := newest(s.t, s.out)
	p.await("another checkpoint", func() bool { return newest(s.t, s.out) > before })
}

// requireBitsOfOne waits until the hosts have ended, and requires the bits of one process.
func (s *swarm) requireBitsOfOne(hosts ...*process) {
	s.t.Helper()
	for _, p := range hosts {
		p.requireEnd(0)
	}
	requireSameWeights(s.t, s.whole, s.out, s.steps)
}

// TestHostsComeAndGo requires the bits of one process from a job of 4 hosts, of which one is lost and one leaves, to
// which two come back, and on one of which a rank is killed.
func TestHostsComeAndGo(t *testing.T) {
	t.Parallel()
	s := &swarm{t: t, endpoint: fmt.Sprintf("127.0.0.1:%d", 20000+os.Getpid()%10000)}
	if os.Geteuid() == 0 { // TestHostsOfPipelinesComeAndGo has hosts of one address
		s = newSwarm(t, 4)
	}
	s.train(600)
	first := s.start(0)
	first.awaitPrinted("a host joins") // it serves
	second, third, fourth := s.start(1), s.start(2), s.start(3)
	n := s.round(first, -1, 4)
	s.progress(first)
	require.NoError(t, fourth.cmd.Process.Kill())
	third.signal(syscall.SIGTERM)
	n = s.round(first, n, 2)
	third.wait()
	require.Equal(t, 128+int(syscall.SIGTERM), third.code(), "%s", third.stderr)
	fourth.wait()
	s.progress(first)
	third, fourth = s.start(2), s.start(3)
	n = s.round(first, n, 4)
	s.progress(first)
	for rank, pid := range second.ranks(n) {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL), "rank %d must still run", rank)
	}
	s.round(first, n, 4)
	s.requireBitsOfOne(first, second, third, fourth)
	require.Contains(t, first.stderr.String(), "the job continues in another round")
}

// TestHostsOfPipelinesComeAndGo requires the bits of one process from pipelines on two hosts, of which one is lost and
// comes back: the ranks that are left are fewer along dp.
func TestHostsOfPipelinesComeAndGo(t *testing.T) {
	t.Parallel()
	s := &swarm{t: t, endpoint: fmt.Sprintf("127.0.0.1:%d", 10000+os.Getpid()%10000), ranks: 2}
	s.train(200, "--pp_size", "2")
	first := s.start(0)
	first.awaitPrinted("a host joins") // it serves
	second := s.start(1)
	n := s.round(first, -1, 2)
	s.progress(first)
	require.NoError(t, second.cmd.Process.Kill())
	n = s.round(first, n, 1)
	second.wait()
	s.progress(first)
	second = s.start(1)
	s.round(first, n, 2)
	s.requireBitsOfOne(first, second)
	for _, ranks := range []string{", 4 ranks, float32, mesh pp=2,dp_replicate=2 ", ", 2 ranks, "} {
		require.Contains(t, first.stderr.String(), ranks)
	}
}

// TestHostRejoins cuts a host's link for longer than the others wait for it: they continue without it, and it takes
// part again once the link is back. The bits are those of one process.
func TestHostRejoins(t *testing.T) {
	t.Parallel()
	s := newSwarm(t, 2)
	s.env = []string{"LOCKSTEP_SILENCE=1s"}
	s.train(400)
	here := s.start(0)
	here.awaitPrinted("a host joins") // it serves
	there := s.start(1)
	n := s.round(here, -1, 2)
	link := func(state string) { require.NoError(t, s.ip("-n "+s.prefix+"hub link set v1 "+state)) }
	link("down")
	n = s.round(here, n, 1)
	ranks := func(sig syscall.Signal) { // whoever trains alone must not be done before the other is back
		for _, pid := range here.ranks(n) {
			require.NoError(t, syscall.Kill(pid, sig))
		}
	}
	here.await("its rank", func() bool { return len(here.ranks(n)) == 1 })
	ranks(syscall.SIGSTOP)
	joined := func() int { return strings.Count(here.stderr.String(), "why hosts have joined") }
	before := joined()
	there.awaitPrinted("joins again when it can")
	link("up")
	here.await("the other host", func() bool { return joined() > before })
	ranks(syscall.SIGCONT)
	n = s.round(here, n, 2)
	require.Equal(t, n, s.round(there, n-1, 2))
	s.requireBitsOfOne(here, there)
}

// TestHostWithAWrongToken starts a host whose token is mistyped beside one that serves and trains: it ends at once, the
// other names it and trains on. A host whose loopback interface is down says so, whether it serves or not.
func TestHostWithAWrongToken(t *testing.T) {
	t.Parallel()
	s := newSwarm(t, 2)
	s.argv = tiny(filepath.Join(t.TempDir(), "out"), "--max_steps", "1000000", "--eval_strategy", "no")
	lo := func(host int, state string) { require.NoError(t, s.ip("-n "+s.name(host)+" link set lo "+state)) }
	isDown := func(host int) {
		t.Helper()
		lo(host, "down")
		p := s.start(host)
		p.wait()
		require.Equal(t, 1, p.code(), "%s", p.stderr)
		require.Contains(t, p.stderr.String(), "the loopback interface lo is down: want it up, as by ip link set lo up")
		lo(host, "up")
	}
	isDown(0)
	first := s.start(0)
	n := s.round(first, -1, 1)
	s.token = "a token that the hosts of the test do not know"
	wrong := s.start(1)
	s.token = ""
	wrong.wait()
	require.Equal(t, 2, wrong.code(), "%s", wrong.stderr)
	require.Contains(t, wrong.stderr.String(), "the roster at 10.77.0.1:29618: handshake: the job tokens differ")
	first.awaitPrinted("a host was refused since its job token differs")
	require.Contains(t, first.stderr.String(), "host 10.77.0.2:")
	require.Len(t, first.ranks(n), 1, "its round goes on")
	isDown(1)
	first.signal(syscall.SIGTERM)
	first.requireEnd(128 + int(syscall.SIGTERM))
}
