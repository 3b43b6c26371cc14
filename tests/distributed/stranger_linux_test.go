// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// soon is how long a mistake may take to be told on a busy machine, with what its ranks wait for one that is refused.
const soon = limit + refused

// refused is how long ranks wait for one that is refused: they must all have come by then.
const refused = 10 * time.Second

// TestWrongToken requires the rank that has it refused at once, the others to be told of it long before their patience
// ends, and to say then who is missing.
func TestWrongToken(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	began := time.Now()
	ranks := startRanks(t, 4, func(rank int) (argv, env []string) {
		if rank == 1 {
			env = append(env, "LOCKSTEP_JOB_TOKEN=a token of quite another job")
		}
		return tiny(out, "--ddp_timeout", strconv.Itoa(int(refused.Seconds()))), env
	})
	wants := []string{"that did not know the job token", "belongs to another job", "rank 1",
		"rank 1"}
	for _, r := range []int{0, 2, 3} {
		ranks[r].awaitPrinted("a process was refused since its job token is another one")
		ranks[r].awaitPrinted("which calls itself rank 1")
		require.NotContains(t, ranks[r].stderr.String(), "did not come within", "told before its patience ends")
	}
	t.Logf("all were told after %v", time.Since(began))
	requireFailed(t, ranks, began)
	for r, p := range ranks {
		require.Contains(t, p.stderr.String(), wants[r])
	}
}

// requireFailed waits for the ranks, which must all have failed soon and said why in those words.
func requireFailed(t testing.TB, ranks []*process, began time.Time, words ...string) {
	t.Helper()
	for r, p := range ranks {
		p.wait()
		t.Logf("rank %d: %s", r, firstError(p))
		require.Less(t, p.endedAt.Sub(began), soon)
		require.Equal(t, 1, p.code(), "rank %d: %s", r, p.stderr)
		for _, w := range words {
			require.Contains(t, p.stderr.String(), w)
		}
		requireNoTrace(t, p.stderr.String())
	}
}

// firstError is the line by which a rank says why it failed.
func firstError(p *process) string {
	for line := range strings.Lines(p.stderr.String()) {
		if strings.HasPrefix(line, "clm: ") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// TestDifferentArguments requires every rank to name the argument, both values and both ranks.
func TestDifferentArguments(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	began := time.Now()
	ranks := startRanks(t, 4, func(rank int) (argv, env []string) {
		return tiny(out, "--learning_rate", []string{"0.003", "0.003", "0.03", "0.003"}[rank]), nil
	})
	requireFailed(t, ranks, began, "learning_rate is 0.003 on rank 0 and 0.03 on rank 2")
}

// TestDifferentModels has one rank whose model has the parameters of the others' and another configuration.
func TestDifferentModels(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	began := time.Now()
	ranks := startRanks(t, 4, func(rank int) (argv, env []string) {
		return tiny(out, "--dropout", []string{"0.1", "0.3", "0.1", "0.1"}[rank]), nil
	})
	requireFailed(t, ranks, began, "rank 1's model has attn_pdrop 0.3: want 0.1, as rank 0's has")
}

// TestStranger writes all sorts of things to the port where the ranks meet, from before
// they do until they are done, and requires the run to end as if nobody had.
func TestStranger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := []string{"--max_steps", "120", "--save_steps", "120"}
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	succeed(t, plain(tiny(whole, flags...)))
	p := start(t, launched(2, tiny(out, append(flags, "--ddp_backend", "tcp")...)))
	port := 0
	p.await("a port", func() bool { port = p.port(); return port != 0 })
	connected := disturb(t, p, port)
	require.Equal(t, 0, p.code(), "%s", p.stderr)
	t.Logf("%d connections of the stranger", connected)
	require.Greater(t, connected, 20)
	requireSameEnd(t, whole, out, 120)
	p.requireNothingLeft()
	requireFree(t, port)
}

// disturb connects to a port again and again until the process ends, and counts how often
// it could.
func disturb(t testing.TB, p *process, port int) int {
	t.Helper()
	noise := make([]byte, 64<<10)
	_, err := rand.Read(noise)
	require.NoError(t, err)
	messages := [][]byte{
		nil, noise, []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3},
		binary.BigEndian.AppendUint32(nil, 1<<31-1), binary.LittleEndian.AppendUint32(nil, 1<<31-1),
		bytes.Repeat([]byte{'{'}, 4096), {0},
	}
	connected := 0
	for i := 0; ; i++ {
		select {
		case <-p.ended:
			return connected
		case <-time.After(2 * time.Millisecond):
		}
		c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
		if err != nil {
			continue // it listens no more
		}
		connected++
		_, _ = c.Write(messages[i%len(messages)]) // it may hang up
		if i%3 == 0 {                             // the others wait for an answer until the end
			require.NoError(t, c.Close())
			continue
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}
