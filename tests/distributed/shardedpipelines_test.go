// SPDX-License-Identifier: Apache-2.0

//go:build unix

package distributed

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSameBitsOfShardedPipelines is TestSameBits for models that are spread over the ranks of each stage.
func TestSameBitsOfShardedPipelines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, half := filepath.Join(dir, "one"), filepath.Join(dir, "half")
	flags := []string{"--global_train_batch_size", "24", "--n_layer", "2"}
	lower := append(slices.Clone(flags), "--bf16", "--gradient_checkpointing", "true")
	succeed(t, plain(tiny(one, flags...)))
	succeed(t, plain(tiny(half, lower...)))
	for i, k := range []struct {
		ranks   int
		half    bool
		mesh    string
		sharded string
	}{
		{4, false, "--pp_size 2 --dp_shard_size 2", "--fsdp full_shard"},
		{4, true, "--pp_size 2 --dp_shard_size 2 --pp_schedule zbv", "--fsdp full_shard --fsdp_share_parameters false"},
		{4, false, "--pp_size 2 --dp_shard_size 2 --pp_schedule zb_h1", "--zero_stage 1"},
		{4, true, "--pp_size 2 --dp_shard_size 2 --pp_schedule looped_bfs", "--zero_stage 2"},
		{8, false, "--pp_size 2 --dp_replicate_size 2 --dp_shard_size 2", "--fsdp shard_grad_op"},
	} {
		all, with, want := strings.Fields(k.mesh+" "+k.sharded), flags, one
		if k.half {
			with, want = lower, half
		}
		// Package comm's engines add alike.
		requireSameBitsOver(t, kindFrom(i), want, k.ranks, slices.Concat(with, all)...)
	}
}
