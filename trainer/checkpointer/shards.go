// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// scatters reports whether each rank writes what it owns of the model into its own file of a checkpoint. Adapters are
// small.
func (c *Checkpointer) scatters() bool {
	return c.Shards != nil && c.Adapter == nil && c.Args.FSDPStateDictType == args.ShardedStateDict
}

// CheckShared makes it an error of the start, and not of the first save, if the ranks will write a checkpoint together
// and do not see one output_dir, or if save_on_each_node cannot be had. All ranks call it.
func (c *Checkpointer) CheckShared(ctx context.Context) error {
	if err := c.checkMirrors(); err != nil || c.mirrors() {
		return err
	}
	var group *comm.Group
	switch {
	case c.Args.SaveStrategy == args.StrategyNo:
	case c.scatters():
		group = c.Ranks.Group()
	case !c.Args.SaveOnlyModel:
		if _, _, ok := c.Hook.HookState(); ok {
			group = c.Data.Group()
		}
	}
	if group == nil {
		return nil
	}
	if err := c.Store.CheckShared(ctx, group); err != nil {
		return fmt.Errorf("output_dir, into which every rank writes a part of each checkpoint: %w", err)
	}
	return nil
}

// saveShards writes a checkpoint to which each rank adds what it owns; nothing is gathered. It is collective, and if
// one rank fails, all do.
func (c *Checkpointer) saveShards(ctx context.Context, loop Loop, opt Optimizer) (info checkpoint.Info, err error) {
	content := checkpoint.Content{RunID: loop.RunID, Placed: c.modelShards()}
	parts, err := c.partsBeside()
	if err != nil {
		return info, err
	}
	layout, err := models.WeightsLayoutJSON(c.Model)
	if err != nil {
		return info, err
	}
	states, err := c.stateParts(loop)
	if err != nil {
		return info, err
	}
	content.Parts = append(append(parts, checkpoint.BytesPart(models.WeightsLayoutFile, layout)), states...)
	if !c.Args.SaveOnlyModel {
		mine := opt.State()
		steps, err := c.gatherSteps(ctx, mine.Steps)
		if err != nil {
			return info, err
		}
		heads, err := resumeParts(loop, opt, steps)
		if err != nil {
			return info, err
		}
		content.Parts = append(content.Parts, heads...)
		content.Placed = append(content.Placed, c.optimizerShards(opt, mine)...)
	}
	return c.Store.SaveShards(ctx, c.Ranks.Group(), loop.Step, content)
}

// gather readies what ranks have of a sharded model, and of the optimizer's state, for rank 0; nil if each has all of
// it. It is collective.
func (c *Checkpointer) gather(ctx context.Context, opt Optimizer, state optim.StateDict) (*checkpoint.Gathered, error) {
	if c.Shards == nil {
		return nil, nil
	}
	return checkpoint.Gather(ctx, c.Ranks.Group(), append(c.modelShards(), c.optimizerShards(opt, state)...))
}

// modelShards is what this rank has of parameters and buffers that are saved.
func (c *Checkpointer) modelShards() (list []checkpoint.Placed) {
	for _, p := range c.saved(c.Shards.Placed()) {
		list = append(list, checkpoint.NewPlaced(c.Ctx, models.WeightsBase, p))
	}
	return list
}

// optimizerShards is what this rank has of the optimizer's state.
func (c *Checkpointer) optimizerShards(opt Optimizer, state optim.StateDict) (list []checkpoint.Placed) {
	for _, p := range c.Params {
		if _, ok := state.Steps[p.Name]; !ok {
			continue
		}
		at, _ := c.Shards.Placement(p.Name)
		for _, st := range opt.Describe(p) {
			name := p.Name + "." + st.Name
			part := tensor.WholePlacement(name, st.Shape...)
			if c.Shards.Cut(p.Name) {
				part = st.Place(name, at)
			}
			list = append(list, checkpoint.NewPlaced(c.Ctx, optimizerTensors,
				tensor.Placed{Placement: part, Tensor: state.Tensors[name]}))
		}
	}
	return list
}

// ReadModel fills the model from a checkpoint. Of a sharded model each rank reads what it owns, and if one fails, all
// do.
func (c *Checkpointer) ReadModel(ctx context.Context, ck *checkpoint.Checkpoint) error {
	if c.Adapter != nil {
		return c.readAdapter(ctx, ck)
	}
	if c.Shards == nil {
		return withWeights(ck, func(set *safetensors.Set) error { return models.ReadWeights(set, c.Model) })
	}
	err := withWeights(ck, func(set *safetensors.Set) error {
		saved, err := models.FitWeights(set, c.Model)
		if err != nil {
			return err
		}
		return saved.ReadAll(c.Ctx.NoGrad(), c.Shards.Placed())
	})
	if err := c.failTogether(ctx, err); err != nil {
		return err
	}
	return c.Shards.Publish(ctx)
}

// withWeights calls f with the weights of a checkpoint.
func withWeights(ck *checkpoint.Checkpoint, f func(set *safetensors.Set) error) error {
	set, err := ck.OpenTensors(models.WeightsBase)
	if errors.Is(err, fs.ErrNotExist) && ck.Has(models.AdapterConfigFile) {
		return errors.New("it has an adapter, and the run trains the whole model: want trainer.WithAdapter " +
			"(use_peft in examples/finetune), or a checkpoint of a whole model")
	}
	if err != nil {
		return err
	}
	return errors.Join(f(set), set.Close())
}
