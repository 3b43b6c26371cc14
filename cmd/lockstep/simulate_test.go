// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSimulateDocumented(t *testing.T) {
	documented(t, "docs/three-dimensions.md", "simulate --pp_schedule zb_h1 --pp_size 3 --micro_batches 4")
	documented(t, "docs/three-dimensions.md", "simulate --pp_size 4 --micro_batches 6 --costs 1,1.2,0.8 --transfer 0.1")
	documented(t, "README.md", "simulate --pp_schedule zb_h1 --pp_size 4 --micro_batches 8")
}

func TestSimulate(t *testing.T) {
	run := func(argv ...string) string {
		code, out, text := output(nil, append([]string{"simulate"}, argv...)...)
		require.Zero(t, code, text)
		return out
	}
	require.Contains(t, run(), "4 ranks, 8 micro-batches of a step\n")
	require.Contains(t, run("--pp_size", "1", "--micro_batches", "1"), "1 rank, 1 micro-batch of a step\n")
	require.Contains(t, run("--pp_schedule", "zbv", "--pp_size", "4", "--micro_batches", "16"),
		"a step takes 49.5, 3.0 % of it idle, with activations of at most 4\n")
	require.Contains(t, run("--pp_schedule", "interleaved_1f1b", "--stages_per_rank", "3"), "4 ranks, 12 stages, 8")
	long := []string{"--pp_schedule", "gpipe", "--pp_size", "8", "--micro_batches", "512"}
	require.Contains(t, run(long...), "\nthe drawing has 782 lines: see --draw\n")
	require.Greater(t, strings.Count(run(append(long, "--draw")...), "\n"), 782)

	var out struct {
		Idle  float64 `json:"idle"`
		Ranks []struct {
			Stages []int   `json:"stages"`
			Peak   float64 `json:"peak_activations"`
		} `json:"ranks"`
	}
	require.NoError(t, json.Unmarshal([]byte(run("--pp_schedule=dualpipev", "--format=json")), &out))
	require.InDelta(t, 1.5/25.5, out.Idle, 1e-9)
	require.Equal(t, []int{1, 6}, out.Ranks[1].Stages)
	require.Equal(t, 4.5, out.Ranks[0].Peak)

	for argv, want := range map[string][]string{
		"--pp_schedule zbv --format svg": {"A step of 8 micro-batches on 4 ranks",
			"25.5, 5.9 % idle, activations of at most 4<"},
		"--format svg --micro_batches 6": {">gpipe<", ">1f1b<", ">zbv<"},
	} {
		picture := run(strings.Fields(argv)...)
		require.NoError(t, xml.Unmarshal([]byte(picture), new(struct{})), argv)
		for _, text := range want {
			require.Contains(t, picture, text, argv)
		}
	}

	// A table can be written, changed and read.
	file := filepath.Join(t.TempDir(), "mine.csv")
	table := run("--pp_schedule", "1f1b", "--pp_size", "2", "--micro_batches", "3", "--format", "csv")
	require.Equal(t, "0F0,0F1,0B0,0F2,0B1,0B2\r\n1F0,1B0,1F1,1B1,1F2,1B2\r\n", table)
	require.NoError(t, os.WriteFile(file, []byte(table), 0o644))
	require.Contains(t, run("--pp_schedule", file), ": 2 ranks, 2 stages, 3 micro-batches\na step takes 12,")
	require.Contains(t, run("--pp_schedule", file, "--micro_batches", "2"), "2 micro-batches\na step takes 9,")
	require.Contains(t, run("--pp_schedule", file, "--format", "lowered_csv"), "0UNSHARD,0F0,0SEND_F0,")
	table = strings.Replace(table, "1B0,1F1,1B1,1F2", "1F2,1F1,1B1,1B0", 1)
	require.NoError(t, os.WriteFile(file, []byte(table), 0o644))
	code, _, text := output(nil, "simulate", "--pp_schedule", file)
	require.Equal(t, exitError, code)
	require.Contains(t, text, "stage 1 adds the weight gradients of micro-batch 0 after those of micro-batch 1")
	require.Contains(t, text, "deadlock: rank 0 waits in 0B0 for 1B0 of rank 1; rank 1 waits in 1F2 for 0F2 of rank 0")
}

func TestSimulateRefuses(t *testing.T) {
	for _, row := range []struct {
		argv string
		code int
		want string
	}{
		{"--pp_size 2 x", exitUsage, `simulate: unexpected word "x"`},
		{"--costs 1,2", exitUsage, "simulate: costs: 2 numbers: want three, F,I,W"},
		{"--format xml", exitUsage, `simulate: format is "xml": want text, json, csv, lowered_csv, svg`},
		{"--format svg --costs 0,0,0", exitError,
			"a picture of a step of gpipe that takes no time: want costs above 0"},
		{"--format svg --pp_schedule gpipe --micro_batches 20000", exitError,
			"a picture of 160000 passes: want at most"},
		{"--format json", exitUsage, "simulate: format is json, of one schedule: want pp_schedule"},
		{"--pp_schedule zbw", exitError, `unknown schedule "zbw"; did you mean zbv?`},
		{"--pp_schedule none.csv", exitError, "none.csv"},
		{"--pp_size 0", exitUsage, "simulate: pp_size is 0: want at least 1"},
		{"--micro_batches -2", exitUsage, "simulate: micro_batches is -2: want at least 1"},
		{"--pp_size 20000", exitError, "no schedule has this shape:"},
		{"--costs -1,1,1", exitUsage, "simulate: costs are [-1 1 1], and transfer is 0: want times of at least 0"},
		{"--costs NaN,1,1", exitUsage, "want times of at least 0"},
		{"--transfer -1", exitUsage, "want times of at least 0"},
		{"--pp_schedule zbv --costs 1e300,1,1", exitError, "want numbers from 0 to 1e+18"},
	} {
		code, stdout, text := output(nil, append([]string{"simulate"}, strings.Fields(row.argv)...)...)
		require.Equal(t, row.code, code, row.argv)
		require.Empty(t, stdout, "nothing is printed before all is checked")
		require.Contains(t, text, row.want)
	}
}
