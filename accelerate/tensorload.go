// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// parts divides the model, which gets the first rank's values.
func (a *Accelerator) parts(ctx context.Context, cfg tp.Config) (d *tp.Division, err error) {
	if a.Group() == nil {
		return tp.Divide(a.ctx, a.model, cfg)
	}
	cuts, err := cfg.Plan.Resolve(a.tree, tp.Size{Ranks: a.TensorRanks().WorldSize(), Parts: cfg.Parts})
	if err != nil {
		return nil, err
	}
	alone, err := a.makesParts(ctx, cuts)
	if err != nil {
		return nil, err
	}
	isCut := func(p tensor.Named) bool {
		return slices.ContainsFunc(cuts, func(c tp.Cut) bool { return c.Name == p.Name })
	}
	state := a.tree.State()
	if alone {
		state = slices.DeleteFunc(state, isCut)
	}
	differed, err := ddp.Verify(ctx, a.ctx, a.Group(), state)
	if err == nil {
		err = a.reportDiffering(ctx, differed, len(state))
	}
	if err == nil && a.PipelineRanks().WorldSize() == 1 { // pipelines bring those of their stages
		err = tensor.Try(func() { a.bring(slices.DeleteFunc(state, isCut)) })
	}
	// a rank that is a goroutine may copy parameters from another one's model, which is divided next
	if err = errors.Join(err, a.Barrier(ctx)); err != nil {
		return nil, err
	}
	if alone {
		cfg.Compare, cfg.Made = true, func() error { return a.Barrier(ctx) }
	}
	if cfg.Later, err = a.makesLater(ctx, isCut); err != nil {
		return nil, err
	}
	if d, err = tp.Divide(a.ctx, a.model, cfg); err == nil && alone {
		err = a.samePartsOf(ctx, d.Fingerprints())
	}
	return d, err
}

// bring makes the values of parameters that are deferred.
func (a *Accelerator) bring(params []tensor.Named) {
	for _, p := range params {
		if p.Unloaded() {
			a.ctx.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				tensor.Clone(c, tensor.Slice(c, p.Tensor, 0, 0, 1))
				return nil
			})
		}
	}
}

// makesParts reports whether one of the ranks can make its parts of the parameters that they divide without the whole:
// none then makes a whole one to compare it.
func (a *Accelerator) makesParts(ctx context.Context, cuts []tp.Cut) (alone bool, err error) {
	if a.TensorRanks().WorldSize() == 1 {
		return false, nil
	}
	a.tree.EachParameter(func(name string, p *nn.Parameter) {
		alone = alone || p.DeferredPart() != nil &&
			slices.ContainsFunc(cuts, func(c tp.Cut) bool { return c.Name == name })
	})
	if err := a.Agree(ctx, &alone); err != nil || !alone {
		return false, err
	}
	all, err := comm.AllGatherObject(ctx, a.Group(), fmt.Sprint(cuts))
	if err != nil {
		return false, err
	}
	for rank, text := range all {
		if text != all[0] {
			return false, fmt.Errorf("the models of ranks 0 and %d differ: they divide %s and %s", rank, all[0], text)
		}
	}
	return true, nil
}

// makesLater reports whether the ranks make their parts when they use them, because each keeps only some. No rank may
// have a parameter whose memory ends with the division: those that are goroutines may copy theirs from it.
func (a *Accelerator) makesLater(ctx context.Context, isCut func(tensor.Named) bool) (bool, error) {
	if a.PipelineRanks().WorldSize() == 1 && !a.sharded() {
		return false, nil
	}
	here := slices.ContainsFunc(a.tree.Parameters(), func(p tensor.Named) bool {
		return isCut(p) && p.Deferred() == nil
	})
	err := a.Agree(ctx, &here)
	return !here, err
}

// samePartsOf is an error unless all ranks have made parts of the same parameters.
func (a *Accelerator) samePartsOf(ctx context.Context, prints []tp.Prints) error {
	type made struct {
		At     int
		Prints []tp.Prints
	}
	all, err := comm.AllGatherObject(ctx, a.Group(), made{a.TensorRanks().Rank(), prints})
	if err != nil {
		return err
	}
	list, at := make([][]tp.Prints, len(all)), make([]int, len(all))
	for rank, m := range all {
		list[rank], at[rank] = m.Prints, m.At
	}
	if diff := tp.Differing(list, at, a.TensorRanks().WorldSize()); diff != "" {
		return fmt.Errorf("the models of the ranks differ: parameter %s: want the same weights, or the same seed, on "+
			"all ranks", diff)
	}
	return nil
}
