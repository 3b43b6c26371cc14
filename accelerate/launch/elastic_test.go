// SPDX-License-Identifier: Apache-2.0

//go:build unix

package launch

import (
	"context"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// elasticBench is a launcher of a job whose hosts come and go.
func elasticBench(t *testing.T, endpoint string, least, most int, part ...string) *bench {
	t.Helper()
	b := newBench(t, 2, part...)
	b.Token = "a token of this test alone, and of no other one"
	b.Elastic = &Elastic{MinNodes: least, MaxNodes: most, Endpoint: endpoint, LastCall: 10 * time.Millisecond,
		Patience: 10 * time.Second}
	return b
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
	require.ErrorContains(t, b.run(t), "no round began within 100ms; want at least 2 hosts")
}
