// SPDX-License-Identifier: Apache-2.0

package sink_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/integrations/internal/sink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logged collects what goes to slog's default logger.
func logged(t *testing.T) *bytes.Buffer {
	var b bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	return &b
}

func TestJobsRunInOrderBeforeClose(t *testing.T) {
	var did []int
	s := sink.New(sink.Options{
		Flush: func() error { did = append(did, -1); return nil },
		Close: func() error { did = append(did, -2); return nil },
	})
	for i := range 100 {
		s.Put(func() error { did = append(did, i); return nil })
	}
	s.Close()
	s.Close()
	s.Put(func() error { did = append(did, 1000); return nil })
	require.Len(t, did, 102)
	require.Equal(t, []int{0, 99, -1, -2}, []int{did[0], did[99], did[100], did[101]})
}

func TestFailuresAreCounted(t *testing.T) {
	log := logged(t)
	s := sink.New(sink.Options{Name: "paper"})
	for range 3 {
		s.Put(func() error { return errors.New("no ink") })
	}
	s.Close()
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("cannot write")))
	require.Contains(t, log.String(), `reporter=paper failed=3 dropped=0 first_error="no ink"`)
}

func TestFullQueueDrops(t *testing.T) {
	log := logged(t)
	release, started := make(chan struct{}), make(chan struct{})
	s := sink.New(sink.Options{Name: "slow", Capacity: 2})
	s.Put(func() error { close(started); <-release; return nil })
	<-started
	for range 5 {
		s.Put(func() error { return nil })
	}
	close(release)
	s.Close()
	require.Contains(t, log.String(), "failed=0 dropped=3")
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	log := logged(t)
	release, ended := make(chan struct{}), make(chan struct{})
	s := sink.New(sink.Options{Name: "stuck", Patience: time.Millisecond, Close: func() error {
		close(ended)
		return nil
	}})
	s.Put(func() error { <-release; return nil })
	s.Close()
	require.Contains(t, log.String(), "does not finish")
	close(release)
	<-ended
}

func TestFlushTimer(t *testing.T) {
	flushed := make(chan struct{}, 100)
	s := sink.New(sink.Options{Every: time.Millisecond, Flush: func() error { flushed <- struct{}{}; return nil }})
	s.Put(func() error { return nil })
	select {
	case <-flushed: // before Close, which flushes too
	case <-time.After(10 * time.Second):
		require.Fail(t, "nothing was flushed")
	}
	s.Close()
}
