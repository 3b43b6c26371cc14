// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Part is a piece of a model that pipeline parallelism does not divide further: the modules that it runs, in their
// order. A model is a list of parts: one before its blocks, one for each block, and one for the rest. Consecutive parts
// are a stage, which a rank of a pipeline runs; see [Ctx.WithStage].
type Part []Module

// stage is what a context runs of a model.
type stage struct {
	modules  map[Module]bool
	received []*tensor.Tensor
}

// WithStage returns a context in which a model runs only some of its parts, which follow one another: a stage of a
// pipeline. received are the tensors that the previous stage has passed on, none for the first stage. The stage draws
// the random numbers that it would draw in the whole model.
func (c *Ctx) WithStage(parts []Part, received ...*tensor.Tensor) *Ctx {
	s := &stage{modules: map[Module]bool{}, received: received}
	for _, m := range slices.Concat(parts...) {
		s.modules[m] = true
	}
	d := *c
	d.stage = s
	return &d
}

// Runs reports whether the context runs module m of a Part: it is in the context's stage, or there is no stage.
func (c *Ctx) Runs(m Module) bool { return c.stage == nil || c.stage.modules[m] }

// Received are the tensors that the stage continues with: what the previous stage has passed on, or the model's inputs
// in, without a stage and in the first one.
func (c *Ctx) Received(in ...*tensor.Tensor) []*tensor.Tensor {
	if c.stage == nil || len(c.stage.received) == 0 {
		return in
	}
	return c.stage.received
}

// RunPart runs p, or those modules of it that c is the context of, by run. If another stage runs p it returns in. run
// calls Forward of each module once, in p's order, and draws no random numbers itself. That is checked, because a later
// stage must draw the same numbers as in the whole model.
func RunPart(c *Ctx, p Part, run func(in []*tensor.Tensor) []*tensor.Tensor, in ...*tensor.Tensor) []*tensor.Tensor {
	if c.stage != nil && !slices.ContainsFunc(p, c.Runs) {
		c.SkipDraws(len(p))
		return in
	}
	before := c.Draws()
	out := run(in)
	if n := c.Draws() - before; n != len(p) {
		refuse(c, "nn.RunPart", "a part of %d modules ran %d modules and random ops: want each of its modules once, "+
			"and no other", len(p), n)
	}
	return out
}

// RunPart1 is RunPart for parts of one input and one output.
func RunPart1(c *Ctx, p Part, run func(x *tensor.Tensor) *tensor.Tensor, x *tensor.Tensor) *tensor.Tensor {
	return RunPart(c, p, func(in []*tensor.Tensor) []*tensor.Tensor { return []*tensor.Tensor{run(in[0])} }, x)[0]
}
