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

// Batch is a batch whose chunks run together. The forward pass of each can end before its backward pass begins, as in
// the stages of a pipeline: both run in Each.
type Batch struct {
	Chunks   []*data.Batch // this rank's, in the order of Layout.Own
	contexts []*nn.Ctx     // of their forward passes
	round    *round
	meets    []func(*part) // of the passes that run
}

// Open cuts a batch. c has a memory scope, which stays open until the passes have ended.
func (p *Passes) Open(ctx context.Context, c *nn.Ctx, b *data.Batch) (*Batch, error) {
	chunks, err := Cut(c.Ctx, b, p.layout)
	if err != nil {
		return nil, err
	}
	r := &round{Passes: p, root: c.Ctx, tokens: b.Tensors[data.InputIDs].Size(1)}
	of := &Batch{Chunks: chunks, round: r, meets: make([]func(*part), len(chunks))}
	contexts := make([]*nn.Ctx, p.layout.Chunks)
	for i := range contexts {
		contexts[i] = c.With(c.Sub(fmt.Sprintf("chunk%d", i))) // all of them, so that a chunk draws the same anywhere
	}
	for i, own := range p.layout.Own() {
		d := contexts[own].WithChunk(own).WithPositions(chunks[i].Tensors[data.PositionIDs])
		d = d.With(d.WithoutAttention("the tokens of sequences are divided, and only a chunk of them is here: want " +
			"nn.AttentionConfig.Attend, which attends to all"))
		meet := func(p *part) { of.meets[i](p) }
		of.contexts = append(of.contexts, d.WithAttention(r.attention(own, meet)))
	}
	return of, nil
}

// Context is that of the forward pass of chunk i of this rank.
func (b *Batch) Context(i int) *nn.Ctx { return b.contexts[i] }

// Each calls f for each chunk of this rank. The calls run by turns: each to its next attention, which is then computed
// for all of them.
func (b *Batch) Each(f func(i int) error) error {
	return b.round.each(len(b.Chunks), func(i int, meet func(*part)) error {
		b.meets[i] = meet
		return f(i)
	})
}

// round is the passes of a batch.
type round struct {
	*Passes
	root   *tensor.Ctx
	tokens int // of the whole sequences, without padding
}

// ended waits for calls within a pass. A pass does not obey a context: until its calls end, the memory of their tensors
// is theirs, and the other ranks, which are in the same pass, wait for them.
func ended(calls ...*comm.Handle) error { return comm.WaitAll(context.Background(), calls...) }

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
	var parts []*part
	defer func() { // of chunks that another's failure has kept from their attention
		for _, p := range parts {
			p.coming.end()
		}
	}()
	for {
		parts = nil
		for i := range n {
			if p, ok := next[i](); ok {
				parts = append(parts, p)
				if err := r.arrive(p); err != nil {
					return err
				}
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

// arrive begins what other ranks are needed for in the attention that a chunk has come to.
func (r *round) arrive(p *part) error {
	begin := r.cfg.Method.arrive
	if begin == nil {
		return nil
	}
	return tensor.Recover(func() { begin(r, p) })
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
