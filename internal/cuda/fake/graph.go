// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// node is a command that may become part of a graph.
type node struct {
	run    func(params []byte) error
	params []byte
	kernel *function // nil for other commands
}

// graph is what a capture made.
type graph struct {
	d      *device
	by     string // the goroutine that captures
	broken error  // what ended the capture

	mu      sync.Mutex
	nodes   []node
	kernels []int // of nodes
	under   int   // launches that are not done
	closed  bool

	turn sync.Mutex // of launches: one after the other
}

// goroutine names the caller's.
func goroutine() string {
	var b [64]byte
	name, _, _ := bytes.Cut(b[:runtime.Stack(b[:], false)], []byte(" ["))
	return string(name)
}

// count counts a call.
func (s *stream) count() { s.d.driver.calls.Add(1) }

// direct counts a call that no capture takes, and spoils one that is under way.
func (s *stream) direct(call string) error {
	s.count()
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.into == nil {
		return nil
	}
	return s.into.spoil(call)
}

func (g *graph) spoil(call string) error {
	err := failed(call, unsupported, "the stream captures")
	if g.broken == nil {
		g.broken = err
	}
	return err
}

// uncaptured is the error of a call that the goroutine must not make while it captures.
func (d *device) uncaptured(call string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.into) == 0 {
		return nil
	}
	by := goroutine()
	for _, g := range d.into {
		if g.by == by {
			return g.spoil(call)
		}
	}
	return nil
}

// captured takes a command into the graph that the stream makes, if it makes one.
func (s *stream) captured(n node) bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	g := s.into
	if g == nil {
		return false
	}
	if n.kernel != nil {
		g.kernels = append(g.kernels, len(g.nodes))
	}
	g.nodes = append(g.nodes, n)
	return true
}

// Capture makes a graph of what f queues.
func (s *stream) Capture(f func() error) (cuda.Graph, error) {
	if err := errors.Join(s.d.lost(), s.direct("cuStreamBeginCapture")); err != nil {
		return nil, err
	}
	s.d.capturing.RLock()
	defer s.d.capturing.RUnlock()
	g := &graph{d: s.d, by: goroutine()}
	s.d.mu.Lock()
	s.into, s.d.into = g, append(s.d.into, g)
	s.d.mu.Unlock()
	defer func() {
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		s.into = nil
		s.d.into = slices.DeleteFunc(s.d.into, func(x *graph) bool { return x == g })
	}()
	if err := f(); err != nil {
		return nil, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if g.broken != nil {
		return nil, failed("cuStreamEndCapture", invalidated, "%v", g.broken)
	}
	s.d.graphs++
	return g, nil
}

// Launch queues the commands with the parameters that they have now.
func (g *graph) Launch(to cuda.Stream) error {
	s, ok := to.(*stream)
	if !ok || s.d != g.d {
		return failed("cuGraphLaunch", invalidValue, "a stream of another device")
	}
	if err := errors.Join(s.direct("cuGraphLaunch"), g.d.lost()); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return failed("cuGraphLaunch", invalidHandle, "a graph that was destroyed")
	}
	g.under++
	nodes := slices.Clone(g.nodes)
	return s.push(true, func() error {
		defer g.done()
		g.turn.Lock()
		defer g.turn.Unlock()
		for i, n := range nodes {
			if g.d.lost() != nil {
				return nil
			}
			if i > 0 {
				s.pause()
			}
			if err := n.run(n.params); err != nil {
				return err
			}
		}
		return nil
	})
}

func (g *graph) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.under--
}

// SetParams changes what later launches run.
func (g *graph) SetParams(i int, params []byte) error {
	const call = "cuGraphExecKernelNodeSetParams"
	g.d.driver.calls.Add(1)
	g.mu.Lock()
	defer g.mu.Unlock()
	if i < 0 || i >= len(g.kernels) {
		return failed(call, invalidValue, "kernel %d of %d", i, len(g.kernels))
	}
	n := &g.nodes[g.kernels[i]]
	if len(params) != len(n.params) {
		return failed(call, invalidValue, "%s: %d bytes of parameters: want %d", n.kernel.name, len(params),
			len(n.params))
	}
	n.params = slices.Clone(params)
	return nil
}

// Close destroys the graph. The real one outlives its launches; here a graph that is under way stays and is an error,
// since nobody should rely on it.
func (g *graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return failed("cuGraphExecDestroy", invalidHandle, "a graph that was destroyed")
	case g.under > 0:
		return failed("cuGraphExecDestroy", invalidValue, "%d launches of the graph are not done", g.under)
	}
	g.closed = true
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	g.d.graphs--
	return nil
}
