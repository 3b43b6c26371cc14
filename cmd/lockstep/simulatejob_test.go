// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documented checks that a page shows what a command prints.
func documented(t *testing.T, page, argv string) {
	document, err := os.ReadFile("../../" + page)
	require.NoError(t, err)
	code, out, text := output(nil, strings.Fields(argv)...)
	require.Zero(t, code, text)
	want := "lockstep " + argv + "\n"
	for line := range strings.Lines(out) {
		want += strings.TrimRight("    "+line, " \n") + "\n"
	}
	require.True(t, strings.Contains(string(document), want), "%s has:\n%s", page, want)
}

const jobOf8 = "simulate gpt2 --mesh dp_replicate=2,pp=4 --gradient_accumulation_steps 8 --bf16"

func TestSimulateJobDocumented(t *testing.T) {
	documented(t, "docs/three-dimensions.md", jobOf8)
	documented(t, "docs/three-dimensions.md", "estimate-memory gpt2 --pp_size 4 --gradient_accumulation_steps 8 "+
		"--per_device_train_batch_size 1")
	code, out, text := output(nil, strings.Fields(jobOf8+" --kill rank=5,at=1.5s --save_steps 4")...)
	require.Zero(t, code, text)
	document, err := os.ReadFile("../../docs/three-dimensions.md")
	require.NoError(t, err)
	_, death, _ := strings.Cut(out, "\n\nrank 5 dies ")
	want := "    rank 5 dies " + strings.ReplaceAll(strings.TrimSpace(death), "\n", "\n    ")
	require.True(t, strings.Contains(string(document), want), "the page has:\n%s", want)
}

// A job of 64 ranks, each with its memory and traffic, and a death in it.
func TestSimulateJob(t *testing.T) {
	argv := "simulate --mesh=dp_replicate=2,dp_shard=2,pp=16 gpt2-medium --length 64 --per_device_train_batch_size 1 " +
		"--gradient_accumulation_steps 16 --pp_schedule zb_h1 --kill rank=13,at=1.5s --save_steps 2 --json"
	code, out, text := output(nil, strings.Fields(argv)...)
	require.Zero(t, code, text)
	var job jobReport
	require.NoError(t, json.Unmarshal([]byte(out), &job))
	require.Len(t, job.Ranks, 64)
	require.Equal(t, "gpt2", job.ModelType)
	parameters := int64(0)
	for i, r := range job.Ranks {
		require.InDelta(t, job.Time, r.Busy+r.Bubble+r.Exchange, 1e-9)
		require.Equal(t, i/8, r.Host)
		require.Equal(t, []int{i / 4}, r.Stages)
		require.Positive(t, r.Sent.Gradients+r.Sent.Parameters)
		if i%4 < 2 {
			parameters += r.Memory.Parameters
		}
	}
	tied := int64(4 * 50257 * 1024)
	// with empty places at the borders of shards
	require.InEpsilon(t, int64(4*job.Count)+tied, parameters, 0.002,
		"two ranks of a stage have it, and the embedding is on two")
	d := job.Death
	require.Equal(t, []int{13}, d.Dead)
	require.Len(t, d.Survivors, 63)
	require.Equal(t, (d.Step-1)/2*2, d.LastSaved)
	require.InDelta(t, d.LostSeconds+d.Detection+d.Restart, d.Total, 1e-9)
	require.InDelta(t, 1.5, float64(d.Step-1)*job.Time+d.Into, 1e-9)
}

func TestSimulateJobRefuses(t *testing.T) {
	for _, row := range []struct {
		argv string
		code int
		want string
	}{
		{"gpt3", exitError, "want a folder, a config.json, or one of gpt2, gpt2-large, gpt2-medium, gpt2-xl"},
		{"gpt2 gpt2", exitUsage, "2 words: want one MODEL"},
		{"--mesh pp=2,foo=2", exitUsage, `unknown axis "foo": want axes among pp`},
		{"--mesh pp=2 --pp_size 4", exitUsage, "mesh has pp=2, and pp_size is 4: want one of both"},
		{"--mesh pp=0", exitUsage, `has "pp=0": want axes as dp_shard=2,tp=4`},
		{"--mesh pp=2,dp_shard=-1", exitUsage, "mesh has dp_shard=-1: want sizes of at least 1"},
		{"--mesh pp=4 --num_replicas 6", exitError, "mesh pp=4 does not fit 6 ranks: want a multiple of 4 ranks"},
		{"--mesh pp=4 --ranks 6", exitError, "mesh pp=4 does not fit 6 ranks: want a multiple of 4 ranks"},
		{"--mesh pp=16 --length 8", exitError, "16 stages of a model of 14 parts"},
		{"--mesh pp=2 --pp_split 4,x", exitUsage, `pp_split`},
		{"--mesh pp=2 --pp_split 4,4 --length 8", exitError, "14 in all"},
		{"--mesh pp=2 --kill rank=1", exitUsage, `kill is "rank=1": want a rank or a host and a time`},
		{"--mesh pp=2 --kill rank=7,at=1s --length 8", exitError, "no rank 7 to kill: want 0 to 1"},
		{"--mesh pp=2 --flops 0", exitError, "flops is 0: want a number of at least 1"},
		{"--mesh pp=2 --pp_schedule zbw", exitError, `unknown schedule "zbw"; did you mean zbv?`},
	} {
		code, stdout, text := output(nil, append([]string{"simulate"}, strings.Fields(row.argv)...)...)
		require.Equal(t, row.code, code, "%s: %s", row.argv, text)
		require.Empty(t, stdout, "nothing is printed before all is checked")
		require.Contains(t, text, row.want)
	}
}

// Ranks along tp and cp exchange something in each pass, over the links of their hosts, and have less of the model or
// of the tokens.
func TestSimulateDividedLayersAndTokens(t *testing.T) {
	simulate := func(mesh string, perHost int) (r jobReport) {
		code, out, text := output(nil, "simulate", "gpt2", "--length", "64", "--json", "--mesh", mesh,
			"--gradient_accumulation_steps", "4", "--ranks_per_host", fmt.Sprint(perHost))
		require.Zero(t, code, text)
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		return r
	}
	one, near, far := simulate("pp=2", 8), simulate("pp=2,cp=2,tp=2", 8), simulate("pp=2,cp=2,tp=2", 1)
	require.Len(t, near.Ranks, 8)
	require.Greater(t, far.Time, near.Time)
	for i, r := range near.Ranks {
		whole := one.Ranks[i/4]
		require.Equal(t, whole.Stages, r.Stages)
		require.Positive(t, r.Sent.Tensors)
		require.Positive(t, r.Sent.Tokens)
		require.Zero(t, r.Sent.AcrossHosts)
		require.Less(t, r.Memory.Parameters, whole.Memory.Parameters*6/10)
		require.Less(t, r.Memory.Activations, whole.Memory.Activations)
		require.Equal(t, r.Sent.Sum(), far.Ranks[i].Sent.AcrossHosts)
	}
	require.Zero(t, one.Ranks[0].Sent.Tensors+one.Ranks[0].Sent.Tokens)
}

// With pipelines, estimate-memory has each rank of one.
func TestEstimateMemoryOfStages(t *testing.T) {
	estimate := func(argv string) (e stagesEstimate) {
		code, out, text := output(nil, strings.Fields("estimate-memory gpt2 --length 64 --json "+
			"--per_device_train_batch_size 1 --gradient_accumulation_steps 8 --pp_size 2 "+argv)...)
		require.Zero(t, code, text)
		require.NoError(t, json.Unmarshal([]byte(out), &e))
		return e
	}
	plain, sharded := estimate("--dp_replicate_size 2"), estimate("--dp_shard_size 2")
	gpipe := estimate("--dp_replicate_size 2 --pp_schedule gpipe")
	require.Equal(t, []int{9, 5}, plain.Split)
	require.Equal(t, "pp=2,dp_shard=2", sharded.Mesh)
	for i, r := range plain.Ranks {
		require.Equal(t, []int{i}, r.Stages)
		require.Equal(t, 2*r.Parameters, r.OptimizerState)
		shards := sharded.Ranks[i]
		require.InEpsilon(t, r.Parameters/2, shards.Parameters, 0.005)
		require.InEpsilon(t, r.OptimizerState/2, shards.OptimizerState, 0.005)
		require.InEpsilon(t, int64(shards.GradientSums)*r.Parameters/2, shards.Gradients, 0.005)
		require.Greater(t, shards.Gathered, r.Parameters, "whole parameters, and gradients on their way")
		require.Equal(t, r.Activations, shards.Activations)
		require.Greater(t, gpipe.Ranks[i].Activations, r.Activations)
	}
	recomputed := estimate("--dp_replicate_size 2 --gradient_checkpointing")
	require.Less(t, recomputed.Ranks[0].Activations, plain.Ranks[0].Activations)
	require.Equal(t, []int{4, 10}, estimate("--pp_split 4,10").Split)
}
