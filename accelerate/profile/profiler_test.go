// SPDX-License-Identifier: Apache-2.0

package profile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/profile"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

// trace is a Chrome trace.
type traceFile struct {
	OtherData struct {
		Dropped int `json:"dropped_events"`
	} `json:"otherData"`
	Events []struct {
		Name  string         `json:"name"`
		Cat   string         `json:"cat"`
		Phase string         `json:"ph"`
		TS    float64        `json:"ts"`
		Dur   float64        `json:"dur"`
		PID   int            `json:"pid"`
		TID   int            `json:"tid"`
		Args  map[string]any `json:"args"`
	} `json:"traceEvents"`
}

func readTrace(t *testing.T, dir string) (out traceFile) {
	text, err := os.ReadFile(filepath.Join(dir, "trace_rank3.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

// work is a step of one product and one phase around it.
func work(p *profile.Profiler, c *tensor.Ctx) {
	start := time.Now()
	p.Span(trace.Span{Rank: 3, Name: "data", Start: start, End: time.Now()})
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		x := tensor.Full(c, tensor.Float32, 1, 48, 64)
		tensor.MatMul(c.Sub("layer"), x, tensor.Transpose(c, x, 0, 1))
		return nil
	})
	p.Span(trace.Span{Rank: 3, Name: "forward", Detail: "micro-batch 0", Start: start, End: time.Now()})
	p.Span(trace.Span{Rank: 3, Name: "bucket", Detail: "bucket 0 (w)", Bytes: 4096, Queued: start, Start: start,
		End: time.Now()})
	p.Span(trace.Span{Rank: 3, Name: "collective", Detail: "all_reduce losses", Bytes: 8, Queued: start,
		Start: start, End: time.Now()})
}

func TestProfile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "prof")
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	var log bytes.Buffer
	p := profile.New(profile.Options{Dir: dir, Rank: 3, SkipFirst: 1, Active: 2,
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, p.Start(context.Background(), c))
	for range 5 {
		work(p, c)
		require.NoError(t, p.Step())
	}
	require.NoError(t, p.Close())

	tr := readTrace(t, dir)
	count := map[string]int{}
	for _, e := range tr.Events {
		require.Equal(t, 3, e.PID)
		if e.Phase == "M" {
			continue
		}
		require.Equal(t, "X", e.Phase)
		require.GreaterOrEqual(t, e.Dur, 0.0)
		require.Positive(t, e.TS)
		require.Less(t, e.TS, 24.2*3600e6, "microseconds since midnight")
		count[e.Cat+" "+e.Name]++
		if e.Name == "matmul" {
			require.Equal(t, map[string]any{"module": "layer", "output": []any{48.0, 48.0}, "flops": 2.0 * 48 * 48 * 64,
				"bytes": 4.0 * (2*48*64 + 48*48)}, e.Args)
		}
	}
	require.Equal(t, map[string]int{
		"steps step 2": 1, "steps step 3": 1, "phases data": 2, "phases forward": 2, "kernels fill": 2,
		"kernels matmul":     2,
		"collectives bucket": 2, "collectives all_reduce losses": 2,
	}, count, "two steps, no more")

	table, err := os.ReadFile(filepath.Join(dir, "ops_rank3.txt"))
	require.NoError(t, err)
	require.Regexp(t,
		`^rank 3: 2 steps from step 2 on, [\d.]+ ms in all; ceilings of the device: [\d.]+ GFLOP/s, [\d.]+ GB/s\n`,
		string(table))
	require.Regexp(t, `(?m)^kernel +calls +ms +of time +GFLOP/s +GB/s +of ceiling$`, string(table))
	require.Regexp(t, `(?m)^matmul +2 +[\d.]+ +[\d.]+ % +[\d.]+ +[\d.]+ +[\d.]+ %$`, string(table))
	require.Regexp(t, `(?m)^forward +2 +[\d.]+ +[\d.]+ %$`, string(table))
	require.Regexp(t, `(?m)^collective +2 `, string(table))
	require.Regexp(t, `(?m)^between kernels +[\d.]+ +[\d.]+ %$`, string(table))
	require.Contains(t, log.String(), "msg=profile kernel=matmul calls=2")
	cpu, err := os.ReadFile(filepath.Join(dir, "cpu_rank3.pprof"))
	require.NoError(t, err)
	require.NotEmpty(t, cpu)
}

// A run that ends early still leaves its profile; one that never came to the steps leaves none.
func TestShortRuns(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	for steps, want := range []bool{false, true, true} {
		dir := t.TempDir()
		p := profile.New(profile.Options{Dir: dir, Rank: 3, SkipFirst: 1, Active: 5})
		require.NoError(t, p.Start(context.Background(), c))
		for range steps {
			work(p, c)
			require.NoError(t, p.Step())
		}
		require.NoError(t, p.Close())
		_, err := os.Stat(filepath.Join(dir, "trace_rank3.json"))
		require.Equal(t, want, err == nil, "%d steps", steps)
	}
}

// The trace's memory is bounded; the table counts everything.
func TestLimit(t *testing.T) {
	dir := t.TempDir()
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	p := profile.New(profile.Options{Dir: dir, Rank: 3, Active: 4, Limit: 5})
	require.NoError(t, p.Start(context.Background(), c))
	for range 4 {
		work(p, c)
		require.NoError(t, p.Step())
	}
	tr := readTrace(t, dir)
	require.Len(t, tr.Events, 5+5)
	require.Equal(t, 4*7-5, tr.OtherData.Dropped)
	table, err := os.ReadFile(filepath.Join(dir, "ops_rank3.txt"))
	require.NoError(t, err)
	require.Contains(t, string(table), "the trace leaves 23 events out")
	require.Regexp(t, `(?m)^matmul +4 `, string(table))
}

// A program's own CPU profile goes on; a folder that cannot be made is an error.
func TestBesideOthers(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	var own bytes.Buffer
	require.NoError(t, pprof.StartCPUProfile(&own))
	defer pprof.StopCPUProfile()
	dir := t.TempDir()
	p := profile.New(profile.Options{Dir: dir, Rank: 3, Active: 1})
	require.NoError(t, p.Start(context.Background(), c))
	require.NoError(t, p.Step())
	_, err := os.Stat(filepath.Join(dir, "cpu_rank3.pprof"))
	require.ErrorIs(t, err, os.ErrNotExist)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	err = profile.New(profile.Options{Dir: file, Active: 1}).Start(context.Background(), c)
	require.ErrorContains(t, err, "profile: mkdir")
}

// Where nobody profiles, nothing is allocated.
func TestNilProfiler(t *testing.T) {
	var p *profile.Profiler
	require.NoError(t, p.Start(context.Background(), nil))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		p.Span(trace.Span{})
		if p.Step() != nil {
			t.Fail()
		}
	}))
	require.NoError(t, p.Close())
}
