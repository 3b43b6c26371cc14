// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	if size > 1 {
		comm.SpareProcessor()
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
	all.Sum, all.Labelled, err = p.run(ctx, c, b, loss, func(_ *nn.Ctx, out Output, i int) (err error) {
		own[i], err = p.logits(c.Ctx, b, out)
		return err
	})
	if err == nil && own[0] != nil {
		all.Logits, err = p.joinLogits(ctx, c.Ctx, own, b.Tensors[data.InputIDs].Size(1))
	}
	return all, err
}

// Join makes what Evaluate would return of the outputs of this rank's chunks of b.
func (p *Passes) Join(ctx context.Context, c *nn.Ctx, b *data.Batch, outs []Output) (all Result, err error) {
	own, shares := make([]*tensor.Tensor, len(outs)), make([]figures, p.layout.Chunks)
	for i, out := range outs {
		if shares[p.layout.Own()[i]], err = out.figures(c.Ctx); err != nil {
			return all, err
		}
		if own[i], err = p.logits(c.Ctx, b, out); err != nil {
			return all, err
		}
	}
	if all.Sum, all.Labelled, err = p.total(ctx, shares); err == nil && own[0] != nil {
		all.Logits, err = p.joinLogits(ctx, c.Ctx, own, b.Tensors[data.InputIDs].Size(1))
	}
	return all, err
}

// logits copies those of a chunk of b; nil: it has none.
func (p *Passes) logits(c *tensor.Ctx, b *data.Batch, out Output) (*tensor.Tensor, error) {
	x := out.Logits
	if x == nil {
		return nil, nil
	}
	if x.Dim() < 3 || x.Size(0) != b.Size || x.Size(1) != p.layout.Length(b.Tensors[data.InputIDs].Size(1)) {
		return nil, fmt.Errorf("cp: logits of shape %v: want some of each token of a chunk, [batch, tokens, ...]: "+
			"a model whose logits are those of sequences needs all tokens (cp_size 1, cp_chunks 0)", x.Shape())
	}
	return tensor.Clone(c, x), nil
}

// joinLogits gathers logits of chunks on the first rank, without those of padding.
func (p *Passes) joinLogits(ctx context.Context, c *tensor.Ctx, own []*tensor.Tensor, tokens int) (*tensor.Tensor,
	error) {
	r := &round{Passes: p, root: c, tokens: tokens}
	var err error
	joined := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		mine := tensor.Stack(c, 0, own...)
		all := mine
		if g := p.cfg.Group; g != nil && g.Size() > 1 {
			if g.Rank() == 0 {
				all = tensor.Empty(c, mine.DType(), append([]int{p.layout.Chunks}, mine.Shape()[1:]...)...)
			}
			call := g.Gather(comm.OfTensor(c, all), comm.OfTensor(c, mine), 0, comm.Label("logits"))
			if err = ended(call); err != nil || g.Rank() > 0 {
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
	gradients := p.Gradients(c.Ctx, p.cfg.Params, nil)
	defer gradients.Free()
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
	gradients := p.Gradients(c.Ctx, p.cfg.Params, take)
	defer gradients.Free()
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
	batch, err := p.Open(ctx, c, b)
	if err != nil {
		return Sum{}, false, err
	}
	shares := make([]figures, p.layout.Chunks)
	err = batch.Each(func(i int) error {
		d, close := batch.contexts[i].OpenScope()
		defer close()
		out, err := loss(d, batch.Chunks[i])
		if err != nil {
			return err
		}
		if shares[p.layout.Own()[i]], err = out.figures(d.Ctx); err != nil {
			return err
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

// figures are those of the output of a chunk.
func (o Output) figures(c *tensor.Ctx) (f figures, err error) {
	if o.Loss == nil {
		return f, nil
	}
	if err := o.check(); err != nil {
		return f, err
	}
	return figures{tensor.Item(c, o.Loss), o.Count, 1}, nil
}

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

// Totals are the sums of batches of which this rank has those of its chunks, by batch and number of chunk, and zeros
// elsewhere. It is collective.
func (p *Passes) Totals(ctx context.Context, batches [][]Sum) ([]Sum, error) {
	var all []float64
	for _, s := range slices.Concat(batches...) {
		all = append(all, s.Loss, s.Count)
	}
	if g := p.cfg.Group; g != nil && len(all) > 0 {
		if err := g.AllReduce(comm.Of(all), comm.Sum, comm.Label("losses of chunks")).Wait(ctx); err != nil {
			return nil, err
		}
	}
	totals := make([]Sum, len(batches))
	for i, list := range batches {
		for range list {
			totals[i].Loss += all[0]
			totals[i].Count += all[1]
			all = all[2:]
		}
	}
	return totals, nil
}
