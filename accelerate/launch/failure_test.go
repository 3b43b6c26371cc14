// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/env"
)

func TestRootCause(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	for _, row := range []struct {
		name string
		all  []Failure
		want int // rank
	}{
		{"the earliest", []Failure{{Rank: 0, BySelf: true, ExitCode: 1, at: at(2)},
			{Rank: 1, BySelf: true, ExitCode: 1, at: at(1)}}, 1},
		{"at once, the lowest", []Failure{{Rank: 4, BySelf: true, ExitCode: 1}, {Rank: 3, BySelf: true, ExitCode: 1}},
			3},
		{"not who was ended", []Failure{{Rank: 0, Signal: syscall.SIGTERM, at: at(1)},
			{Rank: 1, BySelf: true, ExitCode: 1, at: at(2)}}, 1},
		{"a signal gives no warning", []Failure{{Rank: 0, BySelf: true, ExitCode: 1, at: at(1)},
			{Rank: 1, BySelf: true, Signal: syscall.SIGKILL, at: at(2)}}, 1},
		{"who is blamed", []Failure{{Rank: 0, BySelf: true, ExitCode: 1, at: at(1), blames: []int{2}},
			{Rank: 2, BySelf: true, ExitCode: 1, at: at(3)}}, 2},
		{"who is blamed, before a signal",
			[]Failure{{Rank: 0, BySelf: true, Signal: syscall.SIGABRT, at: at(1), blames: []int{2}},
				{Rank: 2, BySelf: true, ExitCode: 1, at: at(3)}}, 2},
		{"blame for one that lives or is elsewhere",
			[]Failure{{Rank: 0, BySelf: true, ExitCode: 1, at: at(1), blames: []int{9}},
				{Rank: 2, BySelf: true, ExitCode: 1, at: at(3)}}, 0},
		{"who is blamed and would not end", []Failure{{Rank: 0, BySelf: true, ExitCode: 1, at: at(1), blames: []int{2}},
			{Rank: 2, Signal: syscall.SIGKILL, at: at(3)}}, 2},
		{"who stood still, though the deadlines blame a rank that waited for it",
			[]Failure{{Rank: 0, BySelf: true, ExitCode: 1, at: at(2), blames: []int{2}},
				{Rank: 2, BySelf: true, ExitCode: 1, at: at(1), blames: []int{2}},
				{Rank: 3, Stopped: true, Signal: syscall.SIGKILL, at: at(3)}}, 3},
		{"who stood still beside a failure of another kind",
			[]Failure{{Rank: 0, BySelf: true, ExitCode: 1, at: at(1)},
				{Rank: 3, Stopped: true, Signal: syscall.SIGKILL, at: at(3)}}, 0},
		{"blame by one that was ended itself",
			[]Failure{{Rank: 0, BySelf: true, ExitCode: 1, at: at(1)},
				{Rank: 1, Signal: syscall.SIGTERM, blames: []int{2}}, {Rank: 2, Signal: syscall.SIGKILL, at: at(3)}},
			0},
		{"blame for itself", []Failure{{Rank: 0, BySelf: true, ExitCode: 1, at: at(1), blames: []int{0}},
			{Rank: 2, BySelf: true, ExitCode: 1, at: at(3)}}, 0},
	} {
		markBlamed(row.all)
		require.Equal(t, row.want, row.all[rootCause(row.all)].Rank, row.name)
	}
}

func TestExitCode(t *testing.T) {
	for _, row := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{&FailureError{Root: Failure{ExitCode: 7}}, 7},
		{&FailureError{Root: Failure{ExitCode: Unknown}}, 1},
		{fmt.Errorf("x: %w", &FailureError{Root: Failure{ExitCode: Unknown, Signal: syscall.SIGKILL}}), 137},
		{&InterruptedError{Signal: syscall.SIGINT}, 130},
		{errors.Join(&FailureError{Root: Failure{ExitCode: 7}}, &InterruptedError{Signal: syscall.SIGINT}), 7},
	} {
		require.Equal(t, row.want, ExitCode(row.err), row.err)
	}
	require.ErrorIs(t, &InterruptedError{Cause: context.Canceled}, context.Canceled)
}

func TestErrorFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	lookup := env.Map(map[string]string{varErrorFile: path})
	require.NoError(t, RecordError(env.Map(nil), errors.New("x")))
	require.NoError(t, RecordError(lookup, nil))
	_, ok := readErrorFile(path)
	require.False(t, ok)

	before := time.Now().Unix()
	require.NoError(t, RecordError(lookup, errors.New("boom"), 3, 4))
	f, ok := readErrorFile(path)
	require.True(t, ok)
	require.Equal(t, "boom", f.Message.Message)
	require.Equal(t, []int{3, 4}, f.Message.Extra.Blames)
	require.Contains(t, f.Message.Extra.Stack, "TestErrorFile")
	var second int64
	_, err := fmt.Sscan(f.Message.Extra.Timestamp, &second)
	require.NoError(t, err)
	require.GreaterOrEqual(t, second, before)
	files, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, files, 1)

	// What PyTorch's workers write, in both forms.
	for text, want := range map[string]string{
		`{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "...", "timestamp": "1700000000"}}}`: "ValueError: x",
		`{"message": "old"}`: "old",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		f, ok = readErrorFile(path)
		require.True(t, ok)
		require.Equal(t, want, f.Message.Message)
	}
	require.NoError(t, os.WriteFile(path, []byte("garbage"), 0o600))
	_, ok = readErrorFile(path)
	require.False(t, ok)
	require.ErrorContains(t, RecordError(env.Map(map[string]string{varErrorFile: filepath.Join(path, "x")}),
		errors.New("x")), "launch: error file: ")
}

func TestOOMHint(t *testing.T) {
	counters := func(events, vmstat string) oomKills {
		fs := fstest.MapFS{}
		if events != "" {
			fs["sys/fs/cgroup/memory.events"] = &fstest.MapFile{
				Data: []byte("low 0\noom 9\n" + events + "oom_group_kill 0\n")}
		}
		if vmstat != "" {
			fs["proc/vmstat"] = &fstest.MapFile{Data: []byte("nr_free 1\n" + vmstat)}
		}
		return readOOMKills(fs)
	}
	before := counters("oom_kill 1\n", "oom_kill 5\n")
	for _, row := range []struct {
		after oomKills
		want  string
	}{
		{counters("oom_kill 2\n", "oom_kill 6\n"),
			"out of memory: the kernel killed 1 process of this job's cgroup since the ranks were started"},
		{counters("oom_kill 1\n", "oom_kill 8\n"),
			"probably out of memory: the kernel killed 3 processes on this host since the ranks were started"},
		{counters("oom_kill 1\n", "oom_kill 5\n"),
			"not out of memory by the kernel's count: somebody or the scheduler sent the signal"},
		{counters("oom_kill x\n", ""), "perhaps out of memory; the kernel's count cannot be read here"},
	} {
		require.Equal(t, row.want, before.hint(row.after))
	}
	v1 := readOOMKills(fstest.MapFS{
		"proc/self/cgroup": {Data: []byte("4:memory:/job\n")},
		"sys/fs/cgroup/memory/job/memory.oom_control": {Data: []byte("oom_kill_disable 0\noom_kill 3\n")},
	})
	require.Equal(t, oomKills{cgroup: 3, cgroupKnown: true}, v1)
}

func TestGuardOrders(t *testing.T) {
	killed, err := Guard(strings.NewReader("id x\nadd 999999999\nremove 999999999\n"))
	require.NoError(t, err)
	require.Zero(t, killed)
	killed, err = Guard(strings.NewReader("add 999999999\ndone\n"))
	require.NoError(t, err)
	require.Zero(t, killed)
	for _, bad := range []string{"add x\n", "add 1\n", "remove 0\n", "add -5\n", "\n"} {
		_, err = Guard(strings.NewReader(bad))
		require.ErrorContains(t, err, "is not a command: want add or remove with a process group")
	}
}
