// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/tensor"
)

// WithFigures names numbers that the model, or the step function of WithStep, computes besides the loss, for example
// the terms of a composite loss. Each output of a batch has, in Output.Figures, the sum of each number over the terms
// of the batch's loss. The record of a training step has their means over all terms since the last record, and the
// record of an evaluation has them as eval_NAME. The bits do not depend on the number of ranks. Pipelines (pp_size) and
// divided tokens (cp_size) do not support them.
func WithFigures(names ...string) Option {
	return func(t *Trainer) { t.figures = append(t.figures, names...) }
}

// reservedFigures are keys of records that are the trainer's.
var reservedFigures = []string{"loss", "learning_rate", "grad_norm", "loss_scale", "epoch", "step", "runtime"}

// checkFigures refuses names that records have already, and what cannot carry figures.
func (t *Trainer) checkFigures() error {
	for i, name := range t.figures {
		switch {
		case name == "" || slices.Contains(reservedFigures, name):
			return fmt.Errorf("trainer: WithFigures: the name %q is empty or reserved: want a name other than %q", name,
				reservedFigures)
		case slices.Contains(t.figures[:i], name):
			return fmt.Errorf("trainer: WithFigures: two figures have the name %q", name)
		}
	}
	if len(t.figures) > 0 && (t.acc.PipelineRanks().WorldSize() > 1 || t.acc.DividesTokens()) {
		return errors.New("trainer: WithFigures has no effect with pp_size or cp_size, which add up only the loss: " +
			"want no figures")
	}
	return nil
}

// sumsOf are the figures of an output, in the order of their names.
func (t *Trainer) sumsOf(out models.Output) (list []*tensor.Tensor, err error) {
	for _, name := range t.figures {
		sum := out.Figures[name]
		if sum == nil || sum.Numel() != 1 {
			return nil, fmt.Errorf("the output has no figure %s with one element (its figures are %q): want every "+
				"figure of WithFigures",
				name, slices.Sorted(maps.Keys(out.Figures)))
		}
		list = append(list, sum)
	}
	for name := range out.Figures {
		if !slices.Contains(t.figures, name) {
			return nil, fmt.Errorf("the output has the figure %s: want it in WithFigures too", name)
		}
	}
	return list, nil
}

// figureSums are figures since the last record, by name.
type figureSums map[string]lossSum

// add enters those of a step.
func (f figureSums) add(names []string, sums []float64, count float64) {
	for i, name := range names {
		l := f[name]
		l.add(sums[i], count)
		f[name] = l
	}
}

// into writes the means.
func (f figureSums) into(rec callbacks.Record, over args.LossAverage) {
	for name, l := range f {
		if l.Count > 0 {
			rec[name] = l.mean(over)
		}
	}
}

// evalFigures are the means of an evaluation.
func (t *Trainer) evalFigures(prefix string, pass *evaluation, count float64) map[string]float64 {
	out := map[string]float64{}
	for i, name := range t.figures {
		out[prefix+strings.TrimPrefix(name, prefix)] = pass.sums[i] / count
	}
	return out
}
