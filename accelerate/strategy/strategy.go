// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"
	"log/slog"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

// Job is what a strategy works with: the model on this rank, and the ranks.
type Job struct {
	Ctx    *tensor.Ctx    // of the rank, without a memory scope
	Tree   *nn.Tree       // of the model; all ranks have the same values
	Model  nn.Module      // nil: Held are those of a stage, and come by Access.Unshard alone
	Held   []tensor.Named // what the ranks train or spread of the model, in registration order
	Params []tensor.Named // those of Held that are trained
	Units  []nn.Module    // the model's blocks, such as its layers
	// Divided says which part of its matrices the rank has; nil: all.
	Divided *Divided
	Layout  samplers.WindowLayout // how samples are cut into windows
	Peers   Peers
	Main    bool // the rank logs for all of them
	Log     *slog.Logger
	Trace   *trace.Listeners // of the rank's steps; nil: nobody listens
	Exchange
}

// Exchange is what the arguments say of the exchange of gradients.
type Exchange struct {
	// DeterministicRanks (deterministic_ranks): on up to so many ranks the sums of gradients have the same bits.
	DeterministicRanks int
	// BucketBytes (ddp_bucket_cap_mb) is how much is sent together; 0 leaves it to the strategy.
	BucketBytes int
	// RequireUsed (not ddp_find_unused_parameters) makes it an error if a rank that took part in a step has a parameter
	// without a gradient.
	RequireUsed bool
	// StaticGraph (ddp_static_graph) is a promise that a rank's gradients come to the same parameters in all steps it
	// takes part in. Which are in use anywhere is then agreed in the first step alone.
	StaticGraph bool
}

// Factory makes the strategy of a job of several ranks.
type Factory struct {
	New func(Job) (Strategy, error)
	// Sharded spreads the model over the ranks: those of a job are Peers.Shards, unless they form another mesh. Else
	// they are Peers.Replicas.
	Sharded bool
	// Interleaved gives the ranks micro-batches round robin (samplers.WindowLayout), as strategies need that exchange
	// the gradients of each: the ranks of Peers.Shards if Sharded, else those of Peers.Data.
	Interleaved bool
}

// Accumulator makes the sum of the micro-batches that this rank computes.
func (j *Job) Accumulator() *accumulation.Accumulator {
	return accumulation.New(j.Ctx.NoGrad(), j.Params, int(j.Layout.MicroBatches()), j.DeterministicRanks)
}

// Placed is all that this rank has before a strategy cuts it: Held and, of a model, its buffers.
func (j *Job) Placed() (list []tensor.Placed) {
	for _, p := range j.Held {
		list = append(list, tensor.Placed{Placement: j.Place(p), Tensor: p.Tensor})
	}
	if j.Model == nil {
		return list
	}
	for _, b := range j.Tree.Buffers() {
		list = append(list, b.Placed())
	}
	return list
}

// Peers are the ranks of a job by what they have to do with this one; nil means this rank alone. A Factory gets a job
// with Loss.
type Peers struct {
	Data     *comm.Group // those that see other samples
	Loss     *comm.Group // those whose gradients are summed: they have the same stages, and see other tokens
	Shards   *comm.Group // those over which a sharded model is spread
	Tokens   *comm.Group // those of Shards that see other tokens of the same samples: their numbers follow each other
	Replicas *comm.Group // those that own the same shard as this one
}

// Strategy is how ranks train a model together. It belongs to one goroutine.
//
// The life of a window: Open; for each micro-batch of this rank Begin, the backward pass with its calls of Ready, and
// End; then Finish, Norm, the optimizer's step, and Stepped. Between Finish and Norm gradients may be scaled: those of
// Trained if parameters are cut (Shards.Cut), else of all parameters. Reset ends it, or gives it up. All ranks call the
// methods that take a context in the same order.
type Strategy interface {
	Passes
	Windows
	Updates
	Features
	// Close ends the exchange between the ranks. With whole it is collective, and parameters of which ranks had parts
	// are whole on every rank again.
	Close(whole bool) error
}

// Passes are the backward passes of a window.
type Passes interface {
	// Begin readies the backward pass of a micro-batch, by its number in the window; −1 for one that repeats another
	// rank's, to compute along with it. last: it is this rank's last of the window. The answer is whether gradients are
	// sent during the pass: then Ready is called for each trained parameter.
	Begin(microBatch int, last bool) (sends bool)
	// Ready announces that the gradient of trained parameter i is complete in the pass, or that it has none.
	Ready(i int)
	// End ends the pass.
	End()
}

// Windows are the optimizer steps, each with the gradients of several micro-batches.
type Windows interface {
	// Open readies the exchange for the next window.
	Open(ctx context.Context) error
	// Finish completes the sums of the window's gradients, which Trained has as gradients afterwards. A rank without a
	// micro-batch takes part.
	Finish(ctx context.Context) error
	// Reset forgets gradients.
	Reset()
}

// Updates are what optimizers do with gradients.
type Updates interface {
	// Trained is what this rank's optimizer updates: the trained parameters or, where Features has Shards, what the
	// rank owns of them, under the parameters' names. Parts of parameters that are cut are vectors.
	Trained() []tensor.Named
	// Norm is the L2 norm of the gradients of all trained parameters.
	Norm(ctx context.Context) (float64, error)
	// Local reports whether Norm is that of the gradients of Trained here, and Stepped does nothing and need not be
	// called: then the host does not wait for the device before the optimizer's step.
	Local() bool
	// Stepped makes known what the optimizers did. It ends every window that is not given up; changed is false if the
	// optimizers of all ranks left the step out, for a loss or norm that is not finite or for lack of loss terms.
	Stepped(ctx context.Context, changed bool) error
}

// Features are what some strategies have, nil where this one does not.
type Features interface {
	Shards() Shards         // the ranks' optimizers update a part each
	Parameters() Parameters // parameters are not at all times whole in this rank's memory
	Averages() Averages     // ranks step on their own, at times
}

// Parameters are those of a model that are not at all times whole in a rank's memory.
type Parameters interface {
	Access
	// Gathers reports whether all ranks must compute at the same time, since they gather parameters: a rank without its
	// own batch then repeats another.
	Gathers() bool
	// Memory is what the rank holds of the model.
	Memory() Memory
	// Describe says how the model is spread, in a few words for a log.
	Describe() string
}

// Access is the use of parameters outside of the passes of their units.
type Access interface {
	// Unshard begins to gather the parameters, which stay until as many calls of Reshard, whatever passes come and go
	// meanwhile. On every rank both come in the same order.
	Unshard()
	Reshard()
	// Summon calls f, which may use parameters outside of forward passes: they are gathered when f uses them, and go
	// after a while. With write the parameters keep what f makes of them; it must make the same on every rank. It is
	// collective: on every rank f uses the same parameters in the same order.
	Summon(write bool, f func() error) error
	// Alone calls f, which other ranks do not call. It must not use parameters that other ranks have parts of: f ends
	// with an error then.
	Alone(f func() error) error
}

// Averages are what ranks that step on their own do together: they average parameters every so many steps.
type Averages interface {
	// OnOwn reports whether the ranks step on their own in this window.
	OnOwn() bool
	// Average makes the parameters the means over the ranks. It is collective.
	Average(ctx context.Context) error
	// AverageState is Average that also averages the optimizer's state. It is collective.
	AverageState(ctx context.Context, opt *optim.Optimizer) error
	// SetSteps sets how many steps the job has done so far. It is collective.
	SetSteps(ctx context.Context, steps int64) error
}
