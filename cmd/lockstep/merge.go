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

Makes a saved model, as transformers and LoadPretrained read it, of the pieces that the ranks
of a sharded run have written (fsdp_state_dict_type sharded_state_dict). CHECKPOINT is a
checkpoint's folder, or a run's, whose last checkpoint is taken; its files are verified first.
The result has the bytes that a run without shards would have saved. A saved model's folder is
taken too, to merge the files of its weights into one, or to split them anew. One array at a
time is in memory. CHECKPOINT stays as it is, and so does what else OUTPUT holds: files of the
same names that this command did not write are an error, and so are weights that are NaN.

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
		"most bytes of one file of weights, as 5GB or a number; more are split over several files (default: no limit)")
	fs.BoolVar(&f.optimizer, "optimizer", false, "write the optimizer's state too, as optimizer.safetensors")
	fs.BoolVar(&f.nonfinite, "allow_nonfinite", false, "merge weights that are NaN or infinite, too")
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
