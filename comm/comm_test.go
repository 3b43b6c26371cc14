// SPDX-License-Identifier: Apache-2.0

package comm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func TestErrorsTravel(t *testing.T) {
	for _, err := range []error{
		&comm.MismatchError{Group: "world", A: comm.Side{Rank: 0, Call: "barrier #1"},
			B: comm.Side{Rank: 3, GroupRank: 1, Call: "all-reduce #1"}},
		&comm.RankLostError{Group: "world", Rank: 2, GroupRank: 1, Host: "node7", PID: 123, Cause: "its process ended",
			Call: "barrier #4", Caller: "rank 3"},
		&comm.TimeoutError{Group: "world/dp", Reporter: 1, Op: comm.AllReduce, Seq: 5, Label: "bucket 0",
			Call: "all-reduce #5", After: time.Second, Missing: []int{2, 3}, GroupMissing: []int{0, 1}},
		&comm.AbortError{Group: "world", Rank: 1, GroupRank: 1, Message: "out of memory"},
	} {
		got := comm.DecodeError(comm.EncodeError(err, 1, 1), 1, 1)
		require.Equal(t, err, got)
		require.Equal(t, err.Error(), got.Error())
	}
	// A call in which a rank was missed is that of the rank which tells of it.
	lost := &comm.RankLostError{Group: "world", Rank: 1, GroupRank: 1, Cause: "its process ended", Call: "barrier #4"}
	require.EqualError(t, comm.DecodeError(comm.EncodeError(lost, 4, 2), 4, 2), `comm: group "world": rank 1 is lost: `+
		`its process ended (reported by rank 4 (2 in the group) during its barrier #4)`)
	require.Empty(t, lost.Caller)
	require.Equal(t, &comm.AbortError{Rank: 4, GroupRank: 2, Message: "plain"},
		comm.DecodeError(comm.EncodeError(errors.New("plain"), 4, 2), 5, 3))
	require.ErrorContains(t, comm.DecodeError([]byte("no json"), 4, 2),
		"rank 4 (2 in the group) aborted: an unreadable error")
	require.Equal(t, &comm.AbortError{Rank: 4, GroupRank: 2, Message: "no reason given"},
		comm.DecodeError([]byte("{}"), 4, 2))
}

func TestErrorTexts(t *testing.T) {
	require.EqualError(t, &comm.RankLostError{Group: "world", Rank: 2, GroupRank: 2, Host: "node7", PID: 123,
		Cause: "its process ended", Call: "barrier #4"},
		`comm: group "world": rank 2 (process 123 on node7) is lost: its process ended (during barrier #4)`)
	require.EqualError(t, &comm.TimeoutError{Group: "world", Reporter: 1,
		Call: `all-reduce #5 "bucket 0" (sum of float32 × 10)`, After: time.Second, Missing: []int{2, 3},
		GroupMissing: []int{2, 3}},
		`comm: group "world": all-reduce #5 "bucket 0" (sum of float32 × 10) timed out after 1s on rank 1: ranks 2, 3 did not arrive`)
	require.EqualError(t, &comm.TimeoutError{Group: "world/shards", Reporter: 6, Call: `barrier #5`, After: time.Second,
		Missing: []int{4, 7}, GroupMissing: []int{0, 3}},
		`comm: group "world/shards": barrier #5 timed out after 1s on rank 6: ranks 4, 7 (0, 3 in the group) did not `+
			`arrive`)
}

func signature(label string) comm.Signature {
	return comm.Signature{Seq: 7, Op: comm.ReduceScatter, Reduce: comm.Max, DType: dtype.BFloat16, Count: 1 << 40,
		Root: 0, Fast: true, Layout: 9, Label: label}
}

func TestSignatureTravels(t *testing.T) {
	var b [comm.SignatureBytes]byte
	s := signature("bucket 3")
	s.Encode(b[:])
	got, err := comm.DecodeSignature(b[:])
	require.NoError(t, err)
	require.Equal(t, s, got)
	require.Equal(t, `reduce-scatter #7 "bucket 3" (max of bfloat16 × 1099511627776, layout 00000009, fast order)`,
		got.String())
	long := signature(strings.Repeat("x", 500))
	long.Encode(b[:])
	got, err = comm.DecodeSignature(b[:])
	require.NoError(t, err)
	require.Len(t, got.Label, comm.MaxLabel)
	_, err = comm.DecodeSignature(make([]byte, comm.SignatureBytes))
	require.ErrorContains(t, err, "not a signature")
}

func FuzzDecodeSignature(f *testing.F) {
	var b [comm.SignatureBytes]byte
	s := signature("bucket")
	s.Encode(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := comm.DecodeSignature(raw)
		if err != nil {
			return
		}
		again := make([]byte, comm.SignatureBytes)
		got.Encode(again)
		back, err := comm.DecodeSignature(again)
		require.NoError(t, err)
		require.Equal(t, got, back)
	})
}

// FuzzDecodeError: what another rank says of its failure is an error that can be shown, whatever it is.
func FuzzDecodeError(f *testing.F) {
	f.Add(comm.EncodeError(errors.New("out of memory"), 2, 2))
	f.Add(comm.EncodeError(&comm.RankLostError{Group: "g", Rank: 1, Host: "h", PID: 3, Cause: "c", Call: "barrier"},
		1, 1))
	f.Add(comm.EncodeError(&comm.TimeoutError{Group: "g", Missing: []int{1, 2}, After: time.Second}, 1, 1))
	f.Add(comm.EncodeError(&comm.MismatchError{Group: "g"}, 1, 1))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := comm.DecodeError(b, 1, 1)
		require.Error(t, err)
		require.NotEmpty(t, err.Error())
		require.Error(t, comm.DecodeError(comm.EncodeError(err, 1, 1), 1, 1))
	})
}

// FuzzCompare: signatures that are no such are a mismatch that can be shown.
func FuzzCompare(f *testing.F) {
	var b [comm.SignatureBytes]byte
	s := signature("bucket")
	s.Encode(b[:])
	f.Add(b[:], make([]byte, comm.SignatureBytes))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		err := comm.Compare(&comm.Call{}, [][]byte{a, b, nil})
		require.Equal(t, a == nil || b == nil || bytes.Equal(a, b), err == nil)
		if err != nil {
			require.NotEmpty(t, err.Error())
		}
	})
}

// Labels longer than what travels are still compared whole.
func TestLongLabelsDiffer(t *testing.T) {
	groups := local.New(2, comm.Options{Timeout: time.Minute})
	long := strings.Repeat("x", 300)
	a, b := groups[0].Barrier(comm.Label(long+"a")), groups[1].Barrier(comm.Label(long+"b"))
	var mismatch *comm.MismatchError
	require.ErrorAs(t, a.Wait(t.Context()), &mismatch)
	require.ErrorAs(t, b.Wait(t.Context()), &mismatch)
	for _, g := range groups {
		require.NoError(t, g.Close())
	}
}

func TestBuffers(t *testing.T) {
	b := comm.Of([]dtype.BF16{1, 2, 3})
	require.Equal(t, dtype.BFloat16, b.DType())
	require.Equal(t, 3, b.Len())
	require.Equal(t, 0, comm.Of[float64](nil).Len())
	require.Equal(t, 2, comm.Bytes(make([]byte, 16), dtype.Float64).Len())
	m := comm.NewMemory(comm.Aligned(64), nil)
	v := comm.View[int32](m)
	require.Len(t, v, 16)
	v[1] = 5
	require.Equal(t, byte(5), m.Bytes[4])
	require.NoError(t, m.Free())
	require.NoError(t, m.Free())
}

// A wait that is given up leaves the call on its way.
func TestWaitEndsWithItsContext(t *testing.T) {
	groups := local.New(2, comm.Options{Timeout: time.Minute})
	h := groups[0].Barrier()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, h.Wait(ctx), context.Canceled)
	require.NoError(t, comm.WaitAll(t.Context(), nil, groups[1].Barrier(), h))
	for _, g := range groups {
		require.NoError(t, g.Close())
	}
}

// losing is an engine that loses a rank as soon as a call runs.
type losing struct {
	comm.Engine
	failed  func(error)
	aborted chan error
}

func (l *losing) Rank() int               { return 0 }
func (l *losing) Size() int               { return 2 }
func (l *losing) OnFailure(f func(error)) { l.failed = f }
func (l *losing) Abort(err error)         { l.aborted <- err }
func (l *losing) Close() error            { return nil }
func (l *losing) Run(*comm.Call) error {
	lost := &comm.RankLostError{Rank: 1, GroupRank: 1, Cause: "its process ended"}
	l.failed(lost) // from the connection that ended
	return lost
}

// A lost rank is named together with the call that it was missed in, by the name that the group has.
func TestLostRankNamesTheCall(t *testing.T) {
	g := comm.New(&losing{aborted: make(chan error, 1)}, comm.Options{})
	err := g.AllReduce(comm.Of([]float32{1}), comm.Sum, comm.Label("bucket 3")).Wait(context.Background())
	require.EqualError(t, err,
		`comm: group "world": rank 1 is lost: its process ended (during all-reduce #1 "bucket 3" (sum of float32 × 1))`)
	require.Equal(t, err, g.Err())
	require.NoError(t, g.Close())
}

// lingering is an engine whose calls end before Abort returns, as those of sockets do.
type lingering struct {
	losing
	released chan struct{}
}

func (l *lingering) Describe() comm.Info { return comm.Info{} }

func (l *lingering) Abort(error) {
	close(l.released)
	time.Sleep(100 * time.Millisecond) // the program has time to see the error, and to end
}

func (l *lingering) Run(*comm.Call) error {
	go l.failed(&comm.RankLostError{Rank: 1, GroupRank: 1, Cause: "its process ended"})
	<-l.released
	return errors.New("the connection was closed")
}

// A program may end as soon as it is told of a failure: the flight record is written then, with the call that failed.
func TestFlightRecordIsThereWhenTheCallFails(t *testing.T) {
	dir := t.TempDir()
	g := comm.New(&lingering{released: make(chan struct{})}, comm.Options{FlightDir: dir})
	err := g.AllReduce(comm.Of([]float32{1}), comm.Sum, comm.Label("bucket 3")).Wait(t.Context())
	require.ErrorContains(t, err, "rank 1 is lost")
	text, err := os.ReadFile(filepath.Join(dir, "flight_world_rank0.json"))
	require.NoError(t, err)
	require.Contains(t, string(text), "bucket 3")
	require.NoError(t, g.Close())
}

// ending is an engine whose other rank ends its process when the last call has all that it needs.
type ending struct{ losing }

func (e *ending) Describe() comm.Info { return comm.Info{} }

func (e *ending) Run(c *comm.Call) error {
	_ = e.losing.Run(c)
	return nil
}

// A rank that ends after the last call leaves no flight record on a rank that has yet to notice the call's end.
func TestRankThatEndsAfterTheLastCallLeavesNoRecord(t *testing.T) {
	dir := t.TempDir()
	g := comm.New(&ending{losing{aborted: make(chan error, 1)}}, comm.Options{FlightDir: dir})
	require.NoError(t, g.Barrier().Wait(t.Context()))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
	require.ErrorContains(t, g.Barrier().Wait(t.Context()), "rank 1 is lost")
	files, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1, "of the call that misses the rank")
	require.NoError(t, g.Close())
}

// A rank that aborts before a call has ended, or while the job is set up, leaves no flight records; later it does.
func TestAbortAtTheStartLeavesNoRecord(t *testing.T) {
	for _, c := range []struct {
		name            string
		calls, starting bool
		records         bool
	}{
		{"before the first call", false, false, false}, {"while the job is set up", true, true, false},
		{"later", true, false, true},
	} {
		dir := t.TempDir()
		err := local.Run(2, comm.Options{FlightDir: dir}, func(g *comm.Group) error {
			g.Starting(c.starting)
			if c.calls {
				require.NoError(t, g.Barrier().Wait(t.Context()))
			}
			if g.Rank() == 0 {
				g.Abort(errors.New("no checkpoint in out"))
			}
			require.ErrorContains(t, g.Barrier().Wait(t.Context()), "no checkpoint in out")
			return nil
		})
		require.NoError(t, err)
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Equal(t, c.records, len(files) > 0, c.name)
	}
}

// Diagnose names who called something else, and who left no record.
func TestDiagnose(t *testing.T) {
	dir := t.TempDir()
	groups := local.New(4, comm.Options{Timeout: time.Minute, FlightDir: dir})
	var handles []*comm.Handle
	for r, g := range groups {
		label := "bucket 1"
		if r == 2 {
			label = "bucket 2"
		}
		handles = append(handles, g.AllReduce(comm.Of(make([]float32, 4)), comm.Sum, comm.Label(label)))
	}
	require.Error(t, comm.WaitAll(t.Context(), handles...))
	for _, g := range groups {
		<-g.Dead()
		require.NoError(t, g.Close())
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "flight_world_rank3.json")))
	report, err := comm.Diagnose(dir)
	require.NoError(t, err)
	require.Len(t, report.Findings, 1)
	f := report.Findings[0]
	require.Equal(t, "mismatch", f.Kind)
	require.Equal(t, []int{2}, f.Culprits)
	require.Equal(t, []int{3}, f.Absent)
	require.Equal(t,
		`group "world": the ranks disagree: ranks 0, 1 called all-reduce #1 "bucket 1" (sum of float32 × 4), rank 2 called `+
			`all-reduce #1 "bucket 2" (sum of float32 × 4); there is no record of rank 3`, f.String())
}

// Records of running ranks are of different times: what one rank finished, all came to.
func TestDiagnoseOfRunningRanks(t *testing.T) {
	now := time.Now()
	write := func(dir string, rank int, age time.Duration, states ...comm.CallState) {
		r := comm.FlightRecord{Version: 2, Group: "world", Rank: rank, GroupRank: rank, Size: 2, Time: now.Add(-age)}
		for i, s := range states {
			r.Entries = append(r.Entries, comm.FlightEntry{DTypeName: "float32", State: s,
				StartedAt: r.Time.Add(-2 * time.Second),
				Signature: comm.Signature{Op: comm.Barrier, Seq: uint64(i + 1)}})
		}
		text, err := json.Marshal(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("flight_world_rank%d.json", rank)), text, 0o600))
	}
	for _, c := range []struct {
		zero, one []comm.CallState
		kind      string
		text      string
	}{
		{[]comm.CallState{comm.Finished, comm.Started}, []comm.CallState{comm.Finished}, comm.FindingMissing,
			"rank 1 did not come to barrier #2; rank 0 waited 2s"},
		{[]comm.CallState{comm.Finished, comm.Started}, []comm.CallState{comm.Started}, comm.FindingMissing,
			"rank 1 did not come to barrier #2; rank 0 waited 2s"},
		{[]comm.CallState{comm.Finished, comm.Finished}, []comm.CallState{comm.Started}, comm.FindingNone,
			"all recorded calls are finished"},
		{[]comm.CallState{comm.Finished, comm.Started}, []comm.CallState{comm.Finished, comm.Started}, comm.FindingNone,
			"all ranks are in barrier #2, since 2s"},
	} {
		dir := t.TempDir()
		write(dir, 0, 0, c.zero...)
		write(dir, 1, time.Minute, c.one...)
		report, err := comm.Diagnose(dir)
		require.NoError(t, err)
		require.Len(t, report.Findings, 1)
		require.Equal(t, c.kind, report.Findings[0].Kind)
		require.Equal(t, `group "world": `+c.text, report.Findings[0].Text)
	}
}

func TestDiagnoseRefusesWhatIsNoRecord(t *testing.T) {
	dir := t.TempDir()
	_, err := comm.Diagnose(dir)
	require.ErrorContains(t, err, "no flight_*.json in")
	name := filepath.Join(dir, "flight_world_rank0.json")
	for _, c := range [][2]string{
		{"{", "unexpected end of JSON"},
		{`{"version": 1, "rank": 0, "size": 1}`, "version 1, rank 0 of 1: want version 2"},
		{`{"version": 2, "rank": 3, "size": 1}`, "rank 3 of the job is rank 0 of a group of 1 with 0 members"},
		{`{"version": 2, "rank": 3, "size": 1, "members": [3, 4]}`, "a group of 1 with 2 members"},
		{`{"version": 2, "rank": 0, "size": 1, "entries": [{"op": "conquer"}]}`, `unknown operation "conquer"`},
		{`{"version": 2, "rank": 0, "size": 1, "entries": [{"op": "send", "reduce": "sum", "dtype": "int3"}]}`,
			`unknown dtype "int3"`},
	} {
		require.NoError(t, os.WriteFile(name, []byte(c[0]), 0o600))
		_, err := comm.Diagnose(dir)
		require.ErrorContains(t, err, c[1])
	}
	good, err := json.Marshal(comm.FlightRecord{Version: 2, Group: "world", Size: 1})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, good, 0o600))
	report, err := comm.Diagnose(dir)
	require.NoError(t, err)
	require.Equal(t, `group "world": all recorded calls are finished`, report.Findings[0].String())
}
