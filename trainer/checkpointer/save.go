// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"slices"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Save writes a checkpoint of a run. It is collective for a sharded model and for a communication hook with a state;
// of others, rank 0 alone has something to do. The result is of the ranks that wrote.
func (c *Checkpointer) Save(ctx context.Context, loop Loop, opt Optimizer) (info checkpoint.Info, err error) {
	if c.scatters() {
		return c.saveShards(ctx, loop, opt)
	}
	hook, err := c.hookTensors()
	if err != nil {
		return info, err
	}
	var parts []checkpoint.Part
	if c.Ranks.Rank() == 0 || c.Shards != nil {
		if parts, err = c.parts(ctx, loop, opt); err != nil {
			return info, err
		}
	}
	switch {
	case hook != nil:
		hook.RunID, hook.Parts = loop.RunID, append(parts, hook.Parts...)
		return c.Store.SaveShards(ctx, c.Data.Group(), loop.Step, *hook)
	case c.Ranks.Rank() == 0:
		return c.Store.Save(ctx, loop.Step, checkpoint.Content{RunID: loop.RunID, Parts: parts})
	}
	return info, attend(parts)
}

// attend takes part in gathering what rank 0 writes of a sharded model.
func attend(gathered []checkpoint.Part) error {
	for _, p := range gathered {
		if err := p.Write(safetensors.Elsewhere); err != nil {
			return err
		}
	}
	return nil
}

// parts are all files of a checkpoint in which each tensor is whole. Ranks other than 0 get those that are gathered.
func (c *Checkpointer) parts(ctx context.Context, loop Loop, opt Optimizer) ([]checkpoint.Part, error) {
	var state optim.StateDict
	if !c.Args.SaveOnlyModel {
		state = opt.State()
	}
	all, err := c.gather(ctx, opt, state)
	if err != nil {
		return nil, err
	}
	parts, err := c.modelParts(ctx, all)
	if err != nil {
		return nil, err
	}
	var optimizer []checkpoint.Part
	if !c.Args.SaveOnlyModel {
		if state.Steps, err = c.gatherSteps(ctx, state.Steps); err != nil {
			return nil, err
		}
		optimizer = []checkpoint.Part{c.optimizerPart(ctx, all, state)}
	}
	if c.Ranks.Rank() != 0 {
		return append(parts, optimizer...), nil
	}
	states, err := c.stateParts(loop)
	if err != nil || c.Args.SaveOnlyModel {
		return append(parts, states...), err
	}
	heads, err := resumeParts(loop, opt, state.Steps)
	return slices.Concat(parts, states, optimizer, heads), err
}

// modelParts are the files of a saved model. Ranks other than 0 get those of the weights.
func (c *Checkpointer) modelParts(ctx context.Context, all *checkpoint.Gathered) ([]checkpoint.Part, error) {
	size, err := c.Args.ShardBytes()
	if err != nil {
		return nil, err
	}
	var read func(p tensor.Named) ([]byte, error)
	if all != nil {
		read = func(p tensor.Named) ([]byte, error) { return all.Read(ctx, models.WeightsBase, p.Name) }
	}
	if c.Adapter != nil {
		return c.adapterParts(read)
	}
	weights, err := models.WeightFiles(c.Model, size, read)
	if err != nil || c.Ranks.Rank() != 0 {
		return weights, err
	}
	beside, err := c.partsBeside()
	return append(weights, beside...), err
}

// partsBeside are the files beside a model's weights.
func (c *Checkpointer) partsBeside() (parts []checkpoint.Part, err error) {
	if m, ok := c.Model.(models.Configured); ok {
		text, err := models.ConfigJSON(m)
		if err != nil {
			return nil, err
		}
		parts = append(parts, checkpoint.BytesPart(models.ConfigFile, text))
	}
	return append(parts, c.Beside...), nil
}

// stateParts are the files of a checkpoint that say what was trained.
func (c *Checkpointer) stateParts(loop Loop) ([]checkpoint.Part, error) {
	state, err := loop.State().JSON()
	if err != nil {
		return nil, err
	}
	saved, err := c.settledArgs()
	if err != nil {
		return nil, err
	}
	return []checkpoint.Part{checkpoint.BytesPart(StateFile, state), checkpoint.BytesPart(ArgsFile, saved)}, nil
}

// settledArgs are the arguments with the number of chunks that cp_chunks 0 means.
func (c *Checkpointer) settledArgs() ([]byte, error) {
	a := c.Args.Clone()
	a.CPChunks = a.ContextChunks()
	return a.JSON()
}

// resumeParts are the files of a checkpoint that a resume needs, beside the tensors. steps are the optimizer's.
func resumeParts(loop Loop, opt Optimizer, steps map[string]int64) (parts []checkpoint.Part, err error) {
	files := loop.Files()
	files[optimizerFile] = optimizerState{opt.Name(), steps}
	for _, name := range sortedKeys(files) {
		part, err := checkpoint.JSONPart(name, files[name])
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// SaveModel writes weights, config.json and the files beside them into dir, each file atomically; "" is output_dir.
// Weights of a model that was saved there before are replaced, whatever the number of their files. It is collective for
// a sharded model, and under save_on_each_node.
func (c *Checkpointer) SaveModel(dir string) error {
	ctx, to := context.Background(), c.at(dir)
	files, err := c.saveModel(ctx, to)
	return c.mirrorFiles(ctx, to, files, err)
}

// saveModel is SaveModel on rank 0's host.
func (c *Checkpointer) saveModel(ctx context.Context, to *checkpoint.Store) ([]checkpoint.File, error) {
	if c.Ranks.Rank() != 0 && c.Shards == nil {
		return nil, nil
	}
	all, err := c.gather(ctx, nil, optim.StateDict{})
	if err != nil {
		return nil, err
	}
	parts, err := c.modelParts(ctx, all)
	if err != nil {
		return nil, err
	}
	if c.Ranks.Rank() != 0 {
		return nil, attend(parts)
	}
	saved, err := c.settledArgs()
	if err != nil {
		return nil, err
	}
	parts = append(parts, checkpoint.BytesPart(ArgsFile, saved))
	if c.Adapter != nil { // which may lie beside a model
		return to.ReplaceFiles(ctx, parts, func([]string) (before, after []string) { return nil, nil })
	}
	return replaceModel(ctx, to, parts)
}

// replaceModel writes the files of a saved model in place of another's.
func replaceModel(ctx context.Context, to *checkpoint.Store, parts []checkpoint.Part) ([]checkpoint.File, error) {
	return to.ReplaceFiles(ctx, parts, func(existing []string) (before, after []string) {
		return models.StaleWeights(existing, namesOf(parts))
	})
}

func namesOf(parts []checkpoint.Part) (names []string) {
	for _, p := range parts {
		names = append(names, p.Name)
	}
	return names
}

// Rotate deletes old checkpoints except those to keep. A checkpoint that cannot be deleted does not end the run: the
// next save tries again.
func (c *Checkpointer) Rotate(runID string, keep []string) {
	limit := 1
	switch {
	case c.Args.SaveTotalLimit != nil:
		limit = *c.Args.SaveTotalLimit
	case c.Args.SaveKeepBest == 0 && c.Args.SaveKeepEvery == 0:
		return
	}
	if _, err := c.Store.Rotate(limit, runID, keep...); err != nil {
		c.Log.Warn("save_total_limit: old checkpoints could not be deleted", "limit", limit, "err", err)
	}
}
