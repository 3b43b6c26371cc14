// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// idle opens connections that say nothing, until the test ends.
func idle(t *testing.T, address string, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
	}
}

// Connections that are there before the ranks and prove nothing do not stop a job from starting, however many and
// however long they are held.
func TestIdleConnectionsDoNotStopAJob(t *testing.T) {
	for _, n := range []int{70, 300} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0") // as a launcher opens it
			require.NoError(t, err)
			idle(t, l.Addr().String(), n)
			server, err := rendezvous.ServeOn(l, commtest.Token, rendezvous.TLS{})
			require.NoError(t, err)
			list := configs(3, server.Addr().String(), commtest.Token)
			list[0].Server = server
			for r := range list {
				list[r].Timeout = 4 * time.Second // less than a handshake may take
			}
			jobs, errs := join(list...)
			require.Equal(t, make([]error, 3), errs)
			idle(t, server.Addr().String(), n)
			idle(t, jobs[1].Peers[0].Address, n)
			more := make(chan error, 2)
			for r := range 2 {
				go func() {
					c, err := jobs[r].Connect(t.Context(), "another", 1-r)
					if err == nil {
						err = c.Close()
					}
					more <- err
				}()
			}
			require.NoError(t, <-more)
			require.NoError(t, <-more)
			closeAll(t, jobs)
			require.NoError(t, server.Close())
		})
	}
}

// cutter is a relay that cuts its first connections when they have said something.
func cutter(t *testing.T, to string, cuts int) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for n := 0; ; n++ {
			a, err := l.Accept()
			if err != nil {
				return
			}
			if n < cuts {
				_, _ = a.Read(make([]byte, 1))
				_ = a.Close()
				continue
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
				running.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					_, _ = way[0].Close(), way[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		running.Wait()
	})
	return l.Addr().String()
}

// A rank whose connection is cut during the handshake, as a listener does that has too many of them, tries again: at
// the store and at another rank.
func TestStartRetries(t *testing.T) {
	server, err := rendezvous.Serve("127.0.0.1:0", commtest.Token, rendezvous.TLS{})
	require.NoError(t, err)
	list := configs(2, server.Addr().String(), commtest.Token)
	list[0].Server, list[1].Address = server, cutter(t, server.Addr().String(), 3)
	jobs, errs := join(list...)
	require.Equal(t, make([]error, 2), errs)
	jobs[1].Peers[0].Address = cutter(t, jobs[1].Peers[0].Address, 3)
	done := make(chan error, 2)
	for r, j := range jobs {
		go func() {
			c, err := j.Connect(t.Context(), "another", 1-r)
			if err == nil {
				err = c.Close()
			}
			done <- err
		}()
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	closeAll(t, jobs)
	require.NoError(t, server.Close())
}
