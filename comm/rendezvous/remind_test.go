// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
)

// page is a log that goroutines may write to.
type page struct{ syncbuffer.Buffer }

func (p *page) has(text string) func() bool {
	return func() bool { return strings.Contains(p.String(), text) }
}

// Who waits long says for whom: rank 0 for ranks, the others for the store.
func TestReminders(t *testing.T) {
	var log page
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	server, err := Serve("127.0.0.1:0", []byte("a token of this test alone"), TLS{})
	require.NoError(t, err)
	job := func(rank int, own *Server, address string) *Job {
		return &Job{Config: Config{Rank: rank, World: 4, Address: address, Server: own,
			Token: []byte("a token of this test alone"), Timeout: time.Minute}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for _, j := range []*Job{job(0, server, ""), job(2, nil, server.Addr().String()), job(3, nil, "127.0.0.1:1")} {
		j.want(func() string { return "" })
		quiet := j.remind(time.Millisecond)
		waiting.Go(func() {
			if _, _, err := j.enter(ctx); err == nil {
				t.Error("it has met four ranks")
			}
			quiet()
			if j.Store != nil {
				_ = j.Store.Close()
			}
			if j.listener != nil {
				_ = j.listener.Close()
			}
		})
	}
	require.Eventually(t, log.has(`msg="rendezvous: waiting for ranks 1, 3" rank=0`), 5*time.Second, time.Millisecond)
	require.Eventually(t, log.has(`msg="rendezvous: waiting for the store at 127.0.0.1:1" rank=3`), 5*time.Second,
		time.Millisecond)
	cancel()
	waiting.Wait()
	require.NoError(t, server.Close())
	require.False(t, log.has(`for ranks 1, 3" rank=2`)(), "rank 0 says it")
}
