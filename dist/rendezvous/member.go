// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/lockstep-ml/lockstep/dist/internal/wire"
)

// Member is a host's connection to the [Roster] of its job.
type Member struct {
	conn   net.Conn
	events chan HostEvent
}

// JoinRoster connects to the roster at address and proves knowledge of the token. Like [Dial] it tries again until ctx
// ends, for hosts start in any order.
func JoinRoster(ctx context.Context, address string, token []byte, security TLS, silence time.Duration) (*Member,
	error) {
	key, err := security.key(token)
	if err != nil {
		return nil, err
	}
	if silence <= 0 {
		silence = DefaultSilence
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		m, err := joinOnce(ctx, address, key, silence)
		if err == nil {
			return m, nil
		}
		if errors.Is(err, wire.ErrTLS) || errors.Is(err, wire.ErrToken) {
			return nil, fmt.Errorf("rendezvous: the roster at %s: %w", address, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("rendezvous: no roster at %s: %w (last attempt: %w)", address, context.Cause(ctx),
				err)
		case <-time.After(pause):
		}
	}
}

func joinOnce(ctx context.Context, address string, key *wire.Key, silence time.Duration) (*Member, error) {
	dialer := net.Dialer{Timeout: wire.Patience}
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	proven, err := key.Greet(c, wire.Hello{Kind: "roster"})
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	listenFor(proven, silence)
	m := &Member{conn: proven, events: make(chan HostEvent, 16)}
	go m.listen()
	return m, nil
}

// listen hands on what the roster says.
func (m *Member) listen() {
	defer close(m.events)
	for {
		var e HostEvent
		if wire.Read(m.conn, &e, wire.MaxGreeting*16) != nil {
			return
		}
		m.events <- e
	}
}

// Address is this host's, as the roster sees it.
func (m *Member) Address() string {
	host, _, _ := net.SplitHostPort(m.conn.LocalAddr().String())
	return host
}

// Events are what the roster says. The channel is closed when the roster is gone. It must be read until then.
func (m *Member) Events() <-chan HostEvent { return m.events }

// Report is the state of a host between two rounds.
type Report struct {
	Port      int    // at Member.Address, where rank 0 can be met
	Ranks     int    // of this host in each round
	Outcome   string // of the round before, "" if there was none
	Why       string // it failed
	Permanent bool   // and would fail again
}

// Ready says that a round can begin.
func (m *Member) Ready(r Report) error {
	return m.say(hostReport{Op: "ready", Address: m.Address(), Port: r.Port, Ranks: r.Ranks, Outcome: r.Outcome,
		Why: r.Why, Permanent: r.Permanent})
}

// Leave says that this host will take part in no further round.
func (m *Member) Leave() error { return m.say(hostReport{Op: "leave"}) }

func (m *Member) say(r hostReport) error {
	_ = m.conn.SetWriteDeadline(time.Now().Add(wire.Patience))
	if err := wire.Write(m.conn, r, wire.MaxGreeting*16); err != nil {
		return fmt.Errorf("rendezvous: the roster is gone: %w", err)
	}
	return nil
}

// Close takes leave.
func (m *Member) Close() error {
	err := m.conn.Close()
	for range m.events { // until listen has ended
	}
	return err
}
