// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// probeSamples is how many samples of the first micro-batch checkLoss computes, at most.
const probeSamples = 8

// probe is the loss of some samples: the sum of their terms and the number of these.
type probe struct {
	sum, count float64
	none       bool // there was no loss
}

// checkLoss compares the loss of the first samples with the losses of their halves, in evaluation mode. A sum is the
// sum of theirs; a mean lies between them, and would train at a learning rate that depends on the batch. It says
// nothing of losses that it cannot tell apart: of one sample, of batches that cannot be cut, of halves that differ too
// much, and of a loss that counts as much as that of each half (a mean per micro-batch, with count 1).
func (r *run) checkLoss(w *feed.Window) error {
	if err := r.checkChunks(w); err != nil {
		return err
	}
	var b *data.Batch
	for _, candidate := range w.Batches {
		if candidate.MicroBatch >= 0 && divisible(candidate) {
			b = candidate
			break
		}
	}
	skip := b == nil
	if err := r.acc.ComputingRanks().Agree(r.ctx, &skip); err != nil || skip {
		return err
	}
	n := min(b.Size, probeSamples)
	var found [3]probe
	for i, part := range [3][2]int{{0, n}, {0, n / 2}, {n / 2, n}} {
		var err error
		if found[i], err = r.probeLoss(b, part[0], part[1]); err != nil {
			if r.acc.ComputingRanks().Group() != nil {
				return fmt.Errorf("trainer: step %d: the loss of the first %s: %w", r.state.GlobalStep+1,
					quantity.Of(part[1]-part[0], "sample"), err)
			}
			return nil // the step itself fails, or takes no smaller batches
		}
	}
	all, one, two := found[0], found[1], found[2]
	if all.none || one.none || two.none { // a step function may leave the loss out where it does not train
		return nil
	}
	if meanOf(all, one, two) {
		return fmt.Errorf("trainer: step %d: the loss of %d samples is %.6g for %g terms, and those of its halves are "+
			"%.6g and %.6g, so it is a mean: want the SUM of the loss terms, as nn.CrossEntropySum gives, with their "+
			"number as the count", r.state.GlobalStep+1, n, all.sum, all.count, one.sum, two.sum)
	}
	return nil
}

// checkChunks compares the loss of the first micro-batch by chunks of its tokens with that by twice as many. A sum of
// the terms of tokens is the same, whichever tokens a loss function gets at a time. A mean of them is not.
func (r *run) checkChunks(w *feed.Window) error {
	skip := !r.acc.DividesTokens() || len(w.Batches) == 0 || w.Batches[0].MicroBatch < 0
	if err := r.acc.ComputingRanks().Agree(r.ctx, &skip); err != nil || skip {
		return err
	}
	chunks := r.acc.TokenChunks()
	var found [2]probe
	for i := range found {
		var err error
		if found[i], err = r.probeTokens(w.Batches[0], chunks<<i); err != nil {
			return fmt.Errorf("trainer: step %d: the loss in %s: %w", r.state.GlobalStep+1,
				quantity.Of(chunks<<i, "chunk"), err)
		}
	}
	one, two := found[0], found[1]
	const most = 0.1 // far above what dtypes of half precision round, and far below twice as much
	if one.none || two.none || near(one.sum, two.sum, most) && near(one.count, two.count, 1e-6) {
		return nil
	}
	return fmt.Errorf("trainer: step %d: the loss of a micro-batch in %d chunks is %.6g for %g terms, and in %d "+
		"chunks %.6g for %g; both should be equal: want a loss function that gives the SUM of the terms of the "+
		"tokens that it gets, such as nn.CrossEntropySum, with their number or weights, or cp_size 1 and cp_chunks 0",
		r.state.GlobalStep+1, chunks, one.sum, one.count, 2*chunks, two.sum, two.count)
}

// near reports whether numbers differ by so small a fraction; those that are not finite are the step's to refuse.
func near(a, b, fraction float64) bool {
	return !finite(a, b) || math.Abs(a-b) <= fraction*max(math.Abs(a), math.Abs(b))
}

// divisible reports whether each tensor of a batch has a row for each of several samples.
func divisible(b *data.Batch) bool {
	for _, t := range b.Tensors {
		if t.Dim() == 0 || t.Size(0) != b.Size {
			return false
		}
	}
	return b.Size > 1 && len(b.Tensors) > 0
}

// probeLoss computes the loss of the samples from lo to hi of a batch.
func (r *run) probeLoss(b *data.Batch, lo, hi int) (p probe, err error) {
	part := &data.Batch{Tensors: map[string]*tensor.Tensor{}, Size: hi - lo, Position: b.Position + int64(lo),
		Count: b.Count * float64(hi-lo) / float64(b.Size), MicroBatch: b.MicroBatch}
	if len(b.Indices) == b.Size {
		part.Indices = b.Indices[lo:hi]
	}
	if fault := tensor.Try(func() {
		for name, t := range b.Tensors {
			part.Tensors[name] = tensor.Slice(r.acc.Ctx().NoGrad(), t, 0, lo, hi)
		}
	}); fault != nil {
		return p, b.Explain(fault)
	}
	p.none = true // until this rank has a loss
	if r.acc.DividesTokens() {
		return r.probeTokens(part, 0)
	}
	err = r.acc.Evaluate(r.ctx, []*data.Batch{part}, func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
		out, err := r.trainLoss(c, b)
		if errors.Is(err, errNoStepLoss) {
			return out, nil
		}
		if err == nil && out.Hidden == nil {
			p.sum, p.count, p.none = tensor.Item(c.Ctx, out.Loss), out.Count, false
		}
		return out, err
	})
	return p, err
}

// probeTokens is probeLoss for a batch whose tokens are divided, into so many chunks or as usual (0). All ranks that
// share them find the same.
func (r *run) probeTokens(b *data.Batch, chunks int) (p probe, err error) {
	p.none = true // until this rank has a loss
	err = r.acc.EvaluateTokens(r.ctx, []*data.Batch{b}, chunks, func(c *nn.Ctx, b *data.Batch) (cp.Output,
		[]*tensor.Tensor, error) {
		out, err := r.trainLoss(c, b)
		if errors.Is(err, errNoStepLoss) {
			return cp.Output{}, nil, nil
		}
		return cp.Output{Loss: out.Loss, Count: out.Count}, out.Hidden, err
	}, func(_ *nn.Ctx, _ *data.Batch, all cp.Result) error {
		p = probe{all.Loss, all.Count, !all.Labelled}
		return nil
	})
	return p, err
}

// meanOf reports whether all is the mean of one and two, though it counts their terms: it lies between them, up to what
// dtypes of half precision round, where a sum would be larger than either by a tenth.
func meanOf(all, one, two probe) bool {
	if !finite(all.sum, one.sum, two.sum) || all.count < 1.5*max(one.count, two.count) || all.count <= 1 {
		return false
	}
	if all.sum < 0 {
		all.sum, one.sum, two.sum = -all.sum, -one.sum, -two.sum
	}
	least, most := math.Min(one.sum, two.sum), math.Max(one.sum, two.sum)
	return least >= most/10 && least > 0 && all.sum >= 0.98*least && all.sum <= 1.02*most
}
