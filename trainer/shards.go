// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// scatters reports whether each rank writes what it owns of the model into its own file of a checkpoint.
func (r *run) scatters() bool {
	return r.acc.Shards() != nil && r.args.FSDPStateDictType == args.ShardedStateDict &&
		r.acc.Loss().Size() == r.acc.WorldSize()
}

// checkShared makes it an error of the start, and not of the first save, if the ranks will write a checkpoint together
// and do not see one output_dir.
func (r *run) checkShared() error {
	_, _, hook := accelerate.OwnHookState(r.acc)
	var group *comm.Group
	switch {
	case r.args.SaveStrategy == args.StrategyNo:
	case r.scatters():
		group = r.acc.Loss().Group()
	case hook && !r.args.SaveOnlyModel:
		group = r.acc.Data().Group()
	}
	if group == nil {
		return nil
	}
	if err := r.store.CheckShared(r.ctx, group); err != nil {
		return fmt.Errorf("trainer: output_dir, into which every rank writes a part of each checkpoint: %w", err)
	}
	return nil
}

// writeShards writes a checkpoint to which each rank adds what it owns; nothing is gathered. It is collective, and if
// one rank fails, all do.
func (r *run) writeShards(ctx context.Context) (checkpoint.Info, error) {
	shards := r.acc.Shards()
	content := checkpoint.Sharded{RunID: r.progress.RunID, Placed: r.modelShards(shards)}
	parts, err := r.partsBeside()
	if err != nil {
		return checkpoint.Info{}, err
	}
	layout, err := models.LayoutJSON(r.model)
	if err != nil {
		return checkpoint.Info{}, err
	}
	states, err := r.stateParts()
	if err != nil {
		return checkpoint.Info{}, err
	}
	content.Parts = append(append(parts, checkpoint.BytesPart(models.LayoutFile, layout)), states...)
	if !r.args.SaveOnlyModel {
		opt := r.opt.State()
		steps, err := r.gatherSteps(opt.Steps)
		if err != nil {
			return checkpoint.Info{}, err
		}
		heads, err := r.resumeParts(steps)
		if err != nil {
			return checkpoint.Info{}, err
		}
		content.Parts = append(content.Parts, heads...)
		for _, p := range r.acc.Params() {
			if _, stepped := steps[p.Name]; !stepped || r.acc.Replicas().Rank() != 0 {
				continue
			}
			at, _ := shards.Placement(p.Name)
			for _, st := range r.opt.Describe(p) {
				name := p.Name + "." + st.Name
				if mine := opt.Tensors[name]; mine != nil {
					content.Placed = append(content.Placed, checkpoint.NewPlaced(r.acc.Ctx(), optimizerTensors,
						tensor.Placed{Placement: at.Of(name, st.Shape...), Tensor: mine}))
				}
			}
		}
	}
	return r.store.SaveShards(ctx, r.acc.Loss().Group(), r.state.GlobalStep, content)
}

// modelShards is what this rank writes of parameters and buffers. What every rank has is rank 0's to write.
func (r *run) modelShards(shards strategy.Shards) (list []checkpoint.Placed) {
	if r.acc.Replicas().Rank() != 0 {
		return nil
	}
	placed := shards.Placed()
	if r.acc.IsMain() {
		placed = append(slices.Clip(placed), r.uncut(shards)...)
	}
	for _, p := range placed {
		list = append(list, checkpoint.NewPlaced(r.acc.Ctx(), models.WeightsBase, p))
	}
	return list
}

// uncut are the parameters and buffers that every rank has.
func (r *run) uncut(shards strategy.Shards) (list []tensor.Placed) {
	for _, p := range nn.Walk(r.model).State() {
		if !shards.Cut(p.Name) {
			list = append(list, p.Placed())
		}
	}
	return list
}

// readModel fills the model from a checkpoint. Of a sharded model each rank reads what it owns, and if one fails, all
// do.
func (r *run) readModel(ck *checkpoint.Checkpoint) error {
	shards := r.acc.Shards()
	if shards == nil {
		return loadWeights(ck, r.model)
	}
	if err := r.acc.Summon(false, func() error { return nil }); err != nil { // whole parameters go
		return err
	}
	if err := r.failTogether(r.readShards(ck, shards)); err != nil {
		return err
	}
	return shards.Publish(r.ctx)
}

func (r *run) readShards(ck *checkpoint.Checkpoint, shards strategy.Shards) (err error) {
	set, err := ck.OpenTensors(models.WeightsBase)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	saved, err := models.FitWeights(set, r.model)
	if err != nil {
		return err
	}
	return saved.ReadAll(r.acc.Ctx().NoGrad(), append(slices.Clip(shards.Placed()), r.uncut(shards)...))
}

// failTogether makes an error of one rank one of all. It is collective.
func (r *run) failTogether(err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	all, lost := r.acc.GatherBytes(r.ctx, []byte(text))
	if err != nil || lost != nil {
		return errors.Join(err, lost)
	}
	for rank, text := range all {
		if len(text) > 0 {
			return fmt.Errorf("rank %d: %s", rank, text)
		}
	}
	return nil
}
