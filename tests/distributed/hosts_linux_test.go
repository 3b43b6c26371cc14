package distributed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hosts are two network namespaces with a link between them, each with a name of its own.
type hosts struct {
	t      testing.TB
	names  [2]string
	prefix string // of what is made
}

// newHosts makes two; the test is skipped where that cannot be done.
func newHosts(t testing.TB, number int) *hosts {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("two hosts are two network namespaces, which only root can make")
	}
	for _, tool := range []string{"ip", "unshare", "hostname"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("two hosts are made with %s: %v", tool, err)
		}
	}
	h := &hosts{t: t, prefix: fmt.Sprintf("ls%d%d", os.Getpid()%100000, number)}
	h.names = [2]string{h.prefix + "alpha", h.prefix + "beta"}
	t.Cleanup(func() {
		for _, n := range h.names {
			_ = exec.Command("ip", "netns", "del", n).Run() // there may be none
		}
	})
	for _, line := range []string{
		"netns add " + h.names[0],
		"netns add " + h.names[1],
		fmt.Sprintf("link add %s netns %s type veth peer name %s netns %s", h.link(0), h.names[0], h.link(1), h.names[1]),
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces can be made here: ip %s: %v: %s", line, err, out)
		}
	}
	for i, n := range h.names {
		h.ip("-n %s addr add %s/24 dev %s", n, address(i), h.link(i))
		h.ip("-n %s link set %s up", n, h.link(i))
		h.ip("-n %s link set lo up", n)
	}
	return h
}

func (h *hosts) link(i int) string { return fmt.Sprintf("%s%c", h.prefix, 'a'+i) }

func address(i int) string { return fmt.Sprintf("10.213.7.%d", i+1) }

func (h *hosts) ip(format string, a ...any) {
	h.t.Helper()
	out, err := exec.Command("ip", strings.Fields(fmt.Sprintf(format, a...))...).CombinedOutput()
	require.NoError(h.t, err, "%s", out)
}

// start starts a launcher with two ranks on each host.
func (h *hosts) start(argv func(host int) []string) (launchers [2]*process) {
	h.t.Helper()
	for i, name := range h.names {
		line := []string{"ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", `hostname "$0" && exec "$@"`, name}
		line = append(line, launched(2, argv(i), "--nnodes", "2", "--node_rank", fmt.Sprint(i), "--master_addr", address(0), "--master_port", "29617",
			"--settle_time", "5", "--grace_period", "1")...)
		launchers[i] = start(h.t, line, "LOCKSTEP_HOST_ID="+name, "LOCKSTEP_JOB_TOKEN=a token that both hosts of the test know")
	}
	return launchers
}

// sent is the number of bytes that a host has sent over the link.
func (h *hosts) sent(i int) int {
	h.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", h.names[i], "cat", "/sys/class/net/"+h.link(i)+"/statistics/tx_bytes").CombinedOutput()
	require.NoError(h.t, err, "%s", out)
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(h.t, err)
	return n
}

// TestTwoHosts wants the bits of one process from 2 × 2 ranks that reduce inside hosts
// first.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	h := newHosts(t, 0)
	dir := t.TempDir()
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	succeed(t, plain(tiny(whole)))
	launchers := h.start(func(int) []string { return tiny(out, "--log_level", "info") })
	for i, p := range launchers {
		p.wait()
		require.Equal(t, 0, p.code(), "host %d: %s", i, p.stderr)
	}
	require.Regexp(t, `engine=tcp path="hierarchical: shared memory of 2 processes on each of 2 hosts`, launchers[0].stderr.String())
	// A host sends 2(h−1)/h of the gradients in each step, which is all of them once for two
	// hosts, and a little to begin with and to agree. Flat it would be twice as much.
	const gradients = 24 * 23392 * 4
	for i := range h.names {
		sent := h.sent(i)
		t.Logf("host %d sent %d bytes over the link, %.3f of the gradients", i, sent, float64(sent)/gradients)
		require.Greater(t, sent, gradients)
		require.Less(t, sent, gradients*3/2)
	}
	requireSameEnd(t, whole, out, 24)
	for _, p := range launchers {
		p.requireNothingLeft()
	}
}

// TestCutLink cuts the only link and wants every rank to name a rank and the host on the
// other side.
func TestCutLink(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes the kernels ten seconds to give up a silent link")
	}
	h := newHosts(t, 1)
	out := t.TempDir()
	launchers := h.start(func(int) []string { return long(out) })
	launchers[0].awaitPrinted("step 5 ")
	cut := time.Now()
	h.ip("-n %s link set %s down", h.names[0], h.link(0))
	for i, p := range launchers {
		p.wait()
		text := p.stderr.String()
		t.Logf("host %d ended %v after the cut", i, p.endedAt.Sub(cut))
		require.Less(t, p.endedAt.Sub(cut), 20*time.Second)
		require.Equal(t, 1, p.code(), "%s", text)
		for _, rank := range []int{2 * i, 2*i + 1} {
			m := regexp.MustCompile(fmt.Sprintf(`(?m)^\[%d\] clm: .*`, rank)).FindString(text)
			t.Log(m)
			require.Regexp(t, fmt.Sprintf(`rank [%d%d] \(process \d+ on %s\) is lost`, 2-2*i, 3-2*i, h.names[1-i]), m, "%s", text)
		}
		requireNoTrace(t, text)
		p.requireNothingLeft()
	}
}
