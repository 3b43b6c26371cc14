// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/internal/wire"
)

// meeting starts rank 0 of a job of two on a store that waits so long after a claim with another token.
func meeting(t *testing.T, patience time.Duration) (c Config, joined chan error) {
	t.Helper()
	s, err := Serve("127.0.0.1:0", rosterToken, TLS{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	s.mu.Lock()
	s.patience = patience
	s.mu.Unlock()
	c = Config{World: 2, Address: s.Addr().String(), Token: rosterToken, Timeout: time.Hour, Server: s}
	joined = make(chan error, 1)
	go func() {
		j, err := Join(t.Context(), c)
		if err == nil {
			err = j.Close()
		}
		joined <- err
	}()
	require.Eventually(t, func() bool { // it waits for the other
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.exchanges["peers"] != nil
	}, 10*time.Second, time.Millisecond)
	c.Server = nil
	return c, joined
}

// A rank with another token ends at once; the others end soon, with its address and rank, long before ddp_timeout.
func TestWrongTokenEndsTheMeeting(t *testing.T) {
	c, joined := meeting(t, 10*time.Millisecond)
	c.Rank, c.Token = 1, NewToken()
	_, err := Join(t.Context(), c)
	require.ErrorIs(t, err, wire.ErrToken)
	err = <-joined
	require.ErrorContains(t, err, "rank 1 did not come, and a process at 127.0.0.1:")
	require.ErrorContains(t, err, "which calls itself rank 1, was refused since its job token is another one: give "+
		"all hosts the same token")
}

// Strangers who claim the place of a rank that comes in time, or has come, or of none, end nothing.
func TestStrangersEndNoMeeting(t *testing.T) {
	c, joined := meeting(t, time.Hour)
	key, err := wire.NewKey(NewToken(), wire.Options{})
	require.NoError(t, err)
	for _, rank := range []int{1, 0, -1, 2, 1 << 40} {
		conn, err := net.Dial("tcp", c.Address)
		require.NoError(t, err)
		_, err = key.Greet(conn, wire.Hello{Kind: "store", Rank: rank})
		require.ErrorIs(t, err, wire.ErrToken)
		require.NoError(t, conn.Close())
	}
	s := &Server{exchanges: map[string]*exchange{"peers": {n: 2, values: map[int][]byte{0: nil}, once: true}}}
	for _, rank := range []int{0, -1, 2} {
		s.giveUp(rank, "somebody")
	}
	require.Len(t, s.exchanges, 1)
	c.Rank = 1
	j, err := Join(t.Context(), c)
	require.NoError(t, err)
	require.NoError(t, j.Close())
	require.NoError(t, <-joined)
}

// A rank whose LOCKSTEP_TLS is another one ends at once, and those who wait for it are told.
func TestWrongTLSIsToldOfWhileRanksMeet(t *testing.T) {
	var log page
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	c, joined := meeting(t, time.Hour)
	other := c
	other.Rank, other.TLS.Mode = 1, TLSAlways
	_, err := Join(t.Context(), other)
	require.ErrorIs(t, err, wire.ErrTLS)
	require.Eventually(t, log.has("a process was refused since LOCKSTEP_TLS is another one; if it belongs to this "+
		`job, give it the same value" rank=0 refused=127.0.0.1:`), 10*time.Second, time.Millisecond)
	c.Rank = 1
	j, err := Join(t.Context(), c)
	require.NoError(t, err)
	require.NoError(t, j.Close())
	require.NoError(t, <-joined)
}
