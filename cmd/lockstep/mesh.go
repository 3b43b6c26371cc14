// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/launch"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm/env"
)

// meshSettings are the arguments of a training program that give the mesh sizes, one word each, and shardSettings those
// that say along which axis the other ranks lie.
var (
	meshSettings = []string{"pp_size", "dp_replicate_size", "dp_shard_size", "cp_size", "sp_size", "tp_size",
		"parallelism_config", "distributed_config"}
	shardSettings = []string{"fsdp", "zero_stage"}
)

// meshArguments are the arguments of a training program that words and variables say of its mesh.
func meshArguments(words []string, lookup env.Lookup) (*args.TrainingArguments, error) {
	a := args.Default("")
	loader := args.Bind(pflag.NewFlagSet("", pflag.ContinueOnError), a)
	loader.Environ = func() (variables []string) {
		for _, key := range slices.Concat(meshSettings, shardSettings) {
			for _, prefix := range []string{args.EnvPrefix, args.MeshEnvPrefix} {
				name := prefix + strings.ToUpper(key)
				if value, ok := lookup(name); ok {
					variables = append(variables, name+"="+value)
				}
			}
		}
		return variables
	}
	var own []string
	for i, w := range words {
		flag, _, whole := strings.Cut(w, "=")
		name, ok := strings.CutPrefix(flag, "--")
		if ok && slices.Contains(meshSettings, string(underscores(nil, name))) {
			own = append(own, w)
			if !whole && i+1 < len(words) {
				own = append(own, words[i+1])
			}
		}
	}
	_, err := loader.Parse(own)
	return a, err
}

// checkMesh refuses a mesh that the ranks cannot form, whatever else the program is told: what it reads in files of
// settings is its own to check, and so are words that are wrong.
func checkMesh(c *launch.Config, lookup env.Lookup) error {
	if c.Elastic != nil {
		return nil
	}
	a, err := meshArguments(c.Args, lookup)
	if err != nil {
		return nil //nolint:nilerr // the program says so
	}
	if a.ShardStrategy() == args.NoShard {
		a.FSDP = []string{string(args.FullShard)} // it may be sharded
	}
	if _, err = accelerate.MeshOf(a, c.ProcsPerNode*max(1, c.Nodes)); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	return nil
}
