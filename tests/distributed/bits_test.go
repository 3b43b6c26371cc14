// SPDX-License-Identifier: Apache-2.0

//go:build unix

package distributed

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"
)

// TestSameBits requires the weights, the optimizer and the logged figures of one process from
// every number of ranks and every engine, and others where gradients are added in another
// order.
func TestSameBits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one := filepath.Join(dir, "one")
	r := succeed(t, plain(tiny(one)))
	requireTelling(t, one, r.stdout.String())
	for _, ranks := range []int{2, 4} {
		requireSameBits(t, one, ranks)
	}
	control := filepath.Join(dir, "sequential")
	succeed(t, plain(tiny(control, "--deterministic_ranks", "1")))
	require.False(t, bytes.Equal(read(t, one, "model.safetensors"), read(t, control, "model.safetensors")),
		"the order of additions must matter")
}

// TestSameBitsOnEightRanks has a micro-batch for each of eight ranks in a step.
func TestSameBitsOnEightRanks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("8 processes")
	}
	one, flags := filepath.Join(t.TempDir(), "one"), []string{"--global_train_batch_size", "16"}
	r := succeed(t, plain(tiny(one, flags...)))
	requireTelling(t, one, r.stdout.String())
	requireSameBitsOver(t, kinds[2:], one, 8, flags...) // TestSameBits has all engines
}

// TestSameBitsInMixedPrecision is TestSameBits for bf16 and fp16; the ranks recompute activations, the single process
// does not.
func TestSameBitsInMixedPrecision(t *testing.T) {
	t.Parallel()
	single := filepath.Join(t.TempDir(), "float32")
	succeed(t, plain(tiny(single)))
	for _, flag := range []string{"--bf16", "--fp16"} {
		one := filepath.Join(t.TempDir(), "one")
		succeed(t, plain(tiny(one, flag)))
		requireSameBitsOver(t, kinds[1:], one, 2, flag, "--gradient_checkpointing", "true") // goroutines are trainer's
		require.False(t, bytes.Equal(read(t, one, "model.safetensors"), read(t, single, "model.safetensors")), flag)
	}
}

// TestSameBitsOfHalfParameters is TestSameBits for parameters that are bfloat16 themselves, whose leaves are summed in
// float32, with each way to keep small updates.
func TestSameBitsOfHalfParameters(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for i, update := range []string{"kahan", "stochastic", "plain"} {
		t.Run(update, func(t *testing.T) {
			one, flags := filepath.Join(t.TempDir(), "one"), []string{"--dtype", "bfloat16", "--half_update", update}
			succeed(t, plain(tiny(one, flags...)))
			weights := string(read(t, one, "model.safetensors"))
			require.Empty(t, seen[weights], "the update must matter")
			seen[weights] = update
			requireSameBitsOver(t, kindFrom(i), one, 2, flags...)
			requireSameBitsOver(t, kindFrom(i+1), one, 4, flags...)
			requireSameBitsOver(t, kindFrom(i+2), one, 2, append(flags, "--gradient_checkpointing", "true")...)
		})
	}
}

// strategies are the flags of the ways to spread a model over the ranks.
var strategies = [][]string{{"--zero_stage", "1"}, {"--zero_stage", "2"}, {"--fsdp", "shard_grad_op"},
	{"--fsdp", "full_shard"}, {"--fsdp", "full_shard", "--fsdp_share_parameters", "false"},
	{"--dp_shard_size", "2"}}

// TestSameBitsOfShardedModels is TestSameBits for models that are spread over the ranks, on odd numbers of ranks too
// where the strategy promises it.
func TestSameBitsOfShardedModels(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, half := filepath.Join(dir, "one"), filepath.Join(dir, "half")
	flags := []string{"--global_train_batch_size", "24"}
	succeed(t, plain(tiny(one, flags...)))
	lower := []string{"--global_train_batch_size", "24", "--bf16", "--gradient_checkpointing", "true"}
	succeed(t, plain(tiny(half, lower...)))
	for i, strategy := range strategies {
		t.Run(strings.Join(strategy, " "), func(t *testing.T) {
			// Each strategy runs over each engine once: they add alike on any number of ranks (comm/commtest). Two
			// ranks that are goroutines are trainer's, in TestShardedModelsHaveTheBitsOfOneRank.
			requireSameBitsOver(t, kindFrom(i), one, 4, slices.Concat(flags, strategy)...)
			requireSameBitsOver(t, kindFrom(i+1), half, 2, slices.Concat(lower, strategy)...)
			last := kindFrom(i + 2)
			if strategy[0] == "--dp_shard_size" { // which leaves replicas
				requireSameBitsOver(t, last, one, 6, append(flags, "--dp_replicate_size", "2",
					"--dp_shard_size", "3")...)
			} else if strategy[1] == "1" { // adds a rank's leaves first, as data parallelism does
				requireSameBitsOver(t, last, one, 2, slices.Concat(flags, strategy)...)
			} else {
				requireSameBitsOver(t, last, one, 3, slices.Concat(flags, strategy)...)
			}
		})
	}
}

// TestSameBitsOfPipelines is TestSameBits for pipelines side by side, as replicas or shards. 24 samples a step are 12
// micro-batches. TestPipelines has the settings of a pipeline alone.
func TestSameBitsOfPipelines(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("16 processes")
	}
	one, flags := filepath.Join(t.TempDir(), "one"), []string{"--global_train_batch_size", "24", "--n_layer", "2"}
	succeed(t, plain(tiny(one, flags...)))
	for i, mesh := range []string{"--dp_replicate_size 2", "--dp_shard_size 2", "--zero_stage 1", "--fsdp full_shard"} {
		t.Run(mesh, func(t *testing.T) {
			requireSameBitsOver(t, kindFrom(i), one, 4,
				slices.Concat(flags, []string{"--pp_size", "2"}, strings.Fields(mesh))...)
		})
	}
}

// TestSameBitsOfDividedMatrices is TestSameBits for matrices that two ranks share, alone and with others that see other
// samples. One rank has as many parts of each sum.
func TestSameBitsOfDividedMatrices(t *testing.T) {
	t.Parallel()
	one := filepath.Join(t.TempDir(), "one")
	succeed(t, plain(tiny(one, "--tp_parts", "2")))
	requireSameBitsOver(t, kinds[:1], one, 2, "--tp_size", "2")
	requireSameBitsOver(t, kinds[1:], one, 4, "--tp_size", "2")
}

// TestSameBitsOfDividedLlama is TestSameBitsOfDividedMatrices for a block as Llama's: on two and four ranks over each
// engine between processes, in float32 or bf16.
func TestSameBitsOfDividedLlama(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(config, []byte(clmtest.Llama), 0o600))
	llama := func(out string, flags ...string) []string { return clmtest.Follow(config, tiny(out, flags...)) }
	for i, precision := range []string{"--bf16=false", "--bf16"} {
		one, parts := filepath.Join(t.TempDir(), "one"), []string{precision, "--tp_parts", "4"}
		succeed(t, plain(llama(one, parts...)))
		requireSameBitsOf(t, llama, kinds[1+i:][:1], one, 2, append(parts, "--tp_size", "2")...)
		requireSameBitsOf(t, llama, kinds[2-i:][:1], one, 4, append(parts, "--tp_size", "4")...)
		whole := filepath.Join(t.TempDir(), "whole")
		succeed(t, plain(llama(whole, precision)))
		require.False(t, bytes.Equal(read(t, one, "model.safetensors"), read(t, whole, "model.safetensors")),
			"parts must matter")
	}
}

// TestSameBitsOfDividedTokens is TestSameBits for sequences that two ranks share, in the stages of pipelines, with a
// model that is spread over all ranks, and over some that share its matrices too. One rank has as many chunks.
func TestSameBitsOfDividedTokens(t *testing.T) {
	t.Parallel()
	one := filepath.Join(t.TempDir(), "one")
	succeed(t, plain(tiny(one, "--cp_chunks", "4")))
	chunks := []string{"--cp_chunks", "4", "--cp_size", "2"}
	requireSameBitsOver(t, kinds[1:2], one, 2, append(chunks, "--cp_strategy", "ulysses")...)
	requireSameBitsOver(t, kinds[2:], one, 4, append(chunks, "--pp_size", "2")...)
	requireSameBitsOver(t, kinds[2:], one, 4, append(chunks, "--fsdp", "full_shard")...)
	parts := filepath.Join(t.TempDir(), "parts")
	succeed(t, plain(tiny(parts, "--cp_chunks", "4", "--tp_parts", "2")))
	requireSameBitsOver(t, kinds[1:2], parts, 8, append(chunks, "--tp_size", "2", "--tp_parts", "2", "--dp_shard_size",
		"2")...)
	whole := filepath.Join(t.TempDir(), "whole")
	succeed(t, plain(tiny(whole)))
	require.False(t, bytes.Equal(read(t, one, "model.safetensors"), read(t, whole, "model.safetensors")),
		"chunks must matter")
}

// TestSameBitsOfThreeDimensions is TestSameBits for pipelines of divided layers, whose parts are sharded over ranks
// that see other samples.
func TestSameBitsOfThreeDimensions(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("8 processes")
	}
	one, flags := filepath.Join(t.TempDir(), "one"), []string{"--global_train_batch_size", "24", "--n_layer", "2"}
	succeed(t, plain(tiny(one, append(flags, "--tp_parts", "2")...)))
	requireSameBitsOver(t, kinds[2:], one, 8, append(flags, "--pp_size", "2", "--tp_size", "2", "--fsdp",
		"full_shard")...)
}

// kinds are the ways in which ranks exchange.
var kinds = []string{"goroutines", "shm", "tcp"}

// kindFrom is one of them: tests of several settings take them in turn.
func kindFrom(i int) []string { return kinds[i%len(kinds):][:1] }

// requireSameBits compares a run with those on so many ranks of every kind.
func requireSameBits(t *testing.T, one string, ranks int, flags ...string) {
	t.Helper()
	requireSameBitsOver(t, kinds, one, ranks, flags...)
}

func requireSameBitsOver(t *testing.T, kinds []string, one string, ranks int, flags ...string) {
	t.Helper()
	requireSameBitsOf(t, tiny, kinds, one, ranks, flags...)
}

// requireSameBitsOf is requireSameBitsOver for the runs whose flags model gives.
func requireSameBitsOf(t *testing.T, model func(out string, flags ...string) []string, kinds []string, one string,
	ranks int, flags ...string) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(fmt.Sprintf("%d ranks %s", ranks, kind), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			argv := model(out, append(flags, "--log_level", "info")...)
			if kind == "goroutines" {
				succeed(t, plain(append(argv, "--num_replicas", strconv.Itoa(ranks))))
			} else {
				p := succeed(t, launched(ranks, append(argv, "--ddp_backend", kind)))
				require.Contains(t, p.stderr.String(), "engine "+kind)
			}
			requireSameEnd(t, one, out, 24)
		})
	}
}

// requireTelling checks that a run has what makes equal bits hard: an epoch's tail, tied
// weights, clipping.
func requireTelling(t testing.TB, out, stdout string) {
	t.Helper()
	m := regexp.MustCompile(`samples +(\d+) blocks`).FindStringSubmatch(stdout)
	require.NotNil(t, m, "%s", stdout)
	blocks, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	require.NotZero(t, blocks%2, "the tail must not fill a rank's batch")
	require.Less(t, blocks, 24*8, "there must be an epoch's tail")
	require.Contains(t, stdout, "23,392 parameters\n", "the output layer must be the embedding")
	clipped := 0
	for _, r := range records(t, out) {
		if norm, ok := r.Number("grad_norm"); ok && norm > 0.5 {
			clipped++
		}
	}
	require.Positive(t, clipped)
}

func read(t testing.TB, elem ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	require.NoError(t, err)
	return b
}

// records reads a run's log.
func records(t testing.TB, out string) []callbacks.Record {
	t.Helper()
	var list []callbacks.Record
	for line := range bytes.Lines(read(t, out, "log.jsonl")) {
		var r callbacks.Record
		require.NoError(t, json.Unmarshal(line, &r), "%s", line)
		list = append(list, r)
	}
	return list
}

// figures are what a run logged, except for speeds and memory. What was logged twice, before
// and after a restart, is the same and counts once.
func figures(t testing.TB, out string) []string {
	t.Helper()
	var list []string
	seen := map[string]bool{}
	for _, r := range records(t, out) {
		line := ""
		for _, key := range []string{"step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss",
			"eval_nats_per_byte", "eval_accuracy"} {
			if v, ok := r.Number(key); ok {
				line += fmt.Sprintf("%s=%v ", key, v)
			}
		}
		if !seen[line] {
			seen[line] = true
			list = append(list, line)
		}
	}
	require.NotEmpty(t, list)
	return list
}

// requireSameWeights checks that two runs of so many steps end with the same weights and the
// same optimizer, bit for bit.
func requireSameWeights(t testing.TB, want, got string, steps int) {
	t.Helper()
	requireSameTraining(t, want, got, steps)
	requireSameFiles(t, want, got, "model.safetensors")
}

// requireSameTraining is requireSameWeights for a run that goes on after so many steps.
func requireSameTraining(t testing.TB, want, got string, steps int) {
	t.Helper()
	last := fmt.Sprintf("checkpoint-%d/", steps)
	requireSameFiles(t, want, got, last+"model.safetensors", last+"optimizer.safetensors", last+"scheduler.json",
		last+"sampler.json")
}

func requireSameFiles(t testing.TB, want, got string, files ...string) {
	t.Helper()
	for _, file := range files {
		require.True(t, bytes.Equal(read(t, want, file), read(t, got, file)), "%s of %s is not that of %s", file, got,
			want)
	}
}

// requireSameEnd is requireSameWeights for runs that also logged the same figures.
func requireSameEnd(t testing.TB, want, got string, steps int) {
	t.Helper()
	requireSameWeights(t, want, got, steps)
	require.Equal(t, figures(t, want), figures(t, got))
}
