// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/tensor"
)

// DefaultTimeout is the deadline of a call where nothing else is said: ddp_timeout's default in HuggingFace's
// TrainingArguments.
const DefaultTimeout = 30 * time.Minute

// Options are the options of a group. All ranks must pass the same ones, except for FlightDir and Log.
type Options struct {
	Name    string        // "" is "world"
	Timeout time.Duration // of each call; 0 is DefaultTimeout
	// reductions may combine in any order: bits then differ between engines and numbers of ranks, never between ranks
	FastOrder  bool
	Devices    string       // device engine for tensors on devices, as "nccl"; "": they go through host memory
	FlightSize int          // calls that the flight recorder keeps; 0 is 1024
	FlightDir  string       // folder that the flight record is written to when the group fails; "" writes none
	Log        *slog.Logger // nil: slog.Default()
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, "world")
	o.Timeout = cmp.Or(max(o.Timeout, 0), DefaultTimeout)
	o.FlightSize = cmp.Or(max(o.FlightSize, 0), 1024)
	o.Log = cmp.Or(o.Log, slog.Default())
	return o
}

// Group is one rank's part in a set of ranks that work together. Its methods may be called from several goroutines, as
// long as all ranks issue collective calls in the same order; messages between two ranks are ordered for themselves.
// After the first error the group is dead: every later call returns that error, on every rank. Close it in any case.
type Group struct {
	engine  Engine
	unique  string       // in the job: other sub-groups may have the same name
	members []int        // job ranks, by rank
	devices DeviceEngine // nil: none
	opts    Options
	flight  *recorder
	family  *family

	collective *queue
	running    atomic.Pointer[Handle] // in that queue

	mu       sync.Mutex // guards what follows
	messages map[stream]*queue
	subs     int // sub-groups made, on all ranks alike
	err      error
	closed   bool // by this rank: nothing new begins
	left     bool // what other ranks do is no longer this rank's business

	dead     chan struct{}
	recorded chan struct{} // closed when fail has written the flight record, or has decided against one

	starting  atomic.Bool // see Starting
	unwritten atomic.Bool // a rank was lost: the record is for the first call that fails of it

	allocated atomic.Int64 // bytes

	watching sync.WaitGroup
	queues   map[*tensor.Device][]*tensor.Queue // for staging, not in use; guarded by mu

	stopWatch context.CancelFunc // by Close, or when the group fails
}

// stream is the messages to or from one rank.
type stream struct {
	peer int
	op   Op
}

// New returns a group over an engine. It is for engines: programs get their group from comm/local, comm/shm or
// comm/tcp.
func New(e Engine, opts Options) *Group { return newGroup(e, "", nil, opts, &family{}) }

func newGroup(e Engine, unique string, members []int, opts Options, f *family) *Group {
	opts = opts.withDefaults()
	watched, stop := context.WithCancel(context.Background())
	g := &Group{engine: e, unique: cmp.Or(unique, opts.Name), members: members, opts: opts, family: f,
		messages: map[stream]*queue{}, dead: make(chan struct{}), recorded: make(chan struct{}), stopWatch: stop,
		flight: newRecorder(opts.FlightSize)}
	f.add(g)
	g.collective = newQueue(g.execute)
	devices, err := newDevices(e, opts)
	g.devices = devices
	e.OnFailure(g.fail)
	if err != nil {
		g.reject(err)
	}
	if p, ok := e.(Prober); ok && e.Size() > 1 {
		if _, pid := p.Process(e.Rank()); pid != 0 {
			g.watching.Go(func() { g.watch(watched, p) })
		}
	}
	return g
}

// Name returns the group's name: "world", or a sub-group's path below it.
func (g *Group) Name() string { return g.opts.Name }

// Rank returns this rank's number, in [0, Size).
func (g *Group) Rank() int { return g.engine.Rank() }

// Size returns the number of ranks.
func (g *Group) Size() int { return g.engine.Size() }

// JobRank returns the number in the job, that is in the group of all ranks, of rank r of this group: PyTorch's
// get_global_rank.
func (g *Group) JobRank(r int) int { return jobRank(g.members, r) }

// Describe names the engine and the path that its bytes take.
func (g *Group) Describe() Info {
	info := g.engine.Describe()
	if g.devices != nil {
		info.Path += "; between devices by " + g.devices.Describe()
	}
	return info
}

// DeviceLibrary names the library that exchanges tensors between devices, with its version; "" where none does.
func (g *Group) DeviceLibrary() string {
	if g.devices == nil {
		return ""
	}
	return g.devices.Describe()
}

// Dead is closed when the group has failed; Err then says why.
func (g *Group) Dead() <-chan struct{} { return g.dead }

// Err returns the error that killed the group, ErrClosed after Close, or nil.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil && g.closed {
		return ErrClosed
	}
	return g.err
}

// Alloc returns n zeroed bytes, aligned to 64, that the engine reduces in place: in shared memory for comm/shm,
// ordinary memory elsewhere. All ranks call it with the same n, in the same order relative to other collective calls,
// and it waits for those before it.
func (g *Group) Alloc(n int) (*Memory, error) {
	if n < 0 {
		return nil, g.reject(fmt.Errorf("comm: Alloc of %d bytes", n))
	}
	return g.alloc("alloc", g.engine.Alloc, n, n)
}

// SharesMemory reports whether the ranks can have memory together, see AllocShared.
func (g *Group) SharesMemory() bool {
	_, ok := g.engine.(Sharer)
	return ok
}

// AllocShared returns n zeroed bytes, aligned to 64, that all ranks share: after a call such as Barrier the others read
// what one has written. The group must have an engine for the ranks of one host, see SharesMemory. All ranks call it
// with the same n, as they call Alloc.
func (g *Group) AllocShared(n int) (*Memory, error) {
	s, ok := g.engine.(Sharer)
	if !ok || n < 0 {
		return nil,
			g.reject(fmt.Errorf("comm: AllocShared of %d bytes with the engine %s: want at least 0, and an engine "+
				"for the ranks of one host, local or shm", n, g.Describe().Name))
	}
	return g.alloc("shared alloc", s.AllocShared, n, n/g.Size())
}

// alloc returns n bytes of an engine's memory. Allocated counts this rank's part of them until they are freed.
func (g *Group) alloc(what string, engine func(int) (*Memory, error), n, part int) (*Memory, error) {
	if err := g.agree(what, fmt.Sprint(n)); err != nil {
		return nil, err
	}
	m, err := engine(n)
	if err != nil {
		return nil, g.reject(fmt.Errorf("comm: %s of %d bytes: %w", what, n, err))
	}
	g.allocated.Add(int64(part))
	return NewMemory(m.Bytes, func() error {
		g.allocated.Add(-int64(part))
		return m.Free()
	}), nil
}

// Allocated is the number of bytes of this rank's Alloc, and of its part of AllocShared.
func (g *Group) Allocated() int64 { return g.allocated.Load() }

// Sent is how many bytes this rank has sent in calls of this group, of its sub-groups, and of the group that it is a
// sub-group of, by the measure of [Call.Sent]: that of messages, whatever the engine makes of them. Ranks that share
// memory move less.
func (g *Group) Sent() int64 { return g.family.sent.Load() }

// agree is a barrier that fails on all ranks if they differ in what they are about to do.
func (g *Group) agree(what, how string) error {
	h := g.Barrier(Label(what), Layout(Hash(how)))
	<-h.done
	return h.err
}

// Abort kills the group on every rank: calls that run and all later ones return an *AbortError that names this rank and
// err. If err holds an error of this package, such as the one that another group died of, they return that: the rank
// that it names is the cause.
func (g *Group) Abort(err error) {
	if err == nil {
		err = errors.New("no reason given")
	}
	g.fail(g.ours(err))
}

// Starting says whether the job is being set up. While it is, and before the first call has ended, an Abort writes no
// flight record: its reason is a setting or a file, and not what ranks exchanged.
func (g *Group) Starting(on bool) { g.starting.Store(on) }

// reject kills the group for a mistake of this rank, for which the others would wait, and returns the error that later
// calls will.
func (g *Group) reject(err error) error {
	g.Abort(err)
	return g.Err()
}

// ours is the package's error in err, else an *AbortError of this rank.
func (g *Group) ours(err error) error {
	var t travelling
	if t.find(err) {
		return t.error()
	}
	return &AbortError{Group: g.opts.Name, Rank: g.JobRank(g.Rank()), GroupRank: g.Rank(), Message: err.Error(),
		cause: err}
}

// fail makes err the group's error, if it is the first, and tells the other ranks.
func (g *Group) fail(err error) {
	err = g.named(err)
	g.mu.Lock()
	if g.err != nil || g.left {
		g.mu.Unlock()
		return
	}
	g.err = err
	close(g.dead)
	g.mu.Unlock()
	defer close(g.recorded)
	g.stopWatch()
	g.engine.Abort(err)
	if g.devices != nil {
		g.devices.Abort(err)
	}
	g.flight.fail(err)
	if _, aborted := err.(*AbortError); aborted && (g.starting.Load() || !g.flight.finished()) {
		return // the error says all, and no call went wrong
	}
	if _, lost := err.(*RankLostError); lost {
		// A rank whose work is done and whose process has ended is lost, too, and harms nobody: even a call that is
		// under way here may have all that it needs.
		g.unwritten.Store(true)
		return
	}
	g.writeFlight()
}

// awaitRecord waits until the flight record of a group that has failed is written: a program that is told of the
// failure may end at once.
func (g *Group) awaitRecord() {
	select {
	case <-g.dead:
		<-g.recorded
	default: // closed by this rank, not failed
	}
}

// writeFlight writes the record of a group that has failed.
func (g *Group) writeFlight() {
	if g.opts.FlightDir == "" {
		return
	}
	name, e := g.DumpFlight(g.opts.FlightDir)
	if e != nil {
		g.opts.Log.Error("comm: the flight record could not be written", "group", g.opts.Name, "rank",
			g.JobRank(g.Rank()), "error", e)
		return
	}
	g.opts.Log.Warn("flight record written: lockstep debug flight reads it", "file", name)
}

// named gives errors the group's name, which engines need not know, and that of a lost rank the call that the loss
// ended. Those of other groups keep theirs.
func (g *Group) named(err error) error {
	switch e := err.(type) {
	case *AbortError:
		if e.Group == "" {
			named := *e
			named.Group = g.opts.Name
			return &named
		}
	case *RankLostError:
		if e.Group != "" && e.Group != g.opts.Name {
			return err
		}
		named := *e
		named.Group = g.opts.Name
		if h := g.running.Load(); h != nil && named.Call == "" {
			named.Call = h.call.Signature.String()
		}
		return &named
	}
	return err
}

// Close lets the calls that were issued finish (each has its deadline), then leaves the group. Waiting for a rank that
// has left is a *RankLostError.
func (g *Group) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	queues := []*queue{g.collective}
	for _, q := range g.messages {
		queues = append(queues, q)
	}
	g.mu.Unlock()
	for _, q := range queues {
		q.close()
	}
	g.mu.Lock()
	g.left = true
	g.mu.Unlock()
	g.stopWatch()
	g.watching.Wait()
	g.family.remove(g)
	g.awaitRecord() // the others hear why before they hear that this rank has left
	if g.devices == nil {
		return g.engine.Close()
	}
	return errors.Join(g.devices.Close(), g.engine.Close())
}

// execute runs one call on a queue's goroutine.
func (g *Group) execute(h *Handle) {
	defer h.call.Queued() // if it was not
	g.mu.Lock()
	err := g.err
	g.mu.Unlock()
	var s *staging
	carried := g.carried(&h.call)
	if err == nil && !carried && (h.call.from != nil || h.call.to != nil) {
		if s, err = g.stage(&h.call); err != nil {
			g.fail(err)
			err = g.Err()
		}
	}
	if err == nil {
		h.call.Deadline = time.Now().Add(h.call.Timeout)
		g.flight.start(h.entry)
		if !h.call.Op.PointToPoint() {
			g.running.Store(h)
			defer g.running.Store(nil)
		}
		if err = g.run(&h.call, carried); err == nil && s != nil {
			err = s.finish(&h.call)
		}
		if err != nil {
			g.fail(err)
			err = g.Err() // the first error, whoever found it
		}
	}
	if err == nil {
		g.family.sent.Add(h.call.Sent(g.Rank(), g.Size()))
	} else {
		g.awaitRecord() // which says that this call was under way
	}
	g.flight.finish(h.entry, err)
	if err != nil && g.unwritten.CompareAndSwap(true, false) {
		g.writeFlight()
	}
	h.finish(err)
}

// Overlap says whether calls that a device engine carries run beside the rank's other work, as they do at first. If
// not, such a call has ended, on all ranks, when the method that issues it returns: so no rank makes its device load
// kernels or take memory while work there waits for another rank, which may end in a deadlock of the driver. It holds
// for sub-groups and for the group that g is a sub-group of. All ranks call it at the same place of their calls.
func (g *Group) Overlap(on bool) { g.family.apart.Store(!on) }

// Overlaps reports what Overlap said last.
func (g *Group) Overlaps() bool { return !g.family.apart.Load() }

// run lets an engine carry a call out.
func (g *Group) run(c *Call, onDevice bool) error {
	if g.devices != nil && !c.Op.PointToPoint() {
		if err := Meet(g.engine, c); err != nil {
			return err
		}
	}
	if onDevice {
		if err := g.awaitTurn(c); err != nil {
			return err
		}
		err := g.devices.Run(c, c.from, c.to)
		if err == nil && c.apart {
			c.Queued() // or another group's call would wait for this one's ranks
			err = Meet(g.engine, c)
		}
		return err
	}
	return g.engine.Run(c)
}

// submit gives a call its number and its place in a queue.
func (g *Group) submit(c Call, options []CallOption) *Handle {
	h := &Handle{done: make(chan struct{}), call: c}
	h.call.Group, h.call.members = g.opts.Name, g.members
	h.call.Timeout, h.call.Fast = g.opts.Timeout, g.opts.FastOrder && c.Op.Reduces()
	for _, o := range options {
		h.call.apply(o)
	}
	var place *line
	if g.carried(&h.call) {
		place = &g.family.line
		h.call.apart = g.family.apart.Load()
	}
	if q := g.queueFor(&h.call); q == nil || !q.push(h, g.flight, place) {
		h.finish(ErrClosed)
	}
	if h.call.apart {
		<-h.done
	}
	return h
}

func (c *Call) apply(o CallOption) {
	if o.label != "" {
		c.Label = o.label
		if len(o.label) > MaxLabel {
			c.Layout ^= Hash(o.label)
		}
	}
	if o.layout != 0 {
		c.Layout ^= o.layout
	}
	if o.timeout > 0 {
		c.Timeout = o.timeout
	}
}

// queueFor returns the queue of a call, nil if the group is closed.
func (g *Group) queueFor(c *Call) *queue {
	if !c.Op.PointToPoint() {
		return g.collective
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	key := stream{peer: c.Root, op: c.Op}
	if g.messages[key] == nil {
		g.messages[key] = newQueue(g.execute)
	}
	return g.messages[key]
}
