// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/bench/internal/workers"
	"github.com/lockstep-ml/lockstep/internal/picture"
	"github.com/lockstep-ml/lockstep/trace"
)

// TestMain is the workers' program too: the comparison starts this binary again.
func TestMain(m *testing.M) {
	if !workers.Play(work) {
		os.Exit(m.Run())
	}
}

// small is a comparison that takes no time.
func small(contenders ...string) *bench {
	return &bench{settings: settings{Layers: 2, Width: 192, Heads: 2, Vocabulary: 500, Batch: 1, Block: 8, Ranks: 2,
		Steps: 2, BucketMB: 1, Hook: "no"}, rounds: 2, contenders: contenders}
}

// A small run prints a line for each contender and the model's, and draws its last step.
func TestRun(t *testing.T) {
	b := small("one", "apart", "shm", "tcp", "goroutines", "shm:full_shard", "tcp:zero_2", "unheard-of", "shm:half")
	b.svg, b.memory = filepath.Join(t.TempDir(), "step"), filepath.Join(t.TempDir(), "memory")
	var out bytes.Buffer
	require.NoError(t, b.run(&out))
	for _, line := range []string{
		`unheard-of is missing: unknown contender: want some of one,apart,.*`,
		`shm:half is missing: unknown contender: want .*, or an engine and a way to shard such as shm:full_shard`,
		`shm:full_shard +\d+ tokens/s  [\d.]+ × one  [\d.]+ × apart  [\d.]+ × the step of shm  \d+ ms of CPU .*`,
		`tcp:zero_2 +\d+ tokens/s .*`,
		`one +\d+ tokens/s  \d+ ms of CPU per step and rank(  \d+ MB of tensors, \d+ MB in all, at most \d+ MB.*)?`,
		`apart +\d+ tokens/s  [\d.]+ × one  \d+ ms of CPU per step and rank(  \d+ MB of tensors, \d+ MB in all, at most \d+ MB.*)?`,
		`\d+ % of [\d.]+ ms of bucket exchange lie under the backward pass`,
	} {
		require.Regexp(t, "(?m)^"+line+"$", out.String())
	}
	for _, name := range []string{"shm", "tcp", "goroutines"} {
		require.Regexp(t, "(?m)^"+name+` +\d+ tokens/s  [\d.]+ × one  [\d.]+ × apart  \d+ ms of CPU per step and rank.*$`,
			out.String())
		require.Regexp(t, "(?m)^model of "+name+
			`: \d+ buckets, [\d.]+ MB a step, .* 2 ranks [\d.]+ × one \(published 1.85\), measured [\d.]+: error [+-][\d.]+ %; 4 ranks .* 8 ranks .*$`, out.String())
	}
	svg := drawn(t, b.svg)
	for _, class := range []string{"forward", "backward", "wait", "bucket"} {
		require.GreaterOrEqual(t, strings.Count(svg, " "+class+" "), 2, "on both ranks")
	}
	bars := drawn(t, b.memory)
	require.GreaterOrEqual(t, strings.Count(bars, ` memory"`), len(b.contenders)-2)

	// The tables hold what the pictures show.
	require.NoError(t, b.draw())
	require.Equal(t, []string{bars, svg}, []string{drawn(t, b.memory), drawn(t, b.svg)})
}

// drawn reads a picture for light pages.
func drawn(t *testing.T, name string) string {
	t.Helper()
	svg, err := os.ReadFile(name + "-light.svg")
	require.NoError(t, err)
	requireXML(t, string(svg))
	return string(svg)
}

// A step of a sharded model shows when parameters were gathered.
func TestTimelineOfShardedModel(t *testing.T) {
	b := small("shm:full_shard")
	b.svg = filepath.Join(t.TempDir(), "step")
	require.NoError(t, b.run(io.Discard))
	svg := drawn(t, b.svg)
	for _, class := range []string{"forward", "backward", "bucket", "gather"} {
		require.GreaterOrEqual(t, strings.Count(svg, " "+class+" "), 2, class)
	}
}

// A worker that fails ends the comparison with what it said, and no other is left.
func TestWorkerThatFails(t *testing.T) {
	b := small("shm")
	b.Hook = "zip"
	require.ErrorContains(t, b.run(io.Discard), `unknown communication hook "zip"`)
}

// The model adds the exchange to the step, and more ranks wait for the slowest.
func TestModel(t *testing.T) {
	f := fit{Latency: 1e-3, Bandwidth: 1e9}
	require.InDelta(t, 2e-3+1e-3, f.cost(2, 1e6), 1e-12)
	require.InDelta(t, 14e-3+1.75e-3, f.cost(8, 1e6), 1e-12)
	require.InDelta(t, (1+2*3e-3)*1.004, f.step(2, 1, []int{1e6, 1e6}), 1e-12)
	require.Equal(t, 1.0, f.step(1, 1, nil))
}

func requireXML(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else {
			require.NoError(t, err)
		}
	}
}

func TestOverlap(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	between := func(rank int, name string, from, to int) span {
		return span{Rank: rank, Name: name, Detail: "bucket 0 (a & <b>)", Queued: at(from), Start: at(from),
			End: at(to)}
	}
	spans := []span{between(0, "forward", 0, 10), between(0, "backward", 10, 30), between(0, "bucket", 15, 20),
		between(0, "bucket", 25, 34), between(0, "wait", 30, 34), between(1, "bucket", 0, 34)}
	hidden, total := overlap(spans)
	require.Equal(t, 10*time.Millisecond, hidden)
	require.Equal(t, 14*time.Millisecond, total)
	svg := (&step{"a & b", spans}).draw("it").SVG(&picture.Themes[0])
	requireXML(t, svg)
	for _, text := range []string{"One training step on 2 ranks: 34.0 ms", "a &amp; b", ">forward<", ">backward<",
		">waiting<", ">gradients exchanged<", ">5<", ">30<"} {
		require.Contains(t, svg, text)
	}
	require.NotContains(t, svg, "parameters gathered", "the legend names what is there")
}

// Tables that are not what a picture needs are errors that name the place.
func TestTables(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x")
	for text, want := range map[string]string{
		"": `want the columns rank, span,`, "a\tb\n": "line 1: want the columns rank, span,",
		strings.Join(stepHeading, "\t"):                                "x.tsv has no rows",
		strings.Join(stepHeading, "\t") + "\n0\tforward\t0\t0\tx\t0\t": `row 1: end_ms is "x": want milliseconds`,
		strings.Join(stepHeading, "\t") + "\nr\tforward\t0\t0\t1\t0\t": `row 1: rank is "r": want a whole number`,
	} {
		require.NoError(t, os.WriteFile(name+".tsv", []byte(text), 0o600))
		_, err := readStep(name)
		require.ErrorContains(t, err, want)
	}
	text := "# n\n" + strings.Join(memoryHeading, "\t") + "\na\t1\t-2\n"
	require.NoError(t, os.WriteFile(name+".tsv", []byte(text), 0o600))
	_, err := readMemory(name)
	require.ErrorContains(t, err, `row 1: process_mb is "-2": want MB`)
}

// The recorder keeps a step per rank.
func TestRecorder(t *testing.T) {
	var r recorder
	for range 3 {
		for rank := range 2 {
			r.begin(rank)
			r.add(trace.Span{Rank: rank, Name: "wait"})
		}
	}
	require.Len(t, r.last, 2)
	require.Len(t, r.of(1), 1)
}

// TestShardingTable: the table of docs/sharding.md has the memory of its picture.
func TestShardingTable(t *testing.T) {
	m, err := readMemory("../../docs/figures/sharding-memory")
	require.NoError(t, err)
	document, err := os.ReadFile("../../docs/sharding.md")
	require.NoError(t, err)
	heading, tensors, process := "| |", "| parameters, gradients, optimizer state of a rank, MB |",
		"| memory of a process between steps (PSS), MB |"
	for _, r := range m.rows {
		heading += " " + r.name + " |"
		tensors += fmt.Sprintf(" %.0f |", r.tensors)
		process += fmt.Sprintf(" %.0f |", r.process)
	}
	for _, row := range []string{heading, tensors, process} {
		require.Contains(t, string(document), row)
	}
}
