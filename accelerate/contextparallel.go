// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// ContextParallel is how the tokens of sequences are divided: see package cp.
type ContextParallel struct {
	// Chunks is how many a sequence is cut into, a power of two; 0: two for each rank along cp. Runs with the same
	// number have the same bits on any number of ranks along cp, one included.
	Chunks int
	// Method is how attention gets the keys and values of other chunks; nil: cp.Gather.
	Method *cp.Method
}

// method is Method, or what nil means.
func (o *ContextParallel) method() *cp.Method { return cmp.Or(o.Method, cp.Gather) }

// check is what is wrong with so many ranks along cp and tp for a model.
func (o *ContextParallel) check(tree *nn.Tree, model nn.Module, ranks, tensorRanks int) (err error) {
	if tensorRanks == 1 { // else a pass finds which heads a rank has
		if err = o.method().CheckModel(tree, ranks); err != nil {
			err = fmt.Errorf("accelerate: %w", err)
		}
	}
	if m, ok := model.(interface{ ContextLength() int }); ok && m.ContextLength() < o.Chunks {
		err = errors.Join(err, fmt.Errorf("accelerate: the model reads %s, in %d chunks (cp_chunks): want at most %d "+
			"chunks", quantity.Of(m.ContextLength(), "token"), o.Chunks, m.ContextLength()))
	}
	return err
}

// WithContextParallel computes the micro-batches of a window by chunks of their tokens, and overrides cp_size,
// cp_strategy and cp_chunks. Loss functions get a chunk as batch, once for each: its labels are shifted
// (data.ShiftLabels), and it has the Count of the micro-batch if it is the first chunk, otherwise 0.
func WithContextParallel(o ContextParallel) Option { return func(a *Accelerator) { a.divided = &o } }

// contextParallel is how the tokens of sequences are divided; nil: they are not.
func (a *Accelerator) contextParallel() *ContextParallel {
	switch {
	case a.divided != nil:
		return a.divided
	case a.plan.context != nil:
		return a.plan.context
	case a.ContextRanks().WorldSize() > 1: // of WithMesh
		return new(ContextParallel)
	}
	return nil
}

// DividesTokens reports whether sequences are computed by chunks of their tokens, on several ranks or on one.
func (a *Accelerator) DividesTokens() bool { return a.contextParallel() != nil }

// divideTokens readies the passes of micro-batches if their tokens are divided.
func (a *Accelerator) divideTokens() (err error) {
	if a.DividesTokens() {
		a.context, err = a.passes(a.params, 0)
	}
	return err
}

// checkContext refuses what does not go together with divided tokens.
func (a *Accelerator) checkContext() error {
	if !a.DividesTokens() {
		return nil
	}
	ranks, chunks := a.ContextRanks().WorldSize(), a.contextParallel().Chunks
	if chunks == 0 {
		chunks = 2 * ranks
	}
	faults := []error{a.contextParallel().check(a.tree, a.model, ranks, a.TensorRanks().WorldSize())}
	for _, of := range []struct {
		set       bool
		key, want string
	}{
		{a.factory.Sharded && ranks > 1, "a strategy of the program that shards the model (WithStrategy)",
			"fsdp or zero_stage"},
		{a.plan.local.Every > 0, fmt.Sprintf("local_sgd_steps %d", a.plan.local.Every), "0"},
		{a.plan.disk.params && ranks > 1, "offload_params disk", "none"},
		{a.stats != nil, "batch norms, whose statistics are those of all tokens", "a model without"},
	} {
		if of.set {
			faults = append(faults, fmt.Errorf("accelerate: sequences whose tokens are divided (cp_size %d, %d "+
				"chunks) with %s: want %s", ranks, chunks, of.key, of.want))
		}
	}
	return errors.Join(faults...)
}

// passes are those of batches whose tokens are divided, into so many chunks or as usual (0), with gradients of params.
func (a *Accelerator) passes(params []tensor.Named, chunks int) (*cp.Passes, error) {
	o := a.contextParallel()
	p, err := cp.New(cp.Config{Group: a.ContextRanks().Group(), Chunks: cmp.Or(chunks, o.Chunks), Method: o.Method,
		Params: params})
	if err != nil {
		return nil, fmt.Errorf("accelerate: %w", err)
	}
	return p, nil
}

// checkLengths refuses twice as many chunks as the longest of the first sequences has tokens, or more. Others may be
// longer or shorter, as texts are.
func (a *Accelerator) checkLengths(batches []*data.Batch) error {
	if a.context == nil || a.fits || len(batches) == 0 {
		return nil
	}
	chunks, most := a.context.Layout().Chunks, 0
	for _, b := range batches {
		ids := b.Tensors[data.InputIDs]
		if ids == nil || ids.Dim() != 2 {
			return nil // which the pass refuses
		}
		most = max(most, ids.Size(1))
	}
	if a.fits = chunks < 2*most; !a.fits {
		return fmt.Errorf("accelerate: the sequences of the first step have %s at most, in %d chunks (cp_chunks, or "+
			"two for each rank along cp): want at most %d chunks", quantity.Of(most, "token"), chunks, most)
	}
	return nil
}

// TokenChunks is how many chunks sequences are cut into; 0 if they are whole.
func (a *Accelerator) TokenChunks() int {
	if a.context == nil {
		return 0
	}
	return a.context.Layout().Chunks
}

// EvaluateTokens is Evaluate of batches whose tokens are divided (DividesTokens), into so many chunks; 0: as usual. run
// is called for each of this rank's chunks, in a pipeline for each stage too, and take once for each batch, with what
// the chunks of all ranks come to: on every rank, or on those of a pipeline's last stage. It is collective over
// ComputingRanks; an error of one rank is an error on all only once it aborts them.
func (a *Accelerator) EvaluateTokens(ctx context.Context, batches []*data.Batch, chunks int, run TokensFunc,
	take func(c *nn.Ctx, b *data.Batch, all cp.Result) error) error {
	passes, err := a.passes(nil, chunks)
	if err != nil {
		return err
	}
	if a.pipeline != nil {
		return a.evaluateStages(ctx, batches, passes, run, take)
	}
	loss := func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
		out, _, err := run(c, b)
		return out, err
	}
	for _, b := range batches {
		if fault := tensor.Recover(func() {
			_, err = a.EvalCtx().TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
				all, err := passes.Evaluate(ctx, c, b, loss)
				if err == nil {
					err = take(c, b, all)
				}
				return nil, err
			})
		}); fault != nil {
			return b.Explain(fault)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TokensFunc computes the loss of a chunk of a batch, and logits that are wanted. In a stage of a pipeline that is not
// the last, hidden is what it passes on.
type TokensFunc func(c *nn.Ctx, b *data.Batch) (out cp.Output, hidden []*tensor.Tensor, err error)

// evaluateStages is EvaluateTokens in a pipeline.
func (a *Accelerator) evaluateStages(ctx context.Context, batches []*data.Batch, passes *cp.Passes, run TokensFunc,
	take func(c *nn.Ctx, b *data.Batch, all cp.Result) error) error {
	outs := map[int]cp.Output{} // of the chunks of the batch that the last stage has
	forward := func(c *nn.Ctx, _ pp.Model, b *data.Batch) (Output, error) {
		out, hidden, err := run(c, b)
		if err == nil && hidden == nil {
			n, _ := c.Chunk()
			outs[n] = out
		}
		return Output{Hidden: hidden}, err
	}
	joined := func(ctx context.Context, c *nn.Ctx, b *data.Batch) error {
		var own []cp.Output
		for _, n := range passes.Layout().Own() {
			own = append(own, outs[n])
		}
		clear(outs)
		all, err := passes.Join(ctx, c, b, own)
		if err == nil {
			err = take(c, b, all)
		}
		return err
	}
	_, err := a.pipeline.WithForward(forward).WithTokens(passes, joined).Evaluate(ctx, batches)
	return err
}

// gradientRanks are the ranks over which a strategy sums gradients. Those of the ranks along cp are summed in each pass
// already, unless they have parts of the model.
func (a *Accelerator) gradientRanks() *ranks.Peers {
	if a.DividesTokens() && a.sharding.Strategy == shard.None {
		return a.DataRanks()
	}
	return a.SamePartRanks()
}

// dividedMicroBatch is microBatch where the tokens are divided. The first rank along cp reports loss and count.
func (o WindowOptions) dividedMicroBatch(ctx context.Context, a *Accelerator, b *data.Batch, slot *tensor.Tensor,
	expected float64, microBatch int, last bool) (count float64, err error) {
	loss := func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
		out, err := o.checked(c, b)
		return cp.Output{Loss: out.Loss, Count: out.Count}, err
	}
	pass := func(c *nn.Ctx) (cp.Sum, error) {
		seed := a.scaler.Factor() / divisor(expected)
		if a.sharding.Strategy.ShardsGradients() && a.strategy.Shards() != nil {
			return a.shardedPass(ctx, c, microBatch, last, func(take func(int, *tensor.Tensor)) (cp.Sum, error) {
				return a.context.ForwardBackwardParts(ctx, c, b, loss, seed, take)
			})
		}
		return a.context.ForwardBackward(ctx, c, b, loss, seed, func(c *tensor.Ctx, params, grads []*tensor.Tensor) {
			a.backward(c, params, grads, microBatch, last)
		})
	}
	fault := tensor.Recover(func() {
		_, err = a.TrainCtx(b.Position).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
			sum, err := pass(c)
			if err != nil || !a.speaks() {
				return nil, err
			}
			count = sum.Count
			host := c.Ctx.NoGrad()
			tensor.CopyInto(host, slot, tensor.FromSlice(host, []float64{sum.Loss}, 1))
			return nil, nil
		})
	})
	if fault != nil {
		err = b.Explain(fault)
	}
	return count, err
}

// shardedPass is backward where gradients are sharded: the strategy gets each as soon as the chunks of this rank have
// it, and adds up those of the ranks along cp as it does those of other samples. A pass that fails leaves its window
// without an end, so that no rank waits here for others that wait for this one in an attention.
func (a *Accelerator) shardedPass(ctx context.Context, c *nn.Ctx, microBatch int, last bool,
	passes func(take func(i int, grad *tensor.Tensor)) (cp.Sum, error)) (cp.Sum, error) {
	opts, seal := a.beginPass(microBatch, last)
	defer seal()
	defer func() { a.sends = false }()
	defer a.trace.backward(a.Rank(), microBatch, time.Now())
	any := false
	sum, err := passes(func(i int, grad *tensor.Tensor) {
		if grad == nil {
			a.strategy.Ready(i)
			return
		}
		any = true
		tensor.Backward(c.Ctx, []*tensor.Tensor{a.params[i].Tensor}, []*tensor.Tensor{grad}, nil, opts...)
	})
	switch {
	case err != nil:
		return sum, err
	case !any:
		return sum, &tensor.Error{Op: "accelerate.Backward", Msg: reachesNone}
	}
	a.strategy.End()
	return sum, nil
}
