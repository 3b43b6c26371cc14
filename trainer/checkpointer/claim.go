// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
)

// Claim keeps other processes from writing into output_dir, if this run writes there, until release is called. A run
// that does not continue with checkpoints of the folder does not start in one that has checkpoints of another run,
// unless overwrite_output_dir says so: then they are renamed.
func (c *Checkpointer) Claim(ctx context.Context, goesOn bool) (release func(), err error) {
	if c.Args.SaveStrategy == args.StrategyNo {
		return func() {}, nil
	}
	release = func() {}
	if c.Writes() {
		release, err = c.claim(ctx, goesOn)
	}
	if !c.mirrors() {
		return release, err
	}
	if together := c.failTogether(context.WithoutCancel(ctx), err); together != nil {
		if err == nil {
			release()
		}
		return nil, fmt.Errorf("save_on_each_node: %w", together)
	}
	return release, nil
}

func (c *Checkpointer) claim(ctx context.Context, goesOn bool) (release func(), err error) {
	if release, err = c.Store.Acquire(ctx); err != nil {
		return nil, fmt.Errorf("output_dir: %w", err)
	}
	if !goesOn {
		err = c.makeWay()
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// makeWay renames the checkpoints of an earlier run, or is an error that names one.
func (c *Checkpointer) makeWay() error {
	if c.Args.OverwriteOutputDir {
		renamed, err := c.Store.SetAside()
		if err != nil {
			return fmt.Errorf("overwrite_output_dir: %w", err)
		}
		if len(renamed) > 0 {
			c.Log.Warn("the checkpoints of an earlier run were renamed; save_total_limit counts them",
				"folder", c.Args.OutputDir, "to", strings.Join(renamed, ", "))
		}
		return nil
	}
	used, err := c.Store.Used()
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	if len(used) == 0 {
		return nil
	}
	dir, last := c.Args.OutputDir, used[len(used)-1]
	own, err := c.Store.Own()
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	if len(own) == 0 {
		return Refuse("output_dir %s holds checkpoints of another program (%s), which cannot be "+
			"resumed here: want another output_dir (model_name_or_path %s starts from the weights), or "+
			"overwrite_output_dir true, which renames the checkpoints that are in the way", dir, last,
			filepath.Join(dir, last))
	}
	return Refuse("output_dir %s holds checkpoints of another run (%s): want resume_from_checkpoint last to continue "+
		"it, overwrite_output_dir true to start a new run, or another output_dir", dir, last)
}
