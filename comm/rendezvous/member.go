// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/comm/internal/wire"
	"github.com/lockstep-ml/lockstep/internal/loopback"
)

// Member is a host's connection to the [Roster] of its job.
type Member struct {
	conn   net.Conn
	events chan HostEvent
}

// Door is where a host joins a [Roster].
type Door struct {
	Address string // HOST:PORT
	Token   []byte // the job's
	TLS     TLS
	Silence time.Duration // after which the roster is lost; 0 is DefaultSilence
	// the host was in the roster before: if its address refuses connections, there is no roster any more
	Again bool
}

// refusals is how often in a row an address must refuse a connection before a roster that was there counts as gone. A
// host whose link is cut does not answer; one that comes back may refuse once or twice.
const refusals = 3

// JoinRoster connects to the roster behind a door and proves knowledge of the token. Like [Dial] it tries again until
// ctx ends, for hosts start in any order.
func JoinRoster(ctx context.Context, d Door) (*Member, error) {
	key, err := d.TLS.key(d.Token)
	if err != nil {
		return nil, err
	}
	d.Silence = cmp.Or(max(d.Silence, 0), DefaultSilence)
	refused := 0
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		c, err := key.Dial(ctx, d.Address, wire.Hello{Kind: "roster"})
		if err == nil {
			listenFor(c, d.Silence)
			m := &Member{conn: c, events: make(chan HostEvent, 16)}
			go m.listen()
			return m, nil
		}
		if Refused(err) {
			return nil, fmt.Errorf("rendezvous: the roster at %s: %w", d.Address, err)
		}
		if down := loopback.Down(d.Address); down != nil {
			return nil, fmt.Errorf("rendezvous: no roster at %s: %w: %w", d.Address, err, down)
		}
		if refused++; !errors.Is(err, syscall.ECONNREFUSED) {
			refused = 0
		}
		if d.Again && refused == refusals {
			return nil, fmt.Errorf("rendezvous: the launcher at %s, which serves the list of hosts, is gone: %w",
				d.Address, err)
		}
		if sleep(ctx, pause) != nil {
			return nil, fmt.Errorf("rendezvous: no roster at %s: %w (last attempt: %w)", d.Address, context.Cause(ctx),
				err)
		}
	}
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
	Port      int    `json:"port,omitempty"`      // at Member.Address, where rank 0 can be met
	Ranks     int    `json:"ranks,omitempty"`     // of this host in each round
	Outcome   string `json:"outcome,omitempty"`   // of the round before, "" if there was none
	Why       string `json:"why,omitempty"`       // it failed
	Permanent bool   `json:"permanent,omitempty"` // and would fail again
}

// Ready says that a round can begin.
func (m *Member) Ready(r Report) error {
	return m.say(hostReport{Op: "ready", Address: m.Address(), Report: r})
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
