// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/trainer/hashes"
)

// record writes the record of a run of one rank. In a step on, change changes what it has.
func record(t *testing.T, dir string, program []string, from int64, change func(s *hashes.Step)) {
	w, err := hashes.Create(dir, hashes.Header{Ranks: 1, Launched: 1, Program: program, Dir: t.TempDir(),
		Settings: map[string]any{"seed": 42, "output_dir": dir, "report_to": "x"},
		Params:   []hashes.Param{{Name: "a"}, {Name: "b"}}})
	require.NoError(t, err)
	for n := from + 1; n <= 8; n++ {
		sums := func(k hashes.Sum) []hashes.Sum { return []hashes.Sum{k + hashes.Sum(n), k - hashes.Sum(n)} }
		s := &hashes.Step{Step: n, LR: 0.1, Data: []hashes.Batch{{Hash: hashes.Sum(n)}}, Losses: []string{"2.5"},
			Norm: "1", Grads: sums(100), State: sums(200), Weights: sums(300)}
		s.Ops = []hashes.Op{{Pass: hashes.Forward, Path: "first", Hash: 1},
			{Pass: hashes.Forward, Path: "second", Hash: 2}}
		change(s)
		require.NoError(t, w.Write(s))
	}
	require.NoError(t, w.Close())
}

func nothing(*hashes.Step) {}

// plain leaves out what modules computed.
func plain(f func(*hashes.Step)) func(*hashes.Step) {
	return func(s *hashes.Step) { f(s); s.Ops = nil }
}

// withCheckpoint makes a checkpoint whose tensors have a hash.
func withCheckpoint(t *testing.T, run string, step int, sum string) {
	dir := filepath.Join(run, "checkpoint-"+strconv.Itoa(step))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	text, err := json.Marshal(checkpoint.Manifest{Files: []checkpoint.File{{Name: "model.safetensors", SHA256: sum},
		{Name: "trainer_state.json", SHA256: run}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, checkpoint.ManifestFile), text, 0o644))
}

func TestDiff(t *testing.T) {
	a, b, other := t.TempDir(), t.TempDir(), t.TempDir()
	record(t, a, []string{"train"}, 0, plain(nothing))
	record(t, b, []string{"train"}, 0, plain(nothing))
	code, out, text := output(nil, "diff", a, b)
	require.Zero(t, code, text)
	require.Equal(t, "the runs have the same bits in the 8 steps that both recorded, 1 to 8\n", out)

	parts := func(s *hashes.Step) {
		if s.Step >= 5 {
			s.Grads[1]++
			s.Weights[1]++
		}
	}
	record(t, other, []string{"train", "--report_to", "jsonl", "--width", "7", "--report-to=none"}, 0, plain(parts))
	for _, step := range []int{2, 4, 6} {
		withCheckpoint(t, a, step, "x")
		withCheckpoint(t, other, step, map[bool]string{true: "x", false: "y"}[step < 5])
	}
	code, out, text = output(nil, "diff", a, other, "--replay_dir", "again")
	require.Equal(t, exitError, code, text)
	require.Contains(t, out, "only in the second command line: --width 7\n"+
		"the runs diverge in step 5, in the gradient of parameter b (1 of 2)\n")
	require.Regexp(t, `\(cd \S+ && train --width 7 --output_dir \S+/again/second --record_hashes op --record_until 5 `+
		`--save_strategy no --eval_strategy no --load_best_model_at_end=false --report_to none `+
		`--resume_from_checkpoint \S+/checkpoint-4\)`, out)

	code, out, _ = output(nil, "diff", a, other, "--json")
	require.Equal(t, exitError, code)
	var c hashes.Comparison
	require.NoError(t, json.Unmarshal([]byte(out), &c))
	require.Equal(t, int64(5), c.Found.Step)
	require.Equal(t, []string{"b"}, c.Found.Params)

	// Without hashes the checkpoints are halved.
	for _, dir := range []string{a, other} {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, hashes.Dir)))
	}
	code, out, _ = output(nil, "diff", a, other)
	require.Equal(t, exitError, code)
	require.Contains(t, out, "the runs diverge before the checkpoint of step 6 (that of step 4 is equal)\n")
	withCheckpoint(t, other, 6, "x")
	code, out, _ = output(nil, "diff", a, other)
	require.Zero(t, code)
	require.Contains(t, out, "the checkpoints of 3 steps have the same bits, up to step 6")
}

// ranked writes records of the ranks of a run behind a step, each up to its own step.
func ranked(t *testing.T, dir string, from int64, until ...int64) {
	for rank, last := range until {
		w, err := hashes.Create(dir, hashes.Header{Rank: rank, Ranks: len(until), FromStep: from,
			Params: []hashes.Param{{Name: "a", Part: strconv.Itoa(rank) + "/" + strconv.Itoa(len(until))}}})
		require.NoError(t, err)
		for n := from + 1; n <= last; n++ {
			part := []hashes.Sum{hashes.Sum(int(n) * 12 / len(until))}
			require.NoError(t, w.Write(&hashes.Step{Step: n, Grads: part, State: part, Weights: part}))
		}
		require.NoError(t, w.Close())
	}
}

// A step that a killed rank has not recorded, or that was done again on fewer ranks, makes no runs part.
func TestDiffOfIncompleteRecords(t *testing.T) {
	one, killed, again := t.TempDir(), t.TempDir(), t.TempDir()
	ranked(t, one, 0, 8)
	ranked(t, killed, 0, 6, 5, 6)
	code, out, text := output(nil, "diff", one, killed)
	require.Zero(t, code, out+text)
	require.Contains(t, out, "the runs have the same bits in the 5 steps that both recorded, 1 to 5\n")

	ranked(t, again, 0, 6, 6, 6, 6)
	file := filepath.Join(again, hashes.Dir, "rank-1.jsonl")
	record, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, record[:len(record)-9], 0o600)) // killed in the line of step 6
	ranked(t, again, 3, 8, 8)
	code, out, text = output(nil, "diff", one, again)
	require.Zero(t, code, out+text)
	require.Contains(t, out, "the runs have the same bits in the 8 steps that both recorded, 1 to 8\n")

	for _, rank := range []string{"1", "2"} {
		require.NoError(t, os.Remove(filepath.Join(killed, hashes.Dir, "rank-"+rank+".jsonl")))
	}
	code, _, text = output(nil, "diff", one, killed)
	require.Equal(t, exitTrouble, code)
	require.Contains(t, text, "no records of ranks [1 2] of 3: want those of all ranks in one folder")
}

// A replay runs both programs and names the first module. The programs here are shells that copy a record.
func TestDiffReplays(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, change func(s *hashes.Step)) string {
		ops, path := filepath.Join(dir, name+"-ops"), filepath.Join(dir, name)
		record(t, ops, nil, 0, change)
		// $1 is the output folder: --output_dir comes first
		program := []string{"sh", "-c", `mkdir -p "$2" && cp -r "$0"/hashes "$2"`, ops}
		record(t, path, program, 0, plain(change))
		return path
	}
	a := run("a", nothing)
	b := run("b", func(s *hashes.Step) {
		if s.Step >= 3 {
			s.Losses[0], s.Ops[1].Hash = "2.75", 7
		}
	})
	again := filepath.Join(dir, "again")
	code, out, text := output(nil, "diff", a, b, "--replay", "--replay_dir", again)
	require.Equal(t, exitError, code, text)
	require.Contains(t, out, "the runs diverge in step 3, in the loss of micro-batch 0 (1 of 1)\n"+
		"  2.5 in the first, 2.75 in the second\n")
	require.Contains(t, out, "the first op: forward pass of second, micro-batch 0 (rank 0 of the first run, rank 0 "+
		"of the second)\n")
	code, _, text = output(nil, "diff", a, b, "--replay", "--replay_dir", again)
	require.Equal(t, exitTrouble, code)
	require.Contains(t, text, "want a new folder for the replays")
}

// full is a file on a disk that is full.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// An answer that could not be printed is no answer: the exit code is that of an error.
func TestDiffThatCannotPrint(t *testing.T) {
	a := t.TempDir()
	record(t, a, []string{"train"}, 0, plain(nothing))
	for _, flags := range [][]string{nil, {"--json"}} {
		var complaint bytes.Buffer
		p := &program{stdin: strings.NewReader(""), stdout: full{}, stderr: &complaint, lookup: env.Map(nil)}
		require.Equal(t, exitTrouble, p.run(append([]string{"diff", a, a}, flags...)))
		require.Contains(t, complaint.String(), "no space left")
	}
}

func TestDiffRefuses(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	code, _, text := output(nil, "diff", a)
	require.Equal(t, exitUsage, code)
	require.Contains(t, text, "diff: 1 word: want two")
	code, _, text = output(nil, "diff", a, filepath.Join(b, "none"))
	require.Equal(t, exitTrouble, code)
	require.Contains(t, text, "none")
	code, _, text = output(nil, "diff", a, b)
	require.Equal(t, exitTrouble, code)
	require.Contains(t, text, "have no step in common, neither hashes nor checkpoints: want runs with "+
		"--record_hashes step")
	require.NoError(t, os.MkdirAll(filepath.Join(a, hashes.Dir), 0o755))
	file := filepath.Join(a, hashes.Dir, "rank-0.jsonl")
	for line, want := range map[string]string{
		"{\"step\":1}\n":                             "line 1: a step without a header",
		"{\"version\":9}\n":                          "line 1: version 9: want 1",
		"{\"version\":1,\"rank\":3}\n":               "rank-0.jsonl is of rank 3: want its record in rank-3.jsonl",
		"{\"version\":1}\n{\"gradients\":[\"1\"]}\n": "line 2: step 0 has 1, 0 and 0 hashes: want 0 of each",
		"{\"version\":1}\nx\n":                       "line 2: invalid character",
		"{\"version\":1}\n{\"weights\":[\"zz\"]}\n":  "line 2: ",
	} {
		require.NoError(t, os.WriteFile(file, []byte(line), 0o644))
		code, _, text = output(nil, "diff", a, b)
		require.Equal(t, exitTrouble, code)
		require.Contains(t, text, want)
	}
}
