// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/internal/wire"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/internal/kernels"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// join runs Join for each configuration at once.
func join(configs ...rendezvous.Config) ([]*rendezvous.Job, []error) {
	jobs, errs, done := make([]*rendezvous.Job, len(configs)), make([]error, len(configs)), make(chan struct{})
	for i, c := range configs {
		go func() {
			jobs[i], errs[i] = rendezvous.Join(context.Background(), c)
			done <- struct{}{}
		}()
	}
	for range configs {
		<-done
	}
	return jobs, errs
}

func closeAll(t *testing.T, jobs []*rendezvous.Job) {
	done := make(chan error)
	for _, j := range jobs {
		go func() { done <- j.Close() }()
	}
	for range jobs {
		require.NoError(t, <-done)
	}
}

func configs(n int, address string, token []byte) []rendezvous.Config {
	list := make([]rendezvous.Config, n)
	for r := range list {
		list[r] = rendezvous.Config{Rank: r, World: n, Address: address, Token: token, Timeout: 5 * time.Second}
	}
	return list
}

// testKey is the key of commtest.Token within a host.
var testKey = func() *wire.Key {
	k, err := wire.NewKey(commtest.Token, wire.Options{})
	if err != nil {
		panic(err)
	}
	return k
}()

func address(t *testing.T) string { return "127.0.0.1:" + commtest.FreePort(t) }

func TestJoin(t *testing.T) {
	jobs, errs := join(configs(4, address(t), commtest.Token)...)
	require.Equal(t, make([]error, 4), errs)
	for r, j := range jobs {
		require.Equal(t, r, j.Rank)
		require.Len(t, j.Peers, 4)
		require.True(t, j.OneHost())
		require.Equal(t, os.Getpid(), j.Peers[3].PID)
		host, _, err := net.SplitHostPort(j.Peers[r].Address)
		require.NoError(t, err)
		require.Equal(t, "127.0.0.1", host, "bound to the loopback interface unless told")
	}
	closeAll(t, jobs)
}

// Ranks that would exchange over different engines, and wait for each other, are told at once. One that leaves the
// choice to its host has that of the others.
func TestRanksWithDifferentEngines(t *testing.T) {
	for _, c := range []struct {
		engines []string
		want    string
	}{
		{[]string{rendezvous.TCP, rendezvous.TCP, rendezvous.SharedMemory}, "exchanges over tcp, and rank 2"},
		{[]string{"", rendezvous.TCP}, "exchanges over shm, and rank 1"},
		{[]string{"mpi", ""}, "over shm: want the same engine on all ranks (ddp_backend)"},
		{[]string{"", rendezvous.SharedMemory, ""}, ""},
	} {
		list := configs(len(c.engines), address(t), commtest.Token)
		for i := range list {
			list[i].Engine, list[i].Timeout = c.engines[i], time.Minute
		}
		jobs, errs := join(list...)
		for _, err := range errs {
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		}
		if c.want == "" {
			closeAll(t, jobs)
		}
	}
}

// Two jobs with one address: the second one's ranks are told that it is not theirs, the first goes on.
func TestTwoJobsNeverMeet(t *testing.T) {
	where := address(t)
	first := configs(2, where, rendezvous.NewToken())
	second := configs(2, where, rendezvous.NewToken())
	done := make(chan struct{})
	var jobs []*rendezvous.Job
	var errs []error
	go func() {
		jobs, errs = join(first[0])
		close(done)
	}()
	require.Eventually(t, func() bool { // rank 0 of the first job listens
		c, err := net.Dial("tcp", where)
		return err == nil && c.Close() == nil
	}, 5*time.Second, time.Millisecond)
	_, refused := join(second...)
	require.ErrorContains(t, refused[0], "address already in use")
	require.ErrorIs(t, refused[1], wire.ErrToken)
	require.ErrorContains(t, refused[1], "rank 1: the store at "+where+" belongs to another job")
	other, err := join(first[1])
	require.NoError(t, err[0])
	<-done
	require.NoError(t, errs[0])
	closeAll(t, append(jobs, other...))
}

// Garbage on the store's port is refused and disturbs nobody.
func TestPortScanner(t *testing.T) {
	server, err := rendezvous.Serve("127.0.0.1:0", commtest.Token, rendezvous.TLS{})
	require.NoError(t, err)
	for range 10 {
		c, err := net.Dial("tcp", server.Addr().String())
		require.NoError(t, err)
		_, err = c.Write(bytes.Repeat([]byte("\xde\xad\xbe\xef"), 500))
		require.NoError(t, err)
		defer c.Close()
	}
	list := configs(3, server.Addr().String(), commtest.Token)
	list[0].Server = server
	jobs, errs := join(list...)
	require.Equal(t, make([]error, 3), errs)
	require.Eventually(t, func() bool { return server.Refused() == 10 }, 5*time.Second, time.Millisecond)
	closeAll(t, jobs)
	require.NoError(t, server.Close())
}

func TestRanksThatDisagree(t *testing.T) {
	for want, change := range map[string]func([]rendezvous.Config){
		"two processes came as rank 1": func(c []rendezvous.Config) { c[2].Rank = 1 },
		"another one in":               func(c []rendezvous.Config) { c[1].World = 4 },
	} {
		list := configs(3, address(t), commtest.Token)
		change(list)
		_, errs := join(list...)
		told := 0
		for _, err := range errs {
			require.Error(t, err)
			if bytes.Contains([]byte(err.Error()), []byte(want)) {
				told++
			}
		}
		require.GreaterOrEqual(t, told, 2, "%s: %v", want, errs)
	}
}

func TestRankThatDoesNotCome(t *testing.T) {
	list := configs(4, address(t), commtest.Token)
	for r := range list {
		list[r].Timeout = 500 * time.Millisecond
	}
	_, errs := join(list[0], list[2])
	for _, err := range errs {
		require.ErrorContains(t, err, "ranks 1, 3 did not come within")
		require.Equal(t, []int{1, 3}, absent(t, err))
	}
}

// absent are the ranks that an error names as those that others waited for.
func absent(t *testing.T, err error) []int {
	t.Helper()
	var named *rendezvous.AbsentError
	require.ErrorAs(t, err, &named)
	return named.Ranks
}

// Ranks that serve the store, or that are to meet in a group of some, are named by their numbers in the job as well.
func TestAbsentRanksAreThoseOfTheJob(t *testing.T) {
	list := configs(4, address(t), commtest.Token)
	list[2].Timeout = 300 * time.Millisecond
	_, errs := join(list[2])
	require.ErrorContains(t, errs[0], "rank 2 cannot reach the store")
	require.Equal(t, []int{0}, absent(t, errs[0]))

	jobs, errs := join(configs(4, address(t), commtest.Token)...)
	require.Equal(t, make([]error, 4), errs)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := jobs[1].Exchange(ctx, "halves", []int{1, 3}, nil)
	require.ErrorContains(t, err, "rank 3 did not come within")
	require.Equal(t, []int{3}, absent(t, err))
	closeAll(t, jobs)
}

// A rank that gives up a connection which it has not used, as one does for which the handshake was too slow, and dials
// again is none that has died.
func TestRankThatDialsAgain(t *testing.T) {
	list := configs(3, address(t), commtest.Token)
	server, err := rendezvous.Serve(list[0].Address, commtest.Token, rendezvous.TLS{})
	require.NoError(t, err)
	defer server.Close()
	list[0].Server = server
	met := make(chan error)
	var jobs [3]*rendezvous.Job
	for i := range 2 {
		go func() {
			var err error
			jobs[i], err = rendezvous.Join(t.Context(), list[i])
			met <- err
		}()
	}
	first, err := net.Dial("tcp", list[0].Address)
	require.NoError(t, err)
	_, err = testKey.Greet(first, wire.Hello{Kind: "store", Rank: 2})
	require.NoError(t, err)
	time.Sleep(100 * time.Millisecond) // until the others wait
	require.NoError(t, first.Close())
	time.Sleep(100 * time.Millisecond)
	jobs[2], err = rendezvous.Join(t.Context(), list[2])
	require.NoError(t, err)
	require.NoError(t, <-met)
	require.NoError(t, <-met)
	closeAll(t, jobs[:])
}

// A rank that dies while the others wait to meet it is an error soon.
func TestRankThatDiesDuringTheRendezvous(t *testing.T) {
	list := configs(3, address(t), commtest.Token)
	server, err := rendezvous.Serve(list[0].Address, commtest.Token, rendezvous.TLS{})
	require.NoError(t, err)
	defer server.Close()
	server.SetRedial(100 * time.Millisecond)
	list[0].Server = server
	list[0].Timeout, list[1].Timeout = time.Minute, time.Minute
	go func() {
		c, err := net.Dial("tcp", list[0].Address)
		for ; err != nil; c, err = net.Dial("tcp", list[0].Address) {
			time.Sleep(time.Millisecond)
		}
		if _, err := testKey.Greet(c, wire.Hello{Kind: "store", Rank: 2}); err == nil {
			time.Sleep(200 * time.Millisecond)
		}
		_ = c.Close()
	}()
	_, errs := join(list[0], list[1])
	for _, err := range errs {
		require.ErrorContains(t, err, "rank 2 (127.0.0.1:")
		require.ErrorContains(t, err, "went away")
		require.Equal(t, []int{2}, absent(t, err))
	}
}

// A rank that dies after it has introduced itself, and before it has connected to the others, is an error as well.
func TestRankThatDiesBeforeItConnects(t *testing.T) {
	list := configs(2, address(t), commtest.Token)
	server, err := rendezvous.Serve(list[0].Address, commtest.Token, rendezvous.TLS{})
	require.NoError(t, err)
	defer server.Close()
	list[0].Server = server
	dying, err := net.Dial("tcp", list[0].Address)
	require.NoError(t, err)
	_, err = testKey.Greet(dying, wire.Hello{Kind: "store", Rank: 1})
	require.NoError(t, err)
	me := fmt.Appendf(nil, `{"rank":1,"host":"elsewhere","pid":7,"address":"127.0.0.1:1","kernels":%q}`,
		kernels.Active())
	require.NoError(t,
		wire.Write(dying, map[string]any{"id": 1, "op": "exchange", "key": "peers", "value": me, "rank": 1, "n": 2,
			"timeout": time.Minute}, wire.MaxFrame))
	go func() {
		var answer map[string]any
		_ = wire.Read(dying, &answer, wire.MaxFrame) // all are there
		time.Sleep(50 * time.Millisecond)
		_ = dying.Close()
	}()
	list[0].Timeout = time.Minute
	began := time.Now()
	_, err = rendezvous.Join(t.Context(), list[0])
	require.ErrorContains(t, err, "rank 1 (process 7 on elsewhere) did not connect to rank 0")
	require.ErrorContains(t, err, "went away")
	require.Less(t, time.Since(began), 30*time.Second, "it did not wait for the deadline")
}

func TestStore(t *testing.T) {
	server, err := rendezvous.Serve("127.0.0.1:0", commtest.Token, rendezvous.TLS{})
	require.NoError(t, err)
	ctx := t.Context()
	a, err := rendezvous.Dial(ctx, server.Addr().String(), commtest.Token, 0, rendezvous.TLS{})
	require.NoError(t, err)
	b, err := rendezvous.Dial(ctx, server.Addr().String(), commtest.Token, 1, rendezvous.TLS{})
	require.NoError(t, err)

	got := make(chan string)
	go func() {
		v, err := b.Get(ctx, "late")
		got <- fmt.Sprint(string(v), err)
	}()
	n, err := b.Add(ctx, "counter", 5) // while another request of the same client waits
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	n, err = a.Add(ctx, "counter", -2)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	require.NoError(t, a.Set(ctx, "late", []byte("value")))
	require.Equal(t, "value<nil>", <-got)
	require.NoError(t, a.Delete(ctx, "late"))

	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = a.Get(short, "late")
	require.ErrorContains(t, err, `rendezvous: get late: no value for "late" within`)
	stopped, stop := context.WithCancelCause(ctx)
	stop(errors.New("interrupted"))
	_, err = a.Get(stopped, "late")
	require.EqualError(t, err, "rendezvous: get late: interrupted")

	waits := make(chan error)
	go func() {
		_, err := b.Get(ctx, "never")
		waits <- err
	}()
	require.NoError(t, server.Close())
	require.Error(t, <-waits)
	_ = a.Close()
	_ = b.Close()
	_, err = a.Add(ctx, "counter", 1)
	require.ErrorContains(t, err, "the store is gone")
}

func TestTokens(t *testing.T) {
	a, b := rendezvous.NewToken(), rendezvous.NewToken()
	require.NotEqual(t, a, b)
	require.Len(t, a, 64)
	_, err := rendezvous.Serve("127.0.0.1:0", []byte("short"), rendezvous.TLS{})
	require.EqualError(t, err, "rendezvous: the job token can be guessed: it has 5 bytes: want at least 24 random "+
		"ones: make one with `openssl rand -hex 32`")
}

// Tokens that people chose are refused when they are short or regular, wherever they come from; what programs make is
// not.
func TestWeakTokensAreRefused(t *testing.T) {
	for _, weak := range []string{
		"", "secret", "0123456789abcdef", strings.Repeat("a", 64), strings.Repeat("password", 8),
		"0123456789abcdef0123456789abcdef",
		"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", "11111111111111111111111111111112",
		"password123456789012345678", "PASSWORD123456789012345678", "correcthorsebatterystaple",
		"mysecretpassword12345678", "letmein-letmein-letmein-1", "qwertyuiopasdfghjklzxcvbnm",
		"hello world hello world 1", "changeme2345678901234567890", "1q2w3e4r1q2w3e4r1q2w3e4r!!",
		strings.Repeat("0123456789", 10) + "password",
	} {
		require.ErrorIs(t, rendezvous.CheckToken([]byte(weak)), rendezvous.ErrWeakToken, weak)
		_, err := rendezvous.Serve("127.0.0.1:0", []byte(weak), rendezvous.TLS{})
		require.ErrorIs(t, err, rendezvous.ErrWeakToken, weak)
		_, err = rendezvous.Dial(t.Context(), "127.0.0.1:1", []byte(weak), 0, rendezvous.TLS{})
		require.ErrorIs(t, err, rendezvous.ErrWeakToken, weak)
		_, errs := join(configs(2, "127.0.0.1:1", []byte(weak))[1])
		require.ErrorContains(t, errs[0], "token", weak)
	}
	for _, fair := range []string{"a token with a line's end", "a token that the launcher was given",
		"the kettle sings whenever rain is near", "v8#kQ2p!zT6mW1cR9xL4bN7d"} {
		require.NoError(t, rendezvous.CheckToken([]byte(fair)), fair)
	}
	for range 1000 {
		text := rendezvous.NewToken()
		for _, n := range []int{rendezvous.MinToken, 32, 64} { // openssl rand -hex 12, 16, 32
			require.NoError(t, rendezvous.CheckToken(text[:n]), "%s", text[:n])
		}
	}
}

func TestFromEnv(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("a token with a line's end\n"), 0o600))
	for _, v := range []string{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", env.VarJobToken,
		env.VarJobTokenFile, rendezvous.EnvStore, rendezvous.EnvSilence} {
		t.Setenv(v, "")
	}
	_, err := rendezvous.FromEnv()
	require.EqualError(t, err, "rendezvous: no launcher's variables are set: want RANK, WORLD_SIZE, MASTER_ADDR and "+
		"MASTER_PORT")
	t.Setenv("RANK", "3")
	t.Setenv("WORLD_SIZE", "3")
	t.Setenv("MASTER_ADDR", "127.0.0.1")
	t.Setenv("MASTER_PORT", "70000")
	_, err = rendezvous.FromEnv()
	require.ErrorContains(t, err, "rendezvous: environment of torchrun: MASTER_PORT is 70000")
	t.Setenv("MASTER_PORT", "29500")
	_, err = rendezvous.FromEnv()
	require.ErrorContains(t, err, "rank 3 (RANK) is outside of 0..2: world size 3 (WORLD_SIZE)")
	t.Setenv("RANK", "2")
	_, err = rendezvous.FromEnv()
	require.ErrorIs(t, err, env.ErrNoToken)
	t.Setenv(env.VarJobTokenFile, file)
	t.Setenv(rendezvous.EnvSilence, "30")
	_, err = rendezvous.FromEnv()
	require.EqualError(t, err, `rendezvous: LOCKSTEP_SILENCE="30": want a duration of at least a second, such as 30s`)
	t.Setenv(rendezvous.EnvSilence, "30s")
	t.Setenv(rendezvous.EnvStore, "external")
	c, err := rendezvous.FromEnv()
	require.NoError(t, err)
	require.Equal(t, rendezvous.Config{Rank: 2, World: 3, Address: "127.0.0.1:29500",
		Token: []byte("a token with a line's end"), External: true, Silence: 30 * time.Second}, c)
}

// A rank that leaves because another one failed says so: who has not noticed yet must not take it for the first.
func TestLeavingAfterAFailureNamesIt(t *testing.T) {
	jobs, errs := join(configs(3, address(t), commtest.Token)...)
	require.Equal(t, make([]error, 3), errs)
	listen := func(j *rendezvous.Job, members []int) (m *rendezvous.Membership, failed chan error) {
		failed = make(chan error, 4)
		return j.Register("group", members, rendezvous.Listener{Fail: func(err error) {
			failed <- err
		}, Gone: func(r int, _ *comm.RankLostError) { failed <- fmt.Errorf("rank %d has left", r) }}), failed
	}
	leaving, middle := listen(jobs[1], []int{0, 1, 2})
	_, last := listen(jobs[2], []int{2, 1}) // hears of the middle one alone
	aborting, _ := listen(jobs[0], []int{0, 1})
	aborting.Abort(errors.New("out of memory"))
	const first = `comm: group "": rank 0 aborted: out of memory`
	require.EqualError(t, <-middle, first)
	leaving.Leave()
	require.EqualError(t, <-last, first)
	require.EqualError(t, <-last, "rank 1 has left")
	closeAll(t, jobs)
}

// A process may end without a word as soon as its rank has closed a group: the others' last call may still be on its
// way. A group that it has not closed first hears that it is gone, for calls that have all that they need of it.
func TestEndOfAProcessAfterItLeft(t *testing.T) {
	jobs, errs := join(configs(2, address(t), commtest.Token)...)
	require.Equal(t, make([]error, 2), errs)
	told, other := map[string]chan string{}, map[string]*rendezvous.Membership{}
	for _, group := range []string{"closed", "open"} {
		heard := make(chan string, 8)
		told[group] = heard
		jobs[0].Register(group, []int{0, 1}, rendezvous.Listener{
			Fail: func(err error) { heard <- "failed: " + err.Error() },
			Gone: func(_ int, why *comm.RankLostError) { heard <- "gone: " + why.Cause },
		})
		other[group] = jobs[1].Register(group, []int{0, 1},
			rendezvous.Listener{Fail: func(error) {}, Gone: func(int, *comm.RankLostError) {}})
	}
	other["closed"].Leave()
	jobs[1].Die()
	const ended = "its process ended or its host is out of reach"
	require.Equal(t, "gone: it closed the group", <-told["closed"])
	require.Equal(t, "gone: "+ended, <-told["closed"])
	require.Equal(t, "gone: "+ended, <-told["open"])
	require.Contains(t, <-told["open"], "failed: ")
	time.Sleep(20 * time.Millisecond) // what would be told of the other group would be told by now
	require.Empty(t, told["closed"])
	closeAll(t, jobs)
}

// A rank that is started again may come while the job as it was still holds its port: it waits for the store of the new
// one. One that was not is told at once.
func TestStartedAgainTooSoon(t *testing.T) {
	where := address(t)
	before, errs := join(configs(2, where, commtest.Token)...)
	require.Equal(t, make([]error, 2), errs)
	again := configs(2, where, commtest.Token)
	_, errs = join(again[1])
	require.EqualError(t, errs[0], "rendezvous: the job at "+where+
		" already has a rank 1 and has started: rendezvous: exchange peers: the ranks have already met")
	again[0].Restarted, again[1].Restarted = true, true
	var after [2]*rendezvous.Job
	late, done := make(chan error, 1), make(chan error, 1)
	go func() {
		var err error
		after[1], err = rendezvous.Join(t.Context(), again[1])
		late <- err
	}()
	select {
	case err := <-late:
		require.NoError(t, err)
		require.Fail(t, "it has met the job as it was")
	case <-time.After(200 * time.Millisecond):
	}
	closeAll(t, before)
	go func() {
		var err error
		after[0], err = rendezvous.Join(t.Context(), again[0])
		done <- err
	}()
	require.NoError(t, <-late)
	require.NoError(t, <-done)
	closeAll(t, after[:])
}

// Notices for a group that a rank has not made yet wait for it.
func TestEarlyNotices(t *testing.T) {
	jobs, errs := join(configs(2, address(t), commtest.Token)...)
	require.Equal(t, make([]error, 2), errs)
	early := jobs[0].Register("late group", []int{1, 0},
		rendezvous.Listener{Fail: func(error) {}, Gone: func(int, *comm.RankLostError) {}})
	early.Abort(errors.New("too early"))
	failed := make(chan error, 1)
	jobs[1].Register("late group", []int{1, 0},
		rendezvous.Listener{Fail: func(err error) { failed <- err }, Gone: func(int, *comm.RankLostError) {}})
	require.EqualError(t, <-failed, `comm: group "": rank 0 (1 in the group) aborted: too early`)
	closeAll(t, jobs)
}
