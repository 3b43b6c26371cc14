// SPDX-License-Identifier: Apache-2.0

//go:build unix

package launch

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
)

// elasticBench is a launcher of a job whose hosts come and go.
func elasticBench(t *testing.T, endpoint string, least, most int, part ...string) *bench {
	t.Helper()
	b := newBench(t, 2, part...)
	b.Token = "a token of this test alone, and of no other one"
	b.stop = make(chan os.Signal, 1)
	b.Signals = b.stop
	b.Elastic = &Elastic{MinNodes: least, MaxNodes: most, Endpoint: endpoint, LastCall: 10 * time.Millisecond,
		Patience: 10 * time.Second}
	return b
}

// journal is a log that a test reads while it is written.
type journal struct {
	syncbuffer.Buffer
	read int
}

// await reads on until words have been written.
func (j *journal) await(t *testing.T, words string) {
	t.Helper()
	require.Eventually(t, func() bool {
		at := strings.Index(j.String()[j.read:], words)
		if at >= 0 {
			j.read += at + len(words)
		}
		return at >= 0
	}, 20*time.Second, time.Millisecond, "no %q", words)
}

// link is a way to an endpoint that can be cut: then nobody answers there.
type link struct {
	net.Listener
	to string

	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	k := &link{Listener: l, to: to}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() { k.carry(c) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		k.cut()
		open.Wait()
	})
	return k
}

// carry joins a connection with one to the endpoint.
func (k *link) carry(c net.Conn) {
	defer c.Close()
	far, err := net.Dial("tcp", k.to)
	if err != nil {
		return
	}
	defer far.Close()
	k.mu.Lock()
	k.conns = append(k.conns, c, far)
	down := k.down
	k.mu.Unlock()
	if down {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(c, far)
		c.Close()
	}()
	io.Copy(far, c)
	far.Close()
	<-done
}

func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = true
	for _, c := range k.conns {
		c.Close()
	}
	k.conns = nil
}

func (k *link) mend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = false
}

func freeEndpoint(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// together runs launchers at once and returns their errors.
func together(list ...*bench) []error {
	errs, done := make([]error, len(list)), make(chan struct{})
	for i, b := range list {
		go func() {
			errs[i] = Run(context.Background(), b.Config)
			done <- struct{}{}
		}()
	}
	for range list {
		<-done
	}
	return errs
}

func TestElasticPlaces(t *testing.T) {
	endpoint := freeEndpoint(t)
	one, two := elasticBench(t, endpoint, 2, 2, "place"), elasticBench(t, endpoint, 2, 2, "place")
	for _, err := range together(one, two) {
		require.NoError(t, err)
	}
	lines := strings.Fields(strings.ReplaceAll(one.out.String()+two.out.String(), "] ", "]:"))
	require.Len(t, lines, 12)
	text := one.out.String() + two.out.String()
	for _, want := range []string{"0/4 0/2 0/2", "1/4 1/2 0/2", "2/4 0/2 1/2", "3/4 1/2 1/2"} {
		require.Contains(t, text, want)
	}
}

// The rank 0 of a round has the socket that the others were told of.
func TestElasticMeets(t *testing.T) {
	endpoint := freeEndpoint(t)
	one, two := elasticBench(t, endpoint, 2, 2, "meet"), elasticBench(t, endpoint, 2, 2, "meet")
	for _, err := range together(one, two) {
		require.NoError(t, err, "%s%s", &one.err, &two.err)
	}
	require.Equal(t, 3, strings.Count(one.out.String()+two.out.String(), "met "))
}

func TestElasticRestartsAfterAFailure(t *testing.T) {
	for _, row := range []struct {
		restarts string
		allowed  int
		code     int
	}{{"2", 2, 0}, {"3", 2, 4}} {
		b := elasticBench(t, freeEndpoint(t), 1, 1, "flaky", row.restarts)
		b.MaxRestarts = row.allowed
		err := b.run(t)
		require.Equal(t, row.code, ExitCode(err), "%v", err)
	}
}

// Restarts wait longer and longer, as those of a job whose hosts are fixed.
func TestElasticBacksOff(t *testing.T) {
	b := elasticBench(t, freeEndpoint(t), 1, 1, "together", "3")
	b.MaxRestarts, b.RestartDelay = 3, 20*time.Millisecond
	began := time.Now()
	require.Equal(t, 3, ExitCode(b.run(t)))
	require.GreaterOrEqual(t, time.Since(began), (20+40+80)*time.Millisecond)
	for _, pause := range []string{"in=20ms", "in=40ms", "in=80ms"} {
		require.Contains(t, b.log.String(), pause)
	}
	b.RestartDelay = 11 * time.Second
	require.ErrorContains(t, b.Validate(), "restart_delay is 11s: want less than the 10s that hosts wait for a round")
}

// A host whose link is cut, so that it is lost to the others, takes part again in the round after the link is back.
func TestElasticRejoins(t *testing.T) {
	endpoint := freeEndpoint(t)
	link := newLink(t, endpoint)
	here, there := elasticBench(t, endpoint, 1, 2, "polite"), elasticBench(t, link.Addr().String(), 1, 2, "polite")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // a failed test must not wait for ever
	ended := make(chan error, 2)
	var logs [2]journal
	for i, b := range []*bench{here, there} {
		b.Logger = slog.New(slog.NewTextHandler(&logs[i], nil))
		go func() { ended <- Run(ctx, b.Config) }()
		logs[0].await(t, "a host joins") // the first one serves
	}
	for i := range logs {
		logs[i].await(t, "nodes=2 node_rank")
	}
	link.cut()
	logs[1].await(t, "joins again when it can")
	logs[0].await(t, "nodes=1 node_rank")
	link.mend()
	for i := range logs {
		logs[i].await(t, "nodes=2 node_rank")
	}
	for _, b := range []*bench{here, there} {
		b.stop <- syscall.SIGTERM
	}
	for range 2 {
		require.ErrorContains(t, <-ended, "interrupted by SIGTERM")
	}
}

// A signal ends the search for an endpoint that does not come.
func TestElasticInterruptWhileJoining(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // somebody who is no roster
	require.NoError(t, err)
	defer l.Close()
	b := elasticBench(t, l.Addr().String(), 1, 1, "polite")
	b.stop <- syscall.SIGTERM
	require.ErrorContains(t, b.run(t), "interrupted by SIGTERM")
	require.NotContains(t, b.out.String(), "ready")
}

func TestElasticPermanentFailure(t *testing.T) {
	b := elasticBench(t, freeEndpoint(t), 1, 1, "hopeless")
	b.MaxRestarts = 5
	f := fails(t, b.run(t))
	require.Equal(t, 0, f.Attempt)
	require.Contains(t, f.Root.Message, "a typing error")
}

func TestElasticInterrupt(t *testing.T) {
	b := elasticBench(t, freeEndpoint(t), 1, 1, "polite")
	signals := make(chan os.Signal, 1)
	b.Signals = signals
	time.AfterFunc(500*time.Millisecond, func() { signals <- syscall.SIGTERM })
	var interrupted *InterruptedError
	require.ErrorAs(t, b.run(t), &interrupted)
	require.Contains(t, b.out.String(), "saved")
}

func TestElasticWaitsInVain(t *testing.T) {
	b := elasticBench(t, freeEndpoint(t), 2, 2, "say", "x")
	b.Elastic.Patience = 100 * time.Millisecond
	require.ErrorContains(t, b.run(t), "no round began within 100ms: want at least 2 hosts")
}

// A host with another token ends at once with an exit code of its own. The host that serves names it each time, and
// neither its wait nor a round ends.
func TestElasticWrongToken(t *testing.T) {
	endpoint := freeEndpoint(t)
	here, there := elasticBench(t, endpoint, 2, 2, "polite"), elasticBench(t, endpoint, 2, 2, "polite")
	var logs journal
	here.Logger = slog.New(slog.NewTextHandler(&logs, nil))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // a failed test must not wait for ever
	ended := make(chan error, 2)
	go func() { ended <- Run(ctx, here.Config) }()
	logs.await(t, "a host joins") // it serves
	stranger := elasticBench(t, endpoint, 2, 2, "polite")
	stranger.Token = "a mistyped token of this test, that no other one has"
	refused := func() {
		t.Helper()
		err := stranger.run(t)
		require.ErrorContains(t, err, "the roster at "+endpoint+": handshake: the job tokens differ")
		require.Equal(t, ExitRefused, ExitCode(err))
		logs.await(t, "a host was refused since its job token differs from this host's")
		logs.await(t, "host=127.0.0.1:")
	}
	refused() // while it waits
	go func() { ended <- Run(ctx, there.Config) }()
	logs.await(t, "a round begins")
	stranger.Elastic.Endpoint = endpoint
	time.Sleep(1100 * time.Millisecond) // further refusals of a host are counted alone
	refused()                           // while a round runs
	for _, b := range []*bench{here, there} {
		b.stop <- syscall.SIGTERM
	}
	for range 2 {
		require.ErrorContains(t, <-ended, "interrupted by SIGTERM")
	}
}

// Who waits in vain is told of the hosts that were refused.
func TestElasticWaitsInVainForARefusedHost(t *testing.T) {
	endpoint := freeEndpoint(t)
	b, stranger := elasticBench(t, endpoint, 2, 2, "say", "x"), elasticBench(t, endpoint, 2, 2, "say", "x")
	b.Elastic.Patience = 2 * time.Second
	stranger.Token = "a mistyped token of this test, that no other one has"
	var logs journal
	b.Logger = slog.New(slog.NewTextHandler(&logs, nil))
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), b.Config) }()
	logs.await(t, "a host joins")
	require.Error(t, stranger.run(t))
	require.ErrorContains(t, <-ended, "want at least 2 hosts (1 refused, the last one 127.0.0.1:")
}
