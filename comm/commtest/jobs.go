// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Token is the job token of tests.
var Token = []byte("a token that only these tests know")

// Jobs joins n ranks in the test's process, each with its own job, store connection and control connections. change, if
// not nil, is called with each rank's configuration. They are closed when the test ends, unless closed earlier.
func Jobs(t *testing.T, n int, change func(*rendezvous.Config)) []*rendezvous.Job {
	var first rendezvous.Config
	if change != nil {
		change(&first)
	}
	server, err := rendezvous.Serve("127.0.0.1:0", Token, first.TLS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	jobs := make([]*rendezvous.Job, n)
	errs := make([]error, n)
	var joining sync.WaitGroup
	for r := range n {
		joining.Go(func() {
			c := rendezvous.Config{Rank: r, World: n, Address: server.Addr().String(), Token: Token, External: true,
				Timeout: 30 * time.Second}
			if change != nil {
				change(&c)
			}
			jobs[r], errs[r] = rendezvous.Join(context.Background(), c)
		})
	}
	joining.Wait()
	for r, err := range errs {
		require.NoError(t, err, "rank %d", r)
	}
	return jobs
}

// Open makes what a rank has of an engine, such as a group, of each of n jobs at the same time. change is as for
// [Jobs].
func Open[T any](t *testing.T, n int, change func(*rendezvous.Config), open func(job *rendezvous.Job) (T, error)) []T {
	made, errs := make([]T, n), make([]error, n)
	var opening sync.WaitGroup
	for r, job := range Jobs(t, n, change) {
		opening.Go(func() {
			var err error
			made[r], err = open(job)
			errs[r] = errors.Join(err, job.Close()) // what was made holds the job
		})
	}
	opening.Wait()
	for r, err := range errs {
		require.NoError(t, err, "rank %d", r)
	}
	return made
}

// Connected is local.Run for ranks that share nothing but what open connects them by, segments or sockets.
func Connected(t *testing.T, open func(*rendezvous.Job, comm.Options) (*comm.Group, error)) func(n int,
	opts comm.Options, body func(g *comm.Group) error) error {
	return func(n int, opts comm.Options, body func(g *comm.Group) error) error {
		errs := make([]error, n)
		var wait sync.WaitGroup
		for r, job := range Jobs(t, n, nil) {
			wait.Go(func() {
				g, err := open(job, opts)
				_ = job.Close()
				if err == nil {
					if err = body(g); err != nil {
						g.Abort(err)
					}
					_ = g.Close()
				}
				errs[r] = err
			})
		}
		wait.Wait()
		return errors.Join(errs...)
	}
}

// Leftovers lists this process's sockets and shared memory, mapped or with a name: what an engine must not leave
// behind.
func Leftovers(t *testing.T) []string {
	var list []string
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil // not Linux: the goroutines alone are counted
	}
	for _, d := range descriptors {
		to, _ := os.Readlink(filepath.Join("/proc/self/fd", d.Name())) // the folder's own descriptor is gone by now
		if strings.HasPrefix(to, "socket:") || strings.Contains(to, "lockstep") {
			list = append(list, "descriptor "+strings.SplitN(to, ":", 2)[0])
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:lockstep") || strings.Contains(line, "/lockstep-") {
			list = append(list, "mapping")
		}
	}
	for _, dir := range []string{"/dev/shm", os.TempDir()} {
		names, _ := filepath.Glob(filepath.Join(dir, "lockstep-*")) // the pattern is a good one
		for _, name := range names {
			if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
				list = append(list, name)
			}
		}
	}
	slices.Sort(list)
	return list
}

// FreePort returns a port of the loopback interface that was free a moment ago. It is below those that systems give to
// connections, which come and go all the time; and nothing listens there to find out, for a process that is just being
// started by another goroutine would hold that socket, too.
func FreePort(t testing.TB) string {
	for range 100 {
		port := fmt.Sprint(12_000 + rand.IntN(20_000))
		c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", port), time.Second)
		if err != nil {
			return port
		}
		require.NoError(t, c.Close())
	}
	require.FailNow(t, "no port is free")
	return ""
}
