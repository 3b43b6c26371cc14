// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

// Ctx carries what an op needs besides its operands: device and stream, gradient mode,
// memory scope, random stream, and the path that errors name. It is never changed:
// NoGrad, Sub and Scope derive a new one. A Ctx and all contexts derived from it belong
// to one goroutine at a time.
type Ctx struct {
	eng   *engine
	grad  bool
	scope *scope
	path  string // dotted module path, "" at the root
	lower DType  // of Autocast; Invalid: none

	noAttention string // why Attention is refused; "": it is not

	counts *DTypeCounts // nil: nobody counts
	onlyIf *Tensor      // of If; nil: always
	parted *PartedSum   // of linear layers; nil: their weights are whole

	key   uint64  // of the random stream
	pos   int64   // stream position of the micro-batch's first sample
	draws *uint64 // random ops and parts so far under key: the call ordinal. Shared by derived contexts.
}

// engine is what every Ctx derived from one NewCtx shares.
type engine struct {
	dev     *Device
	stream  backend.Stream
	call    backend.Call   // scratch; backends read it before Launch returns
	calls   []backend.Call // scratch of lists
	step    int64
	tracers []*tracer // empty: no trace

	lossMemory int64 // see Ctx.SetLossMemory; 0: the device's
}

// nodeSeq orders graph nodes by age across all contexts of the process.
var nodeSeq atomic.Uint64

// NewCtx returns a root context on dev: gradients on, no memory scope (tensors live
// until they are freed or garbage collected), random stream 0.
func NewCtx(dev *Device) *Ctx {
	return &Ctx{eng: &engine{dev: dev, stream: dev.be.NewStream()}, grad: true, draws: new(uint64)}
}

// Device is where the context's ops run.
func (c *Ctx) Device() *Device { return c.eng.dev }

// Sync waits until all kernels launched so far are done.
func (c *Ctx) Sync() { c.eng.stream.Sync() }

// Grad reports whether ops are recorded for Backward.
func (c *Ctx) Grad() bool { return c.grad }

// NoGrad returns a context whose ops are not recorded.
func (c *Ctx) NoGrad() *Ctx { return c.withGrad(false) }

// EnableGrad returns a context whose ops are recorded.
func (c *Ctx) EnableGrad() *Ctx { return c.withGrad(true) }

func (c *Ctx) withGrad(on bool) *Ctx {
	d := *c
	d.grad = on
	return &d
}

// SetStep sets the current optimizer step, which errors about freed tensors name.
func (c *Ctx) SetStep(step int64) { c.eng.step = step }

// Path is the dotted module path that errors and random keys use.
func (c *Ctx) Path() string { return c.path }

func (c *Ctx) where() string { return c.path }

// WithRandom returns a context whose random ops draw from the stream of seed, for a micro-batch whose first sample has
// the given position in the training stream. The numbers of sample s depend only on (seed, path and ordinal of the
// call, its stream position), not on batch size, number of ranks or recomputation.
func (c *Ctx) WithRandom(seed uint64, position int64) *Ctx {
	d := *c
	d.key, d.pos, d.draws = rng.Key(seed, "", 0), position, new(uint64)
	return &d
}

// Sub returns a context for the part of the computation at the given path, which
// errors name. The part's random stream is derived from the path and from how many
// draws and parts came before it in c.
func (c *Ctx) Sub(path string) *Ctx {
	d := *c
	d.path, d.key, d.draws, d.parted = path, c.nextKey(path), new(uint64), nil
	return &d
}

// WithoutAttention returns a context that refuses Attention, for the reason why: where a context has only some of a
// sequence's tokens, attention among them would be another function. With "" it computes it again.
func (c *Ctx) WithoutAttention(why string) *Ctx {
	d := *c
	d.noAttention = why
	return &d
}

// Draws is the number of random ops and parts so far in c and the contexts that share its random stream.
func (c *Ctx) Draws() int { return int(*c.draws) }

// SkipDraws counts n random ops and parts that another context runs. Later ops draw the numbers that they would draw
// after them.
func (c *Ctx) SkipDraws(n int) { *c.draws += uint64(n) }

// RandomState is a place in a random stream. Ranks that compute what another one would exchange it.
type RandomState struct{ Key, Draws uint64 }

// RandomState is the place from which c draws next.
func (c *Ctx) RandomState() RandomState { return RandomState{c.key, *c.draws} }

// WithRandomState returns a context that draws the numbers that a context in the state s would draw next, for the same
// samples.
func (c *Ctx) WithRandomState(s RandomState) *Ctx {
	d := *c
	d.key, d.draws = s.Key, &s.Draws
	return &d
}

// nextKey derives the key of the next random op or part.
func (c *Ctx) nextKey(name string) uint64 {
	k := rng.Derive(c.key, name, *c.draws)
	*c.draws++
	return k
}
