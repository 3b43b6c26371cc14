// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/internal/wire"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

const placeKey = "/lockstep/run/rank0"

// meeting are the configurations of n ranks that know nothing but where rank 0 announces itself.
func meeting(n int, each func() rendezvous.Meeting) []rendezvous.Config {
	list := configs(n, "127.0.0.1:0", nil)
	for r := range list {
		list[r].Meeting = each()
		if r > 0 {
			list[r].Address = "" // nobody needs it
		}
	}
	return list
}

func torchMeeting(s *commtest.TorchStore) func() rendezvous.Meeting {
	return func() rendezvous.Meeting { return rendezvous.TorchStore(s.Addr(), "run") }
}

// dead is the place of a rank 0 that was killed: nobody listens there.
func dead(t *testing.T) []byte {
	t.Helper()
	text, err := json.Marshal(rendezvous.Place{Address: address(t), Token: rendezvous.NewToken()})
	require.NoError(t, err)
	return text
}

// Ranks meet through torchrun's store, whose agent holds the port that they were told; a second attempt of the same
// launch is not misled by what the first one left, and knows that it is the second.
func TestMeetThroughTorchrunsStore(t *testing.T) {
	store := commtest.NewTorchStore(t)
	var launches []string
	for attempt := range 2 {
		jobs, errs := join(meeting(3, torchMeeting(store))...)
		require.Equal(t, make([]error, 3), errs)
		for _, j := range jobs {
			require.Equal(t, attempt > 0, j.Place.Restarted)
			require.Equal(t, jobs[0].Token, j.Token)
			require.Equal(t, jobs[0].Place, j.Place)
			launches = append(launches, j.Place.Launch)
		}
		require.Nil(t, store.Value(placeKey), "the token must not stay there")
		closeAll(t, jobs)
		store.Set(placeKey, dead(t))
	}
	for _, l := range launches {
		require.NotEmpty(t, l)
		require.Equal(t, launches[0], l)
	}
}

// The dead place may be found first, when rank 0 comes last.
func TestLateRank0(t *testing.T) {
	store := commtest.NewTorchStore(t)
	store.Set(placeKey, dead(t))
	list := meeting(2, torchMeeting(store))
	done := make(chan struct{})
	var others []*rendezvous.Job
	var errs []error
	go func() {
		others, errs = join(list[1])
		close(done)
	}()
	// rank 1 has looked twice
	require.Eventually(t, func() bool { return store.Served() >= 6 }, 5*time.Second, time.Millisecond)
	first, err := join(list[0])
	require.NoError(t, err[0])
	<-done
	require.NoError(t, errs[0])
	closeAll(t, append(first, others...))
}

// A rank that was started again before the last attempt's rank 0 has ended leaves that one alone, and takes the new
// one's token as well as its address.
func TestMeetingBeforeTheLastAttemptEnded(t *testing.T) {
	store := commtest.NewTorchStore(t)
	old, errs := join(meeting(3, torchMeeting(store))...)
	require.Equal(t, make([]error, 3), errs)
	text, err := json.Marshal(old[0].Place)
	require.NoError(t, err)
	store.Set(placeKey, text)
	before := store.Served()
	list := meeting(3, torchMeeting(store))
	for r := range list {
		list[r].Restarted = true
	}
	done := make(chan struct{})
	var early []*rendezvous.Job
	go func() {
		early, errs = join(list[1])
		close(done)
	}()
	require.Eventually(t, func() bool { return store.Served() >= before+6 }, 5*time.Second, time.Millisecond)
	closeAll(t, old)
	others, err0 := join(list[0], list[2]) // rank 2 connects to rank 1, which listened before it knew the token
	require.Equal(t, make([]error, 2), err0)
	<-done
	require.NoError(t, errs[0])
	require.NotEqual(t, old[0].Token, others[0].Token)
	require.Equal(t, others[0].Token, early[0].Token)
	require.True(t, early[0].Peers[0].Restarted)
	closeAll(t, append(early, others...))
}

// A token that all ranks were given is not told to the store; one that differs is an error at once.
func TestMeetingWithToken(t *testing.T) {
	store := commtest.NewTorchStore(t)
	list := meeting(2, torchMeeting(store))
	for r := range list {
		list[r].Token = commtest.Token
	}
	jobs, errs := join(list...)
	require.Equal(t, make([]error, 2), errs)
	for _, j := range jobs {
		require.Empty(t, j.Place.Token)
		require.Equal(t, commtest.Token, j.Token)
	}
	closeAll(t, jobs)

	for name, row := range map[string]struct {
		zero, one []byte
		want      string
	}{
		"rank 1 has none":    {commtest.Token, nil, "rank 0 was given a job token in LOCKSTEP_JOB_TOKEN or"},
		"rank 0 has none":    {nil, commtest.Token, wire.ErrToken.Error()},
		"rank 1 has another": {commtest.Token, rendezvous.NewToken(), wire.ErrToken.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			list := meeting(2, torchMeeting(commtest.NewTorchStore(t)))
			list[0].Token, list[1].Token = row.zero, row.one
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := rendezvous.Join(ctx, list[0])
				done <- err
			}()
			_, err := rendezvous.Join(t.Context(), list[1])
			require.ErrorContains(t, err, "rendezvous: rank 1: ")
			require.ErrorContains(t, err, row.want)
			cancel()
			require.Error(t, <-done)
		})
	}
}

// What is found must be a place.
func TestStrangeAnnouncement(t *testing.T) {
	for text, want := range map[string]string{
		"not JSON": "no place: invalid character",
		`{"address":"` + strings.Repeat("a", 5000) + `"}`: "an address of 5014 bytes: want at most 4096",
	} {
		store := commtest.NewTorchStore(t)
		store.Set(placeKey, []byte(text))
		_, errs := join(meeting(2, torchMeeting(store))[1])
		require.ErrorContains(t, errs[0], want)
		require.ErrorContains(t, errs[0], "rank 1 looks for rank 0 by torchrun's store at "+store.Addr())
	}
}

// Without rank 0 the others say what they waited for.
func TestNobodyAnnouncesItself(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for want, m := range map[string]rendezvous.Meeting{
		"rank 0 did not announce itself": rendezvous.TorchStore(commtest.NewTorchStore(t).Addr(), "run"),
		"rank 0 did not write it":        rendezvous.MeetingFile("job"),
	} {
		list := meeting(2, func() rendezvous.Meeting { return m })
		list[1].Timeout = 100 * time.Millisecond
		_, errs := join(list[1])
		require.ErrorContains(t, errs[0], want)
		require.ErrorIs(t, errs[0], context.DeadlineExceeded)
	}
}

// path is the file of a meeting.
func path(m rendezvous.Meeting) string {
	if s := m.String(); len(s) > 9 && s[:9] == "the file " {
		return s[9:]
	}
	return "."
}

// Ranks of one host meet by a file that nobody else can read, and leave none behind.
func TestMeetByFile(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	file := path(rendezvous.MeetingFile("job"))
	require.NotEqual(t, file, path(rendezvous.MeetingFile("another job")))
	for range 2 {
		jobs, errs := join(meeting(3, func() rendezvous.Meeting { return rendezvous.MeetingFile("job") })...)
		require.Equal(t, make([]error, 3), errs)
		require.NoFileExists(t, file)
		closeAll(t, jobs)
		require.NoError(t, os.WriteFile(file, dead(t), 0o600)) // as a killed rank 0 leaves it
	}
}

func TestMeetingFileIsPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("each user has a temporary folder")
	}
	t.Setenv("TMPDIR", t.TempDir())
	m := rendezvous.MeetingFile("job")
	dir := filepath.Dir(path(m))
	require.NoError(t, m.Announce(t.Context(), &rendezvous.Place{Address: "here:1"}))
	info, err := os.Stat(path(m))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	p, err := m.Look(t.Context())
	require.NoError(t, err)
	require.Equal(t, "here:1", p.Address)

	require.NoError(t, os.Chmod(dir, 0o755))
	want := dir + " is not a folder of this user with mode 0700: remove it, or set TMPDIR"
	require.ErrorContains(t, m.Announce(t.Context(), &p), want)
	_, err = m.Look(t.Context())
	require.ErrorContains(t, err, want)

	require.NoError(t, os.RemoveAll(dir))
	elsewhere := t.TempDir()
	require.NoError(t, os.Chmod(elsewhere, 0o700))
	require.NoError(t, os.Symlink(elsewhere, dir)) // another user's, perhaps
	require.ErrorContains(t, m.Announce(t.Context(), &p), want)
}

// A rank 0 that gives up takes its place back; another one's it leaves.
func TestWithdraw(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	store := commtest.NewTorchStore(t)
	for _, m := range []rendezvous.Meeting{rendezvous.TorchStore(store.Addr(), "run"), rendezvous.MeetingFile("job")} {
		list := meeting(2, func() rendezvous.Meeting { return m })
		list[0].Timeout = 100 * time.Millisecond
		_, errs := join(list[0])
		require.ErrorContains(t, errs[0], "rank 1 did not come")
	}
	require.Nil(t, store.Value(placeKey))
	mine, other := rendezvous.MeetingFile("job"), rendezvous.MeetingFile("job")
	require.NoFileExists(t, path(mine))
	require.NoError(t, mine.Announce(t.Context(), &rendezvous.Place{Address: "mine:1"}))
	require.NoError(t, other.Announce(t.Context(), &rendezvous.Place{Address: "other:1"}))
	require.NoError(t, mine.Withdraw(t.Context()))
	require.FileExists(t, path(other))
}
