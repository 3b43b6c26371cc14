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
	Loss  *tensor.Tensor // the sum of the loss terms, one element
	Count float64        // of the terms, or the sum of their weights
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
	return p.run(ctx, c.With(c.NoGrad()), b, loss, nil)
}

// ForwardBackward computes the loss of b, and seed times its gradients, which it gives to use: those of the parameters
// that have one, the same on every rank. They end with the call. Accumulate adds them to what the parameters have.
func (p *Passes) ForwardBackward(ctx context.Context, c *nn.Ctx, b *data.Batch, loss Loss, seed float64,
	use func(c *tensor.Ctx, params, grads []*tensor.Tensor)) (Sum, error) {
	gradients := newGradients(p, c.Ctx)
	defer gradients.free()
	sum, err := p.run(ctx, c, b, loss, func(c *nn.Ctx, loss *tensor.Tensor, i int) {
		gradients.backward(c.Ctx, loss, seed, i)
	})
	if err != nil {
		return Sum{}, err
	}
	return sum, gradients.deliver(ctx, use)
}

// Accumulate adds gradients to those of the parameters, as a backward pass does: hooks run.
func Accumulate(c *tensor.Ctx, params, grads []*tensor.Tensor) {
	tensor.Backward(c, params, grads, nil)
}

// run runs the passes of this rank's chunks, and adds up the losses of all.
func (p *Passes) run(ctx context.Context, c *nn.Ctx, b *data.Batch, loss Loss,
	backward func(c *nn.Ctx, loss *tensor.Tensor, i int)) (Sum, error) {
	chunks, err := Cut(c.Ctx, b, p.layout)
	if err != nil {
		return Sum{}, err
	}
	l, tokens := p.layout, b.Tensors[data.InputIDs].Size(1)
	shares := make([]float64, 2*l.Chunks) // the loss and the count of each chunk
	contexts := make([]*nn.Ctx, l.Chunks)
	for i := range contexts {
		contexts[i] = c.With(c.Sub(fmt.Sprintf("chunk%d", i))) // all of them, so that a chunk draws the same anywhere
	}
	r := &round{Passes: p, ctx: ctx, root: c.Ctx, tokens: tokens}
	err = r.each(len(chunks), func(i int, meet func(*part)) error {
		chunk, own := chunks[i], l.Own()[i]
		d, close := contexts[own].WithPositions(chunk.Tensors[data.PositionIDs]).OpenScope()
		defer close()
		d = d.With(d.WithoutAttention("the tokens of sequences are divided, and only a chunk of them is here: want " +
			"nn.AttentionConfig.Attend, which attends to all"))
		out, err := loss(d.WithAttention(r.attention(own, meet)), chunk)
		switch {
		case err != nil:
			return err
		case out.Loss == nil || out.Loss.Numel() != 1:
			return errors.New("cp: the loss function returned no sum of one element")
		}
		shares[2*own], shares[2*own+1] = tensor.Item(d.Ctx, out.Loss), out.Count
		if backward != nil {
			backward(d, out.Loss, i)
		}
		return nil
	})
	if err != nil {
		return Sum{}, err
	}
	if g := p.cfg.Group; g != nil {
		if err := g.AllReduce(comm.Of(shares), comm.Sum, comm.Label("losses of chunks")).Wait(ctx); err != nil {
			return Sum{}, err
		}
	}
	var total Sum
	for i := range l.Chunks {
		total.Loss += shares[2*i]
		total.Count += shares[2*i+1]
	}
	return total, nil
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
