// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Config is what Passes are made of.
type Config struct {
	Group  *comm.Group // the ranks along cp; nil: this rank alone
	Chunks int         // cp_chunks; 0: two per rank
	Method *Method     // nil: Gather
	Params []tensor.Named
}

// Output is what a loss function computes of a batch.
type Output struct {
	Loss  *tensor.Tensor // the sum of the loss terms, one element; Evaluate takes nil, too
	Count float64        // of the terms, or the sum of their weights
	// Logits of the tokens, [batch, tokens, ...], which Evaluate joins; nil: they are not wanted.
	Logits *tensor.Tensor
}

// Loss computes the loss of a batch, such as a chunk.
type Loss func(c *nn.Ctx, b *data.Batch) (Output, error)

// Sum is the sum of the loss terms of a batch of sequences, and their number.
type Sum struct{ Loss, Count float64 }

// Passes run the forward and backward passes of batches whose tokens are divided among ranks. They belong to one
// goroutine; all ranks call the methods in the same order.
type Passes struct {
	cfg    Config
	layout Layout
	keys   int64 // blocks of keys that this rank's queries have attended to
}

// New checks a configuration.
func New(cfg Config) (*Passes, error) {
	size, rank := 1, 0
	if cfg.Group != nil {
		size, rank = cfg.Group.Size(), cfg.Group.Rank()
	}
	l, err := NewLayout(cfg.Chunks, size, rank)
	if err != nil {
		return nil, err
	}
	if cfg.Method == nil {
		cfg.Method = Gather
	}
	return &Passes{cfg: cfg, layout: l}, nil
}

// Layout is which rank has which chunks.
func (p *Passes) Layout() Layout { return p.layout }

// KeyBlocks is how many chunks of keys the queries of this rank's chunks have attended to so far: attention's work.
func (p *Passes) KeyBlocks() int64 { return p.keys }

// Forward computes the loss of b, the same on every rank. c has a memory scope, and b is the whole batch.
func (p *Passes) Forward(ctx context.Context, c *nn.Ctx, b *data.Batch, loss Loss) (Sum, error) {
	sum, _, err := p.run(ctx, c.With(c.NoGrad()), b, loss, func(_ *nn.Ctx, out Output, _ int) error {
		return out.check()
	})
	return sum, err
}

// Result is what Evaluate computes of a batch.
type Result struct {
	Sum           // the same on every rank
	Labelled bool // the loss function gave a loss
	// Logits of all tokens, [batch, tokens, ...], on the first rank along cp; nil on the others, and if the function
	// gave none.
	Logits *tensor.Tensor
}

// Evaluate is Forward for functions that may give logits, or no loss. What it returns belongs to c's scope.
func (p *Passes) Evaluate(ctx context.Context, c *nn.Ctx, b *data.Batch, loss Loss) (all Result, err error) {
	c = c.With(c.NoGrad())
	own := make([]*tensor.Tensor, p.layout.PerRank())
	all.Sum, all.Labelled, err = p.run(ctx, c, b, loss, func(_ *nn.Ctx, out Output, i int) error {
		if x := out.Logits; x != nil {
			if x.Dim() < 3 || x.Size(0) != b.Size || x.Size(1) != p.layout.Length(b.Tensors[data.InputIDs].Size(1)) {
				return fmt.Errorf("cp: logits of shape %v: want some of each token of a chunk, [batch, tokens, ...]: "+
					"a model whose logits are those of sequences needs all tokens (cp_size 1, cp_chunks 0)", x.Shape())
			}
			own[i] = tensor.Clone(c.Ctx, x)
		}
		return nil
	})
	if err == nil && own[0] != nil {
		all.Logits, err = p.joinLogits(ctx, c.Ctx, own, b.Tensors[data.InputIDs].Size(1))
	}
	return all, err
}

// joinLogits gathers logits of chunks on the first rank, without those of padding.
func (p *Passes) joinLogits(ctx context.Context, c *tensor.Ctx, own []*tensor.Tensor, tokens int) (*tensor.Tensor,
	error) {
	r := &round{Passes: p, ctx: ctx, root: c, tokens: tokens}
	var err error
	joined := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		mine := tensor.Stack(c, 0, own...)
		all := mine
		if g := p.cfg.Group; g != nil && g.Size() > 1 {
			if g.Rank() == 0 {
				all = tensor.Empty(c, mine.DType(), append([]int{p.layout.Chunks}, mine.Shape()[1:]...)...)
			}
			call := g.Gather(comm.OfTensor(c, all), comm.OfTensor(c, mine), 0, comm.Label("logits"))
			if err = call.Wait(ctx); err != nil || g.Rank() > 0 {
				return nil
			}
		}
		return []*tensor.Tensor{r.join(c, all, 1)}
	})
	for _, t := range own {
		t.Free()
	}
	if len(joined) == 0 {
		return nil, err
	}
	return tensor.Slice(c, joined[0], 1, 0, tokens), nil
}

// ForwardBackward computes the loss of b, and seed times its gradients, which it gives to use: those of the parameters
// that have one, the same on every rank. They end with the call. Accumulate adds them to what the parameters have.
func (p *Passes) ForwardBackward(ctx context.Context, c *nn.Ctx, b *data.Batch, loss Loss, seed float64,
	use func(c *tensor.Ctx, params, grads []*tensor.Tensor)) (Sum, error) {
	gradients := newGradients(p, c.Ctx)
	defer gradients.free()
	sum, err := gradients.passes(ctx, c, b, loss, seed)
	if err != nil {
		return Sum{}, err
	}
	return sum, gradients.deliver(ctx, use)
}

// ForwardBackwardParts is ForwardBackward for a caller who adds up the gradients of the ranks along cp: take gets the
// gradients over this rank's chunks, by the parameter's place in Config.Params, each as soon as the passes of all of
// them have it; nil where they have none. It ends with the call of take.
func (p *Passes) ForwardBackwardParts(ctx context.Context, c *nn.Ctx, b *data.Batch, loss Loss, seed float64,
	take func(i int, grad *tensor.Tensor)) (Sum, error) {
	gradients := newGradients(p, c.Ctx)
	gradients.take = take
	defer gradients.free()
	return gradients.passes(ctx, c, b, loss, seed)
}

// Accumulate adds gradients to those of the parameters, as a backward pass does: hooks run.
func Accumulate(c *tensor.Ctx, params, grads []*tensor.Tensor) {
	tensor.Backward(c, params, grads, nil)
}

// run runs the passes of this rank's chunks, each of which ends with done, and adds up the losses of all. labelled
// reports whether there was a loss.
func (p *Passes) run(ctx context.Context, c *nn.Ctx, b *data.Batch, loss Loss,
	done func(c *nn.Ctx, out Output, i int) error) (total Sum, labelled bool, err error) {
	chunks, err := Cut(c.Ctx, b, p.layout)
	if err != nil {
		return Sum{}, false, err
	}
	l, tokens := p.layout, b.Tensors[data.InputIDs].Size(1)
	shares := make([]figures, l.Chunks)
	contexts := make([]*nn.Ctx, l.Chunks)
	for i := range contexts {
		contexts[i] = c.With(c.Sub(fmt.Sprintf("chunk%d", i))) // all of them, so that a chunk draws the same anywhere
	}
	r := &round{Passes: p, ctx: ctx, root: c.Ctx, tokens: tokens}
	err = r.each(len(chunks), func(i int, meet func(*part)) error {
		chunk, own := chunks[i], l.Own()[i]
		d, close := contexts[own].WithChunk(own).WithPositions(chunk.Tensors[data.PositionIDs]).OpenScope()
		defer close()
		d = d.With(d.WithoutAttention("the tokens of sequences are divided, and only a chunk of them is here: want " +
			"nn.AttentionConfig.Attend, which attends to all"))
		out, err := loss(d.WithAttention(r.attention(own, meet)), chunk)
		if err != nil {
			return err
		}
		if out.Loss != nil {
			if err := out.check(); err != nil {
				return err
			}
			shares[own] = figures{tensor.Item(d.Ctx, out.Loss), out.Count, 1}
		}
		return done(d, out, i)
	})
	if err != nil {
		return Sum{}, false, err
	}
	return p.total(ctx, shares)
}

// check refuses an output without loss.
func (o Output) check() error {
	if o.Loss == nil || o.Loss.Numel() != 1 {
		return errors.New("cp: the loss function returned no sum of one element")
	}
	return nil
}

// figures are what a chunk has of a loss, zeros on the ranks that have other chunks.
type figures struct{ loss, count, labelled float64 }

// total adds up the shares of all ranks' chunks in their order.
func (p *Passes) total(ctx context.Context, shares []figures) (total Sum, labelled bool, err error) {
	all := make([]float64, 0, 3*len(shares))
	for _, s := range shares {
		all = append(all, s.loss, s.count, s.labelled)
	}
	if g := p.cfg.Group; g != nil {
		if err := g.AllReduce(comm.Of(all), comm.Sum, comm.Label("losses of chunks")).Wait(ctx); err != nil {
			return Sum{}, false, err
		}
	}
	for i := range shares {
		total.Loss += all[3*i]
		total.Count += all[3*i+1]
		labelled = labelled || all[3*i+2] > 0
	}
	return total, labelled, nil
}

// round is the passes of a batch.
type round struct {
	*Passes
	ctx    context.Context
	root   *tensor.Ctx
	tokens int // of the whole sequences, without padding
}

// errGivenUp unwinds the passes of chunks when those of another have failed.
var errGivenUp = errors.New("cp: the passes of another chunk failed")

// each runs f for each of n chunks: all run until they meet in an attention, which is then computed for all of them.
func (r *round) each(n int, f func(i int, meet func(*part)) error) error {
	next, errs := make([]func() (*part, bool), n), make([]error, n)
	for i := range n {
		var stop func()
		next[i], stop = iter.Pull(func(yield func(*part) bool) {
			meet := func(p *part) {
				if !yield(p) {
					p.err = errGivenUp
				}
				if p.err != nil {
					panic(&tensor.Error{Op: "cp.Attention", Msg: p.err.Error(), Cause: p.err})
				}
			}
			if fault := tensor.Recover(func() { errs[i] = f(i, meet) }); fault != nil {
				errs[i] = fault
			}
		})
		defer stop()
	}
	for {
		var parts []*part
		for i := range n {
			if p, ok := next[i](); ok {
				parts = append(parts, p)
			} else if errs[i] != nil {
				return errs[i]
			}
		}
		switch {
		case len(parts) == 0:
			return nil
		case len(parts) < n:
			return errors.New("cp: the chunks of a batch do not run the same attentions: want a model whose " +
				"attentions do not depend on its tokens")
		}
		if err := r.meet(parts); err != nil {
			return err
		}
	}
}

// meet computes attention for all chunks of this rank.
func (r *round) meet(parts []*part) (err error) {
	for _, p := range parts {
		if p.backward != parts[0].backward || p.path != parts[0].path {
			return fmt.Errorf("cp: chunks %d and %d are in different attentions: %q and %q", parts[0].chunk, p.chunk,
				parts[0].path, p.path)
		}
	}
	step := r.cfg.Method.forward
	if parts[0].backward {
		step = r.cfg.Method.backward
	}
	if fault := tensor.Recover(func() { err = step(r, parts) }); fault != nil {
		return fault
	}
	return err
}
