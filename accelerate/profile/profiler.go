// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

// Options say what is recorded and where it goes.
type Options struct {
	// Dir is the folder of trace_rank<r>.json, ops_rank<r>.txt and cpu_rank<r>.pprof. It is made if need be.
	Dir string
	// Rank is the number in the files' names and in the trace.
	Rank int
	// SkipFirst steps are not recorded: they fill caches and allocate. Active steps after them are.
	SkipFirst, Active int
	// Limit is the largest number of events of the trace, 100 bytes each; 0 is 500,000. The table counts those that the
	// trace leaves out, too.
	Limit int
	// Log gets the table; nil is slog.Default().
	Log *slog.Logger
}

// defaultLimit is the number of events that a trace may have: two dozen steps of a GPT-2 of 12 layers, in 50 MB.
const defaultLimit = 500_000

// Profiler records one rank. It belongs to the goroutine that runs the rank's steps. A nil *Profiler records nothing:
// its methods may be called.
type Profiler struct {
	o        Options
	c        *tensor.Ctx
	caller   context.Context // with the labels of the caller's goroutine
	ctx      context.Context // with the rank's
	untrace  func()          // ends the trace of kernels
	ceilings ceilings

	step     int // steps done
	on       bool
	written  bool
	begin    time.Time // of the recorded steps
	end      time.Time
	mark     time.Time // where the step under way began
	cpu      *os.File  // nil: the process's CPU profile is another's
	events   []event
	dropped  int
	kernels  map[string]*total
	phases   map[string]*total
	calls    map[string]*total
	inKernel time.Duration
}

// event is one piece of the trace. shape is that of a kernel's first output.
type event struct {
	lane         lane
	dims         uint8
	name, detail string
	shape        [tensor.MaxDims]int32
	start        time.Time
	length       time.Duration
	flops, bytes float64
}

// total adds up what has one name.
type total struct {
	name         string
	calls        int
	time         time.Duration
	flops, bytes float64
}

// New readies a profiler. Start begins.
func New(o Options) *Profiler {
	o.Limit, o.Log = cmp.Or(o.Limit, defaultLimit), cmp.Or(o.Log, slog.Default())
	return &Profiler{o: o, kernels: map[string]*total{}, phases: map[string]*total{}, calls: map[string]*total{}}
}

// Start measures the ceilings of c's device and, if no step is to be skipped, begins to record. ctx carries the pprof
// labels that the caller's goroutine has, to which rank and op are added.
func (p *Profiler) Start(ctx context.Context, c *tensor.Ctx) error {
	if p == nil {
		return nil
	}
	if err := os.MkdirAll(p.o.Dir, 0o755); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	p.c, p.caller, p.ctx = c, ctx, pprof.WithLabels(ctx, pprof.Labels("rank", strconv.Itoa(p.o.Rank)))
	p.ceilings = measureCeilings(c)
	if p.o.SkipFirst == 0 {
		return p.activate()
	}
	return nil
}

// Step tells that an optimizer step is done. After the last recorded one the files are written.
func (p *Profiler) Step() error {
	if p == nil || p.written {
		return nil
	}
	p.step++
	if now := time.Now(); p.on {
		p.keep(event{lane: laneSteps, name: fmt.Sprintf("step %d", p.step), start: p.mark, length: now.Sub(p.mark)})
		p.mark = now
	}
	switch p.step {
	case p.o.SkipFirst + p.o.Active:
		return p.finish()
	case p.o.SkipFirst:
		return p.activate()
	}
	return nil
}

// Done reports whether all steps were recorded, and the files written.
func (p *Profiler) Done() bool { return p != nil && p.written }

// Close ends a profile whose steps have not all come, and writes what there is.
func (p *Profiler) Close() error {
	if p == nil || p.written || !p.on {
		return nil
	}
	return p.finish()
}

func (p *Profiler) activate() error {
	f, err := os.Create(p.path("cpu", "pprof"))
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil { // a process has one: another rank's, or the program's own
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
	} else {
		p.cpu = f
	}
	pprof.SetGoroutineLabels(p.ctx)
	p.on, p.begin = true, time.Now()
	p.mark = p.begin
	p.untrace = p.c.Trace(p.ctx, p.kernel)
	return nil
}

func (p *Profiler) finish() error {
	p.untrace()
	pprof.SetGoroutineLabels(p.caller)
	p.on, p.written, p.end = false, true, time.Now()
	var errs []error
	if p.cpu != nil {
		pprof.StopCPUProfile()
		errs = append(errs, p.cpu.Close())
	}
	errs = append(errs, p.write("trace", "json", p.trace), p.write("ops", "txt", p.table))
	p.events = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	p.logTable()
	return nil
}

// path names a file of this rank.
func (p *Profiler) path(what, extension string) string {
	return filepath.Join(p.o.Dir, fmt.Sprintf("%s_rank%d.%s", what, p.o.Rank, extension))
}

// Span takes in a span: hand it to trace.Listeners.Listen (accelerate.Accelerator.Trace).
func (p *Profiler) Span(s trace.Span) {
	if p == nil || !p.on {
		return
	}
	start := s.Start
	if start.Before(p.begin) { // it began before the recording did
		start = p.begin
	}
	e := event{name: s.Name, detail: s.Detail, start: start, length: s.End.Sub(start), bytes: float64(s.Bytes)}
	switch s.Name {
	case "bucket", "collective":
		e.lane = laneCollectives
		if s.Name == "collective" {
			e.name, e.detail = s.Detail, ""
		}
		p.count(p.calls, s.Name, &e)
	default:
		e.lane = lanePhases
		p.count(p.phases, s.Name, &e)
	}
	p.keep(e)
}

// kernel takes in a kernel.
func (p *Profiler) kernel(k tensor.KernelSpan) {
	e := event{lane: laneKernels, name: k.Name, detail: k.Path, dims: uint8(k.Dims), start: k.Start,
		length: k.End.Sub(k.Start), flops: k.FLOPs, bytes: k.Bytes}
	for d, n := range k.Shape[:k.Dims] {
		e.shape[d] = int32(n)
	}
	p.inKernel += e.length
	p.count(p.kernels, k.Name, &e)
	p.keep(e)
}

func (p *Profiler) count(in map[string]*total, name string, e *event) {
	t := in[name]
	if t == nil {
		t = &total{name: name}
		in[name] = t
	}
	t.calls++
	t.time += e.length
	t.flops += e.flops
	t.bytes += e.bytes
}

func (p *Profiler) keep(e event) {
	if len(p.events) < p.o.Limit {
		p.events = append(p.events, e)
	} else {
		p.dropped++
	}
}
