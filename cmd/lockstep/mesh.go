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
	rankSettings  = []string{"num_replicas"} // of a program that no launcher started
)

// meshArguments are the arguments of a training program that variables say of its mesh.
func meshArguments(lookup env.Lookup) (*args.TrainingArguments, error) {
	a := args.Default("")
	loader := args.Bind(pflag.NewFlagSet("", pflag.ContinueOnError), a)
	loader.Environ = func() (variables []string) {
		for _, key := range slices.Concat(meshSettings, shardSettings, rankSettings) {
			for _, prefix := range []string{args.EnvPrefix, args.MeshEnvPrefix} {
				name := prefix + strings.ToUpper(key)
				if value, ok := lookup(name); ok {
					variables = append(variables, name+"="+value)
				}
			}
		}
		return variables
	}
	_, err := loader.Parse(nil)
	return a, err
}

// namesMesh reports whether words of a program may say something of its mesh.
func namesMesh(words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool {
		flag, _, _ := strings.Cut(w, "=")
		name, ok := strings.CutPrefix(flag, "--")
		name = string(underscores(nil, name))
		return ok && (slices.Contains(meshSettings, name) || slices.Contains(shardSettings, name))
	})
}

// checkMesh refuses a mesh that the ranks cannot form, by the variables that they get. Words and files of settings are
// the program's own: it may have flags of these names for something else, and one of ours refuses the mesh itself.
func checkMesh(c *launch.Config, lookup env.Lookup) error {
	if c.Elastic != nil || namesMesh(c.Args) {
		return nil
	}
	a, err := meshArguments(lookup)
	if err != nil {
		return nil //nolint:nilerr // the program says so
	}
	world := c.ProcsPerNode * max(1, c.Nodes)
	if _, err = accelerate.MeshOf(a, world); err != nil && a.ShardStrategy() == args.NoShard {
		a.FSDP = []string{string(args.FullShard)} // the program may shard its model
		if _, sharded := accelerate.MeshOf(a, world); sharded == nil {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	return nil
}
