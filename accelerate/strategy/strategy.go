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
)

// Job is what a strategy works with: the model on this rank, and the ranks.
type Job struct {
	Ctx    *tensor.Ctx // of the rank, without a memory scope
	Tree   *nn.Tree    // of the model; all ranks have the same values
	Model  nn.Module
	Params []tensor.Named        // those that are trained, in registration order
	Units  []nn.Module           // the model's blocks, such as its layers
	Layout samplers.WindowLayout // how samples are cut into windows
	// DeterministicRanks is the argument: on up to so many ranks the sums of gradients have the same bits.
	DeterministicRanks int
	Peers              Peers
	Main               bool // the rank logs for all of them
	Log                *slog.Logger
}

// Accumulator makes the sum of the micro-batches that this rank computes.
func (j *Job) Accumulator() *accumulation.Accumulator {
	return accumulation.New(j.Ctx.NoGrad(), j.Params, int(j.Layout.MicroBatches()), j.DeterministicRanks)
}

// Peers are the ranks of a job by what they have to do with this one; nil stands for this rank alone.
type Peers struct {
	Data     *comm.Group // those that see other samples
	Loss     *comm.Group // those whose loss terms and gradients are summed
	Shards   *comm.Group // those over which a sharded model is spread
	Replicas *comm.Group // those that own the same shard as this one
}

// Strategy is how ranks train a model together. It belongs to one goroutine.
//
// The life of a window: Open; for each micro-batch of this rank Begin, the backward pass with its calls of Ready, and
// End; then Finish, Norm, the optimizer's step, and Stepped. Reset ends it, or gives it up. All ranks call the methods
// that take a context in the same order.
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
	// Local reports whether Norm is that of the gradients of Trained here, and Stepped does nothing: then the host does
	// not wait for the device before the optimizer's step.
	Local() bool
	// Stepped makes known what the optimizers did. changed: they did something.
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
	// Gathers reports whether all ranks must compute at the same time, since they gather parameters: a rank without a
	// batch of its own then repeats another.
	Gathers() bool
	// Summon calls f, which may use parameters outside of forward passes: they are gathered when f uses them, and go
	// after a while. With write the parameters keep what f makes of them; it must make the same on every rank. It is
	// collective: on every rank f uses the same parameters in the same order.
	Summon(write bool, f func() error) error
	// Alone calls f, which other ranks do not call. It must not use parameters that other ranks have parts of: f ends
	// with an error then.
	Alone(f func() error) error
	// Memory is what the rank holds of the model.
	Memory() Memory
	// Describe says how the model is spread, in a few words for a log.
	Describe() string
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
