// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/comm/internal/wire"
)

// Refused reports whether an error of joining means that the other side was reached and does not belong together with
// this one: their job tokens or their LOCKSTEP_TLS differ, or another user of this host listens there. Trying again
// does not help.
func Refused(err error) bool {
	return errors.Is(err, wire.ErrToken) || errors.Is(err, wire.ErrTLS) || errors.Is(err, wire.ErrUser)
}

// refusalLog warns of hosts that a roster has refused. They may be the job's own, with a mistyped token, or anybody's:
// a refusal ends nothing.
type refusalLog struct {
	logger *slog.Logger

	mu    sync.Mutex
	told  map[string]time.Time // by IP address
	count int
	last  string // what became of the last one
}

// refusalPause is how long further refusals of a host are only counted; so many hosts are told apart.
const (
	refusalPause = time.Second
	refusalHosts = 64
)

// add is told of a connection that was refused.
func (f *refusalLog) add(from net.Addr, _ wire.Hello, why error) {
	setting := "job token"
	if errors.Is(why, wire.ErrTLS) {
		setting = EnvTLS
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	f.last = fmt.Sprintf("%v, whose %s differs", from, setting)
	host, _, _ := net.SplitHostPort(from.String())
	if f.warned(host, time.Now()) {
		return
	}
	f.logger.Warn("a host was refused since its "+setting+" differs from this host's; if it belongs to this job, give "+
		"both the same", "host", from.String(), "refused", f.count)
}

// warned reports whether a host has been warned of just now, and takes down that it is. The lock is held.
func (f *refusalLog) warned(host string, now time.Time) bool {
	if now.Sub(f.told[host]) < refusalPause {
		return true
	}
	for other, at := range f.told {
		if now.Sub(at) >= refusalPause {
			delete(f.told, other)
		}
	}
	if len(f.told) == refusalHosts {
		return true
	}
	if f.told == nil {
		f.told = map[string]time.Time{}
	}
	f.told[host] = now
	return false
}

// String counts them and names the last one; "" if there was none.
func (f *refusalLog) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count == 0 {
		return ""
	}
	return fmt.Sprintf("%d refused, the last one %s", f.count, f.last)
}
