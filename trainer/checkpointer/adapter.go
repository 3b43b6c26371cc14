// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// saved are those of a rank's tensors that are saved.
func (c *Checkpointer) saved(all []tensor.Placed) []tensor.Placed {
	if c.Adapter == nil {
		return all
	}
	ours := map[string]bool{}
	for _, a := range c.Adapter.Arrays() {
		for _, p := range a.Params {
			ours[p] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(p tensor.Placed) bool { return !ours[p.Name] })
}

// adapterParts are the files of a saved adapter. Ranks other than 0 get the one that is gathered.
func (c *Checkpointer) adapterParts(read func(p tensor.Named) ([]byte, error)) ([]checkpoint.Part, error) {
	parts, err := models.AdapterFiles(c.Model, c.Adapter, read)
	if err != nil || c.Ranks.Rank() != 0 {
		return parts[:min(1, len(parts))], err
	}
	base, err := c.Adapter.Base()
	if err != nil {
		c.Log.Warn("a resume cannot check the adapter's base model", "err", err)
	}
	about, err := checkpoint.JSONPart(models.AdapterBaseFile, base)
	return slices.Concat(parts, []checkpoint.Part{about}, c.Beside), err
}

// readAdapter fills the adapter of the model from a checkpoint, if it is of the same model. Of a sharded one each rank
// reads what it owns, and if one fails, all do.
func (c *Checkpointer) readAdapter(ctx context.Context, ck *checkpoint.Checkpoint) error {
	err := c.checkAdapter(ck)
	if err == nil {
		err = c.fillAdapter(ck)
	}
	if err := c.failTogether(ctx, err); err != nil || c.Shards == nil {
		return err
	}
	return c.Shards.Publish(ctx)
}

// checkAdapter compares the saved adapter, and on rank 0 the model below it, with those of the run.
func (c *Checkpointer) checkAdapter(ck *checkpoint.Checkpoint) error {
	if !ck.Has(models.AdapterConfigFile) {
		return fmt.Errorf("it has no adapter (%s), and the run trains one: want a checkpoint of an adapter",
			models.AdapterConfigFile)
	}
	config, err := ck.ReadPart(models.AdapterConfigFile)
	if err == nil {
		err = c.Adapter.CheckSaved(config)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", models.AdapterConfigFile, err)
	}
	if c.Ranks.Rank() != 0 || !ck.Has(models.AdapterBaseFile) {
		return nil
	}
	var was models.AdaptedBase
	if err := ck.ReadJSON(models.AdapterBaseFile, &was); err != nil {
		return err
	}
	now, err := c.Adapter.Base()
	if err == nil {
		err = errors.Join(was.Check(now), was.CheckPrecision(now))
	}
	if err != nil {
		return err
	}
	if was.Path != now.Path {
		c.Log.Info("the adapter's base model has moved", "checkpoint", was.Path, "now", now.Path)
	}
	return nil
}

func (c *Checkpointer) fillAdapter(ck *checkpoint.Checkpoint) error {
	set, err := ck.OpenTensors(models.AdapterBase)
	if err != nil {
		return err
	}
	var all []tensor.Placed
	if c.Shards != nil {
		all = c.Shards.Placed()
	} else {
		for _, p := range nn.Walk(c.Model).State() {
			all = append(all, p.Placed())
		}
	}
	return errors.Join(c.fillFrom(set, c.saved(all)), set.Close())
}

func (c *Checkpointer) fillFrom(set *safetensors.Set, parts []tensor.Placed) error {
	saved, err := models.FitAdapter(set, c.Model, c.Adapter.Arrays())
	if err != nil {
		return err
	}
	return saved.ReadAll(c.Ctx.NoGrad(), parts)
}
