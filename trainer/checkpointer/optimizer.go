// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// optimizerState is optimizer.json; the tensors are in optimizer.safetensors.
type optimizerState struct {
	Name  string           `json:"name"`
	Steps map[string]int64 `json:"steps"`
}

// optimizerPart is the file of the optimizer's state. all is what is gathered of it; nil: this rank has it whole.
func (c *Checkpointer) optimizerPart(ctx context.Context, all *checkpoint.Gathered,
	state optim.StateDict) (file checkpoint.Part) {
	file.Name = optimizerTensors + ".safetensors"
	if all == nil {
		file.Write = func(w io.Writer) error { return checkpoint.SaveTensors(c.Ctx, w, named(state.Tensors)) }
		return file
	}
	file.Write = func(w io.Writer) error {
		var list []safetensors.Tensor
		for _, name := range all.Names(optimizerTensors) {
			dt, shape, _ := all.Describe(optimizerTensors, name)
			list = append(list, safetensors.Tensor{Name: name, DType: dt, Shape: shape,
				Write: func(w io.Writer) error {
					whole, err := all.Read(ctx, optimizerTensors, name)
					if err == nil {
						_, err = w.Write(whole)
					}
					return err
				}})
		}
		return safetensors.Write(w, list, safetensors.PyTorchMetadata())
	}
	return file
}

// gatherSteps gives all ranks the steps of all parameters. It is collective if each rank has only its own.
func (c *Checkpointer) gatherSteps(ctx context.Context, mine map[string]int64) (steps map[string]int64, err error) {
	if c.Shards == nil {
		return mine, nil
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	all, err := c.Ranks.GatherBytes(ctx, text)
	if err != nil {
		return nil, err
	}
	for _, text := range all {
		if err := json.Unmarshal(text, &steps); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// named lists tensors in the order of their names.
func named(ts map[string]*tensor.Tensor) []tensor.Named {
	list := make([]tensor.Named, 0, len(ts))
	for _, name := range sortedKeys(ts) {
		list = append(list, tensor.Named{Name: name, Tensor: ts[name]})
	}
	return list
}

// restoreOptimizer reads the optimizer's state into the tensors that it has.
func (c *Checkpointer) restoreOptimizer(ck *checkpoint.Checkpoint, opt Optimizer, head optimizerState) (err error) {
	set, err := ck.OpenTensors(optimizerTensors)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	ctx, blocks, own := c.Ctx.NoGrad(), c.blocks(opt), opt.State().Tensors
	saved := map[string]optim.Saved{}
	for _, name := range set.Names() {
		e, _ := set.Lookup(name)
		at, shape, mine := c.partOf(e.Placement(), blocks[name], own[name])
		if !mine {
			continue
		}
		saved[name] = optim.Saved{DType: e.DType, Shape: shape,
			Read: func(into *tensor.Tensor) (tensor.Census, error) {
				section, err := e.Section(at)
				if err != nil {
					return tensor.Census{}, err
				}
				return tensor.WriteFrom(ctx, into, e.DType, section)
			}}
	}
	steps := head.Steps
	if c.Shards != nil {
		steps = maps.Clone(steps)
		maps.DeleteFunc(steps, func(name string, _ int64) bool {
			at, ok := c.Shards.Placement(name)
			return ok && at.BoxNumel() > 0 && at.Numel() == 0
		})
	}
	steps = c.followFreezing(opt, steps, saved)
	if p := tensor.Try(func() { err = opt.ReadState(head.Name, steps, saved) }); p != nil {
		return p
	}
	ctx.Sync()
	return err
}

// followFreezing completes a saved state for a model of which other parameters are frozen than when it was saved: the
// optimizer begins with those that it did not have, and forgets those that are frozen now.
func (c *Checkpointer) followFreezing(opt Optimizer, steps map[string]int64,
	saved map[string]optim.Saved) map[string]int64 {
	steps = maps.Clone(steps)
	had := map[string]bool{}
	for key := range saved {
		had[parameterOf(key)] = true
	}
	mine := opt.State()
	var begun, frozen []string
	for _, name := range sortedKeys(mine.Steps) {
		if _, counted := steps[name]; !counted && !had[name] {
			begun, steps[name] = append(begun, name), 0
		}
	}
	for key, t := range mine.Tensors {
		if slices.Contains(begun, parameterOf(key)) {
			saved[key] = optim.Saved{DType: t.DType(), Shape: t.Shape(),
				Read: func(*tensor.Tensor) (census tensor.Census, err error) { return census, nil }}
		}
	}
	for _, p := range nn.NamedParameters(c.Model) {
		if _, counted := steps[p.Name]; counted && !p.RequiresGrad() {
			frozen = append(frozen, p.Name)
			delete(steps, p.Name)
			maps.DeleteFunc(saved, func(key string, _ optim.Saved) bool { return parameterOf(key) == p.Name })
		}
	}
	if len(begun)+len(frozen) > 0 {
		c.Log.Warn("resuming with other frozen parameters than the checkpoint's", "trained from now on", begun,
			"frozen now", frozen)
	}
	return steps
}

// parameterOf is the name of the parameter that a tensor of the optimizer's state belongs to.
func parameterOf(key string) string { return key[:max(0, strings.LastIndexByte(key, '.'))] }

// blocks are how many elements of its parameter an element of a tensor of the optimizer's state stands for, by name,
// where that is more than one.
func (c *Checkpointer) blocks(opt Optimizer) map[string]int {
	list := map[string]int{}
	for _, p := range c.Params {
		for _, st := range opt.Describe(p) {
			if st.Block > 1 {
				list[p.Name+"."+st.Name] = st.Block
			}
		}
	}
	return list
}

// partOf is what this rank has of a saved tensor of the optimizer's, each element of which stands for a block of the
// parameter's, and the shape of that, which is own's; mine is false if it has nothing.
func (c *Checkpointer) partOf(saved tensor.Placement, block int, own *tensor.Tensor) (at tensor.Placement, shape []int,
	mine bool) {
	if c.Shards == nil {
		return saved, saved.Shape, true
	}
	name := parameterOf(saved.Name)
	at, ok := c.Shards.Placement(name)
	if ok && block > 1 && c.Shards.Cut(name) {
		at = optim.StateTensor{Block: block}.Place(saved.Name, at)
	}
	switch {
	case !ok:
		return saved, saved.Shape, true // the optimizer finds what is wrong with it
	case !c.Shards.Cut(name): // this rank has all of it, or nothing
		return saved, saved.Shape, at.Numel() > 0
	case tensor.WholePlacement(saved.Name, at.Shape...).Numel() != saved.Numel():
		return saved, saved.Shape, true // as above
	}
	shape = []int{at.Numel()}
	if own != nil && own.Numel() == at.Numel() { // a part of a matrix, unless that is cut again
		shape = own.Shape()
	}
	return at.Of(saved.Name, saved.Shape...), shape, at.Numel() > 0
}
