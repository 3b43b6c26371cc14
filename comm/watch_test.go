// SPDX-License-Identifier: Apache-2.0

package comm_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
)

// waiting is the engine of rank 0 of 3, whose calls end when the test says so. Rank 1 answers, rank 2 if awake.
type waiting struct {
	comm.Engine
	mu     sync.Mutex
	at     uint64 // rank 1
	awake  bool
	finish chan error
}

func (w *waiting) Rank() int                 { return 0 }
func (w *waiting) Size() int                 { return 3 }
func (w *waiting) Describe() comm.Info       { return comm.Info{Name: "waiting"} }
func (w *waiting) OnFailure(func(error))     {}
func (w *waiting) Abort(error)               {}
func (w *waiting) Close() error              { return nil }
func (w *waiting) Run(*comm.Call) error      { return <-w.finish }
func (*waiting) Process(r int) (string, int) { return "host", 100 + r }

func (w *waiting) Probe(ctx context.Context) map[int]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.awake {
		return map[int]uint64{1: w.at, 2: 0}
	}
	<-ctx.Done() // until the patience is over
	return map[int]uint64{1: w.at}
}

func (w *waiting) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awake = true
}

// lines is a log that a test reads.
type lines struct{ syncbuffer.Buffer }

func (l *lines) await(t *testing.T, part string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(l.String(), part) }, 10*time.Second, time.Millisecond,
		"%s", part)
}

func TestAFrozenRankIsNamedWhileACallWaits(t *testing.T) {
	comm.SetPatience(t, time.Millisecond, 5*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond)
	w, log := &waiting{finish: make(chan error)}, &lines{}
	g := comm.New(w, comm.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	h := g.Barrier(comm.Label("end of step 7"))
	log.await(t, `a rank does not answer`)
	require.Contains(t, log.String(), `rank=2 process=102 host=host waiting_in="barrier #1 \"end of step 7\""`)
	require.NotContains(t, log.String(), "rank=1")
	w.wake()
	log.await(t, `msg="the rank answers again" group=world rank=2`)
	log.await(t, `msg="waiting for ranks that are alive but have not reached the call" group=world ranks="[1 2]"`)
	require.Equal(t, 1, strings.Count(log.String(), "does not answer"), "once is enough")
	w.finish <- nil
	require.NoError(t, h.Wait(t.Context()))
	require.NoError(t, g.Close())
}

func TestTheEndOfAWaitingCallIsNotHeldUpByItsQuestions(t *testing.T) {
	for _, failure := range []error{nil, errors.New("cut")} {
		comm.SetPatience(t, time.Millisecond, time.Millisecond, time.Hour, time.Hour)
		w := &waiting{finish: make(chan error)}
		g := comm.New(w, comm.Options{Log: slog.New(slog.DiscardHandler)})
		h := g.Barrier()
		time.Sleep(20 * time.Millisecond) // it asks by now
		w.finish <- failure
		require.ErrorIs(t, h.Wait(t.Context()), failure)
		require.NoError(t, g.Close())
	}
}
