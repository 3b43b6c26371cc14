// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/bits"
	"runtime"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/fake"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/backend/meta"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Rehearsal is a training step of one rank of a pipeline that was run without values: what it allocates, computes and
// sends. Bytes are of tensors alone.
type Rehearsal struct {
	Stages     []StageWork // of the rank, in ascending order
	Parameters int64       // bytes of the parameters of its stages
	Gradients  int64       // bytes of their finished gradients
	Sums       int64       // the most bytes of gradients and their partial sums at a time
	Held       int64       // the most bytes that are none of these between two actions: activations and messages
	State      int64       // bytes of the optimizer's state
	Peak       int64       // the most bytes in use at a time, all of these included
	// Outputs, Inputs and Tied are the bytes that the rank sends: outputs of its stages, gradients of their inputs, and
	// gradients of parameters that are on two ranks, or of rows of them.
	Outputs, Inputs, Tied int64
	Beside                []int64 // bytes that it sends in passes along each of Scene.Beside
	// Spread is what it holds under Config.Strategy. Parameters, Gradients and Sums are those of whole stages.
	Spread strategy.Memory
}

// StageWork is what a stage does for a micro-batch.
type StageWork struct {
	Stage int
	// StageCosts are its passes' mean times; those of I and W are together in Input if the schedule has B. Activation
	// is the bytes that F leaves in use, with what it received.
	schedule.StageCosts
	// Output and InputGradient are the bytes that it sends to the next and to the previous stage; 0 where these are on
	// the same rank.
	Output, InputGradient int64
	Parameters, Gradients int64 // bytes
}

// Scene is what is rehearsed.
type Scene struct {
	// Config has no Group; its Job.Ctx is of the device without values, where Model was made by nn.Init.Deferred.
	Config
	Batches []*data.Batch
	// Beside are the groups in which a pass sums or exchanges something, on engines that move nothing: those of ranks
	// along tp and cp.
	Beside []Beside
	// Optimizer makes that of the rank's parameters; nil: there is none.
	Optimizer func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error)
}

// Beside is a group of a rank that is rehearsed.
type Beside struct {
	Engine *fake.Engine
	Time   func(calls int, bytes int64) float64 // of calls that send so much; nil: they take none
}

// asked is how many calls there were, and the bytes that they send. A sum over all ranks is scattered and gathered.
func (b Beside) asked() (calls int, bytes int64) {
	for op, t := range b.Engine.Totals() {
		bytes += t.Bytes
		switch op {
		case comm.Recv:
		case comm.AllReduce:
			calls += 2 * t.Calls
		default:
			calls += t.Calls
		}
	}
	return calls, bytes
}

// rehearsal is a Rehearsal in the making.
type rehearsal struct {
	Rehearsal
	beside []Beside
	calls  []int   // along each of beside, before the action under way, and
	moved  []int64 // their bytes
	engine *fake.Engine
	dev    *tensor.Device
	at     map[int]int   // of Stages
	alive  map[int]int64 // sums of each gradient of a stage
	counts bool          // whether the step does
	spent  float64       // time of the kernels of the action under way
	used   int64         // bytes in use, and
	sent   int64         // bytes sent, before it
}

// Rehearse runs two training steps as a rank of a pipeline on a device without values, over an engine that moves
// nothing, and reports the second. on is the device of the real run, nil for the CPU. scene gives the scene for the
// device without values, and cost is the time of a kernel. Messages arrive at once: a real rank may hold some for
// longer.
func Rehearse(on *tensor.Device, rank int, cost func(tensor.KernelSpan) float64,
	scene func(dev *tensor.Device) (Scene, error)) (*Rehearsal, error) {
	counter := meta.Like(joint.Backend(cmp.Or(on, tensor.CPU())))
	dev := joint.Device[*tensor.Device](counter)
	defer dev.Close()
	sc, err := scene(dev)
	if err != nil {
		return nil, err
	}
	cfg := sc.Config
	n := len(sc.Beside)
	r := &rehearsal{dev: dev, at: map[int]int{}, alive: map[int]int64{}, beside: sc.Beside, calls: make([]int, n),
		moved: make([]int64, n)}
	r.Beside = make([]int64, n)
	cfg.Group, r.engine = fake.New(rank, len(cfg.Schedule.Ranks), comm.Options{Log: slog.New(slog.DiscardHandler)})
	defer cfg.Group.Close()
	sc.giveUp(rank)
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	defer p.Close(false)
	for _, n := range cfg.Schedule.StagesOf(rank) {
		r.at[n] = len(r.Stages)
		w := StageWork{Stage: n}
		w.Parameters, w.Gradients = sizes(Parameters(cfg.Job.Tree, cfg.Stages[n]))
		r.Stages = append(r.Stages, w)
	}
	r.Parameters, r.Gradients = sizes(p.Params())
	p.observe = r.observe
	defer cfg.Job.Ctx.Trace(context.Background(), func(k tensor.KernelSpan) { r.spent += cost(k) })()
	step := func() error {
		counter.ResetPeak()
		_, err := p.Step(context.Background(), sc.Batches, 1)
		return err
	}
	var opt *optim.Optimizer
	if err = step(); err == nil && sc.Optimizer != nil {
		used := dev.MemStats().InUse
		if opt, err = sc.Optimizer(cfg.Job.Ctx.NoGrad(), p.Trained()); err == nil {
			opt.Step(cfg.Job.Ctx.NoGrad())
			err = p.Stepped(context.Background(), true)
		}
		r.State = dev.MemStats().InUse - used
	}
	before := r.bytes()
	r.counts = true
	if err == nil {
		err = step()
	}
	if err != nil {
		return nil, fmt.Errorf("pp: rehearsal of rank %d: %w", rank, err)
	}
	runtime.KeepAlive(opt) // with its state
	r.Spread = (&Strategy{Pipeline: p}).Memory()
	r.finish(len(sc.Batches))
	r.Tied = r.bytes() - before - r.Outputs - r.Inputs
	return &r.Rehearsal, nil
}

// giveUp frees the parts of matrices that are of other ranks' stages.
func (sc *Scene) giveUp(rank int) {
	mine := map[*tensor.Tensor]bool{}
	for _, n := range sc.Schedule.StagesOf(rank) {
		for _, q := range Parameters(sc.Job.Tree, sc.Stages[n]) {
			mine[q.Tensor] = true
		}
	}
	for _, q := range sc.Job.Tree.Parameters() {
		if !mine[q.Tensor] && !q.Unloaded() {
			q.Free()
		}
	}
}

// sizes are the bytes of parameters and of their gradients.
func sizes(list []tensor.Named) (params, grads int64) {
	for _, q := range list {
		params += int64(q.Bytes())
		if q.IsLeaf() {
			grads += int64(q.Numel() * q.GradDType().Size())
		}
	}
	return params, grads
}

// finish makes means of sums over the micro-batches.
func (r *rehearsal) finish(microBatches int) {
	r.Peak, r.Sums = r.dev.MemStats().Peak, max(r.Sums, r.Gradients)
	n := float64(microBatches)
	for i := range r.Stages {
		s := &r.Stages[i]
		s.Forward, s.Input, s.Weight, s.Activation = s.Forward/n, s.Input/n, s.Weight/n, s.Activation/n
		s.Output, s.InputGradient = s.Output/int64(microBatches), s.InputGradient/int64(microBatches)
	}
}

// bytes are those that the rank has sent.
func (r *rehearsal) bytes() int64 { return r.engine.Totals()[comm.Send].Bytes }

// observe adds up an action, which begins, or has ended.
func (r *rehearsal) observe(run *runner, a schedule.Action, ended bool) {
	run.settle()
	used, sent := r.dev.MemStats().InUse, r.bytes()
	if !ended {
		r.spent, r.used, r.sent = 0, used, sent
		for i, b := range r.beside {
			r.calls[i], r.moved[i] = b.asked()
		}
		return
	}
	if !r.counts {
		return
	}
	r.exchanged()
	sums := r.gradients(run, a)
	r.Sums, r.Held = max(r.Sums, sums), max(r.Held, used-sums-r.Parameters-r.State)
	s := &r.Stages[r.at[a.Stage]]
	switch a.Op {
	case schedule.RecvF:
		s.Activation += float64(used - r.used)
	case schedule.F:
		s.Forward += r.spent
		s.Activation += float64(used - r.used)
	case schedule.I, schedule.B:
		s.Input += r.spent
	case schedule.W:
		s.Weight += r.spent
	case schedule.SendF:
		s.Output += sent - r.sent
		r.Outputs += sent - r.sent
	case schedule.SendB:
		s.InputGradient += sent - r.sent
		r.Inputs += sent - r.sent
	}
}

// exchanged adds what an action has exchanged along tp and cp.
func (r *rehearsal) exchanged() {
	for i, b := range r.beside {
		calls, bytes := b.asked()
		r.Beside[i] += bytes - r.moved[i]
		if b.Time != nil {
			r.spent += b.Time(calls-r.calls[i], bytes-r.moved[i])
		}
	}
}

// gradients are the bytes of this rank's gradients and their partial sums after an action. The tree of sums has one
// for each bit of the number of groups of micro-batches that are complete, and the group under way has one.
func (r *rehearsal) gradients(run *runner, a schedule.Action) (n int64) {
	if a.Op == schedule.W || a.Op == schedule.B {
		micro := run.cfg.Schedule.MicroBatches
		group := a.MicroBatch / (micro / accumulation.Groups(micro, run.cfg.Job.DeterministicRanks))
		r.alive[a.Stage] = int64(bits.OnesCount(uint(group)) + 1)
	}
	for _, w := range r.Stages {
		n += r.alive[w.Stage] * w.Gradients
	}
	for _, t := range run.ties { // which the last of its stages adds up
		n -= r.alive[t.first] * int64(t.param.Numel()*t.param.GradDType().Size())
	}
	return n
}

// settle waits for all messages that are under way and frees those that were sent, so that memory does not depend on
// how fast they are.
func (r *runner) settle() {
	list := slices.Concat(r.sent, slices.Collect(maps.Values(r.inputs)), slices.Collect(maps.Values(r.grads)))
	for _, w := range r.tied {
		for _, l := range w.lookup {
			list = append(list, l.rows, l.values)
		}
	}
	for _, p := range list {
		_ = p.wait(r.ctx)
	}
	r.reap()
}
