// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"maps"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Ctx is the first argument of a module's Forward: the tensor context and what modules
// add to it. Like the tensor context it is never changed, only derived, and belongs to
// one goroutine.
type Ctx struct {
	*tensor.Ctx
	// Training is true while training: dropout is active, and batch norms take the
	// statistics of the batch.
	Training bool
	// LossOnly is true if only the loss is used: a model may then leave out its logits.
	LossOnly bool
	// LogProbs is true if a language model is to give the log-probabilities of its labels in place of their loss, and
	// in the unit of the head that does so.
	LogProbs bool
	// Positions are those of the batch's tokens in their sequences, integers [T], or [B,T] where rows differ; nil
	// counts them. See TokenPositions.
	Positions *tensor.Tensor

	undropped bool            // dropout is left out
	smoothing *Smoothing      // of labels; nil: none
	segments  *Segments       // nil: nobody asks whether the model computes with them
	noise     *EmbeddingNoise // nil: none
	tree      *Tree
	recompute map[Module]bool
	observers []Observer
	params    []ParamFunc
	attention AttentionFunc           // nil: tensor.Attention
	precision map[string]tensor.DType // of modules, by path
	adapters  *[]string               // that layers add; nil: their active ones
	again     bool                    // a forward pass is being run again for its gradient
	stage     *stage                  // of a pipeline; nil: the whole model
	divides   bool                    // the unit computes with parts of parameters
	chunk     int                     // of the batch's sequences, from 1; 0: they are whole
	headPart  int                     // which part of the heads the unit's attention computes; −1: nobody said
}

// NewCtx returns a context for running modules. tree is Walk(model), which avoids walking
// the model at every call; with nil the first Unit walks its module.
func NewCtx(c *tensor.Ctx, tree *Tree, training bool) *Ctx {
	return &Ctx{Ctx: c, Training: training, tree: tree, headPart: -1}
}

// With returns c on another tensor context.
func (c *Ctx) With(t *tensor.Ctx) *Ctx {
	d := *c
	d.Ctx = t
	return &d
}

// Recomputing reports whether a forward pass is being run again for its gradient.
func (c *Ctx) Recomputing() bool { return c.again }

// WithLossOnly returns a context in which models may leave out everything but the loss, such as a language model's
// logits (see LinearCrossEntropySum). A model that does so needs less memory. Its loss has the same bits; its
// gradients are rounded differently.
func (c *Ctx) WithLossOnly() *Ctx {
	d := *c
	d.LossOnly = true
	return &d
}

// WithoutDropout returns a context in which nothing is dropped while training: TRL's disable_dropout.
func (c *Ctx) WithoutDropout() *Ctx {
	d := *c
	d.undropped = true
	return &d
}

// drops reports whether dropout is active.
func (c *Ctx) drops() bool { return c.Training && !c.undropped }

// WithLogProbs returns a context in which language models give the log-probabilities of their labels (see
// LinearLogProbs) in place of loss and logits.
func (c *Ctx) WithLogProbs() *Ctx {
	d := *c
	d.LogProbs = true
	return &d
}

// Smoothing is label smoothing for the cross entropies that models compute: see Ctx.WithLabelSmoothing.
type Smoothing struct {
	// Factor, from 0 to 1, is the share of a label's probability that is spread evenly over all classes.
	Factor float64
	// Used is true once a cross entropy was smoothed.
	Used bool
}

// WithLabelSmoothing returns a context in which CrossEntropySum, CrossEntropySumWith and LinearCrossEntropySum smooth
// labels, unless the call itself says how much. Contexts that compute at the same time need a Smoothing each.
func (c *Ctx) WithLabelSmoothing(s *Smoothing) *Ctx {
	d := *c
	d.smoothing = s
	return &d
}

// labelSmoothing is the factor of the context.
func (c *Ctx) labelSmoothing() float64 {
	if c.smoothing == nil {
		return 0
	}
	c.smoothing.Used = true
	return c.smoothing.Factor
}

// Segments notes whether a model keeps the texts apart that share the rows of its batch.
type Segments struct {
	// Used is true once SegmentMask got their numbers.
	Used bool
}

// WithSegments returns a context in which s notes the use of segment_ids. Contexts that compute at the same time need a
// Segments each.
func (c *Ctx) WithSegments(s *Segments) *Ctx {
	d := *c
	d.segments = s
	return &d
}

// WithPositions returns a context in which the batch's tokens have the positions p, integers [T] or [B,T]: for rows
// with several documents, with padding first, or with a part of a sequence. The tensor must live as long as the context
// is used.
func (c *Ctx) WithPositions(p *tensor.Tensor) *Ctx {
	d := *c
	d.Positions = p
	return &d
}

// TokenPositions are the positions of ids [B,T] in their sequences, [T] or [B,T]: those of the context, or else past,
// past+1 and so on, where past is the number of tokens before them, which a cache holds. Embeddings of positions and
// RoPE take them from here.
func (c *Ctx) TokenPositions(ids *tensor.Tensor, past int) *tensor.Tensor {
	p := c.Positions
	if p == nil {
		return tensor.Arange(c.Ctx, tensor.Int32, float64(past), 1, ids.Size(1))
	}
	if shape := ids.Shape(); !slices.Equal(p.Shape(), shape) && !slices.Equal(p.Shape(), shape[1:]) {
		refuse(c, "nn.TokenPositions", "positions of shape %v for tokens of shape %v: want %v or %v", p.Shape(), shape,
			shape, shape[1:])
	}
	return p
}

// ParamFunc replaces a parameter where modules use it. name is the parameter's path in saved files; t is its tensor, or
// the result of an earlier ParamFunc. Modules compute with the result. Ops of c in it are part of the graph, so
// gradients reach the parameter in its own dtype and shape. It is called at each use, also when a forward pass is run
// again for its gradient, and must then return the same bits; it should cache what is costly to compute. c.Path is the
// path of the module that uses the parameter.
type ParamFunc func(c *Ctx, name string, t *tensor.Tensor) *tensor.Tensor

// WithParam returns a context whose parameters pass through f, after the functions that c has already: for quantized
// weights, low-rank additions to weights, and parts of weights.
func (c *Ctx) WithParam(f ParamFunc) *Ctx {
	d := *c
	d.params = append(slices.Clip(c.params), f)
	return &d
}

// Param is the tensor of p that a module computes with; nil for a nil p. A Forward never reads p.Tensor itself.
func (c *Ctx) Param(p *Parameter) *tensor.Tensor {
	if p == nil {
		return nil
	}
	if p.whole != nil && !c.divides {
		refuse(c, "nn.Param", "the parameter is divided among ranks, of which this one has %v of %v: want a context "+
			"with the tree of the divided model, whose hooks combine the parts", p.Shape(), p.whole.Shape())
	}
	t := p.Tensor
	for _, f := range c.params {
		t = f(c, c.tree.name(p), t)
	}
	return t
}

// WithChunk returns a context for the n-th chunk of the batch's sequences, from 0, where their tokens are divided.
func (c *Ctx) WithChunk(n int) *Ctx {
	d := *c
	d.chunk = n + 1
	return &d
}

// Chunk is the number of the chunk that the context is for, from 0; ok is false where sequences are whole.
func (c *Ctx) Chunk() (n int, ok bool) { return c.chunk - 1, c.chunk > 0 }

// AttentionFunc computes what tensor.Attention does, of queries q [B,H,T,D] over keys k and values v [B,Hkv,T,D], where
// a context has only some of a sequence's tokens. The options are those without it: positions are counted from the
// first token of the context. It is called again when a forward pass is run again for its gradient.
type AttentionFunc func(c *Ctx, q, k, v *tensor.Tensor, opt tensor.AttentionOptions) *tensor.Tensor

// WithAttention returns a context in which f takes the place of tensor.Attention in AttentionConfig.Attend: the
// attention of a model whose tokens are divided among ranks.
func (c *Ctx) WithAttention(f AttentionFunc) *Ctx {
	d := *c
	d.attention = f
	return &d
}

// Divided reports whether the context has only some of a sequence's tokens: see WithAttention.
func (c *Ctx) Divided() bool { return c.attention != nil }

// attend is the attention of c.
func (c *Ctx) attend(q, k, v *tensor.Tensor, opt tensor.AttentionOptions) *tensor.Tensor {
	if c.attention != nil {
		return c.attention(c, q, k, v, opt)
	}
	y, _ := tensor.Attention(c.Ctx, q, k, v, opt)
	return y
}

// WithPrecision returns a context in which the module of a path, and all within it, autocasts to dt regardless of the
// context: tensor.BFloat16, tensor.Float16, or tensor.Float32 for a module that is to compute in float32 (see
// tensor.Ctx.Autocast). A Forward sets the precision of a part of itself with c.With(c.Autocast(dt)).
func (c *Ctx) WithPrecision(path string, dt tensor.DType) *Ctx {
	d := *c
	d.precision = maps.Clone(c.precision)
	if d.precision == nil {
		d.precision = map[string]tensor.DType{}
	}
	d.precision[path] = dt
	return &d
}

// WithRecompute returns a context in which the given modules do not keep what their
// gradient needs but run forward again during Backward (gradient checkpointing). Gradients
// keep their bits unless an input of such a module is also used elsewhere: the module's
// uses of that input are then added first.
func (c *Ctx) WithRecompute(units []Module) *Ctx {
	d := *c
	d.recompute = map[Module]bool{}
	for _, u := range units {
		d.recompute[u] = true
	}
	return &d
}

// Scope runs body in a new memory scope; see tensor.Ctx.Scope.
func (c *Ctx) Scope(body func(c *Ctx) []*tensor.Tensor) []*tensor.Tensor {
	return c.Ctx.Scope(func(t *tensor.Ctx) []*tensor.Tensor { return body(c.With(t)) })
}

// OpenScope returns a context with a memory scope that is open until close; see tensor.Ctx.OpenScope.
func (c *Ctx) OpenScope() (in *Ctx, close func(out ...*tensor.Tensor)) {
	t, close := c.Ctx.OpenScope()
	return c.With(t), close
}

// TryScope is Scope for a body that can fail; see tensor.Ctx.TryScope.
func (c *Ctx) TryScope(body func(c *Ctx) ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error) {
	return c.Ctx.TryScope(func(t *tensor.Ctx) ([]*tensor.Tensor, error) { return body(c.With(t)) })
}
