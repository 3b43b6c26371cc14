// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

const mergeUsage = `usage: lockstep merge-weights CHECKPOINT OUTPUT [FLAGS]

Merges the pieces that the ranks of a sharded run wrote (fsdp_state_dict_type
sharded_state_dict) into a saved model, which transformers and LoadPretrained read. CHECKPOINT
is a checkpoint's folder, or a run's folder, whose last checkpoint is used; its files are
verified first. The result has the bytes that an unsharded run would have saved. CHECKPOINT may
also be the folder of a saved model, to merge its files of weights, or to divide them
differently. Only one array at a time is in memory. CHECKPOINT and other files in OUTPUT do not
change. It is an error if OUTPUT has files of the same names that this command did not write,
or if weights are NaN or infinite.

`

// mergeFlags are what merge-weights can be asked for.
type mergeFlags struct {
	maxShardSize string
	optimizer    bool
	nonfinite    bool
}

func (f *mergeFlags) flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("merge-weights", pflag.ContinueOnError)
	fs.StringVar(&f.maxShardSize, "max_shard_size", "",
		"largest size of a file of weights, such as 5GB or a number of bytes; larger weights are divided among "+
			"several files (default: no limit)")
	fs.BoolVar(&f.optimizer, "optimizer", false, "write the optimizer's state too, as optimizer.safetensors")
	fs.BoolVar(&f.nonfinite, "allow_nonfinite", false, "also merge weights that are NaN or infinite")
	return fs
}

func (p *program) mergeWeights(argv []string) int {
	var f mergeFlags
	fs := f.flagSet()
	if code, done := p.parse(fs, argv, mergeUsage); done {
		return code
	}
	if fs.NArg() != 2 {
		return p.usageError("merge-weights: %s: want two, a CHECKPOINT and an OUTPUT folder",
			quantity.Of(fs.NArg(), "word"))
	}
	o := checkpointer.MergeOptions{Optimizer: f.optimizer, AllowNonfinite: f.nonfinite}
	if f.maxShardSize != "" {
		var err error
		if o.MaxShardSize, err = safetensors.ParseSize(f.maxShardSize); err != nil {
			return p.usageError("merge-weights: max_shard_size: %v", err)
		}
	}
	names, err := checkpointer.MergeWeights(context.Background(), fs.Arg(0), fs.Arg(1), o)
	if err != nil {
		p.complain("lockstep: merge-weights: %v", err)
		return exitError
	}
	for _, name := range names {
		fmt.Fprintln(p.stdout, filepath.Join(fs.Arg(1), name))
	}
	return exitOK
}
