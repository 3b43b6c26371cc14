// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// captureThreadLocal forbids the capturing thread, and no other, what could spoil a capture.
const captureThreadLocal = 1

// locks are held to read by whoever captures, and to write by whoever waits for a context: that is an error while a
// stream of the context captures. There is one for each CUdevice, since those who open a device share its context.
var locks sync.Map

func lockOf(number int32) *sync.RWMutex {
	l, _ := locks.LoadOrStore(number, &sync.RWMutex{})
	return l.(*sync.RWMutex)
}

// uncaptured is the error of a call that a capture does not take.
func uncaptured(call string) error {
	return &cuda.Error{Call: call, Code: cuda.Unsupported, Name: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}
}

// Capture makes a graph of what f calls. The capture begins and ends on one thread, with the context current.
func (s *stream) Capture(f func() error) (cuda.Graph, error) {
	if err := s.v.d.noGraphs; err != nil {
		return nil, err
	}
	if s.into != nil {
		return nil, uncaptured("cuStreamBeginCapture")
	}
	s.v.capturing.RLock()
	defer s.v.capturing.RUnlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	call := &s.v.d.f
	if err := s.v.call("cuStreamBeginCapture", call.streamBeginCapture, s.handle, captureThreadLocal); err != nil {
		return nil, err
	}
	g := &graph{v: s.v}
	s.into = g
	ended := false
	end := func() error {
		s.into, ended = nil, true
		return s.v.call("cuStreamEndCapture", call.streamEndCapture, s.handle, clib.Address(&g.graph))
	}
	defer func() {
		if !ended { // f panics
			_ = end()
			_ = g.Close()
		}
	}()
	err := f()
	err = errors.Join(err, end())
	if err == nil {
		err = s.v.call("cuGraphInstantiateWithFlags", call.graphInstantiate, clib.Address(&g.exec), g.graph, 0)
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// note keeps the node of the kernel that was captured last, and all that a change of its parameters must repeat.
func (s *stream) note(k *function, grid, block [3]uint32, shared int) error {
	var status int32
	var last, edges, count uintptr
	info, args := s.v.d.f.streamGetCaptureInfoV3, []uintptr{s.handle, clib.Address(&status), 0, 0,
		clib.Address(&last), clib.Address(&edges), clib.Address(&count)}
	if info == 0 { // it has no edges
		info, args = s.v.d.f.streamGetCaptureInfoV2, slices.Delete(args, 5, 6)
	}
	if err := s.v.call("cuStreamGetCaptureInfo", info, args...); err != nil {
		return err
	}
	if last == 0 || count != 1 {
		return fmt.Errorf("cuStreamGetCaptureInfo: %d nodes are the last of a stream: want 1", count)
	}
	n := node{handle: *(*uintptr)(clib.Pointer(last)), kernel: k.name}
	n.params = nodeParams{function: k.handle, grid: grid, block: block, shared: uint32(shared)}
	s.into.kernels = append(s.into.kernels, n)
	return nil
}

// graph is a CUgraph, whose nodes its CUgraphExec is known by.
type graph struct {
	v           *device
	graph, exec uintptr
	kernels     []node
}

// node is a kernel of a graph.
type node struct {
	handle uintptr
	kernel string
	params nodeParams
}

// nodeParams is CUDA_KERNEL_NODE_PARAMS_v2.
type nodeParams struct {
	function    uintptr
	grid, block [3]uint32
	shared      uint32
	_           uintptr // kernelParams
	extra       uintptr
	_, _        uintptr // kern, ctx
}

// Launch queues the graph.
func (g *graph) Launch(to cuda.Stream) error {
	s, ok := to.(*stream)
	if !ok || s.v.ctx != g.v.ctx {
		return errors.New("cuGraphLaunch: a stream of another device")
	}
	return g.v.call("cuGraphLaunch", g.v.d.f.graphLaunch, g.exec, s.handle)
}

// SetParams changes the parameters of a kernel.
func (g *graph) SetParams(i int, params []byte) error {
	if i < 0 || i >= len(g.kernels) {
		return fmt.Errorf("cuGraphExecKernelNodeSetParams: kernel %d of %d", i, len(g.kernels))
	}
	n := &g.kernels[i]
	p := frames.Get().(*frame)
	defer frames.Put(p)
	p.fill(params)
	p.node = n.params
	p.node.extra = clib.Address(&p.extra)
	err := g.v.call("cuGraphExecKernelNodeSetParams", g.v.d.f.graphExecSetParams, g.exec, n.handle,
		clib.Address(&p.node))
	runtime.KeepAlive(p)
	if err != nil {
		return fmt.Errorf("kernel %s: %w", n.kernel, err)
	}
	return nil
}

// Close destroys both.
func (g *graph) Close() error {
	var errs []error
	if g.exec != 0 {
		errs = append(errs, g.v.call("cuGraphExecDestroy", g.v.d.f.graphExecDestroy, g.exec))
	}
	if g.graph != 0 {
		errs = append(errs, g.v.call("cuGraphDestroy", g.v.d.f.graphDestroy, g.graph))
	}
	g.exec, g.graph = 0, 0
	return errors.Join(errs...)
}

// nodeParamsBytes is the size of CUDA_KERNEL_NODE_PARAMS_v2 in cuda.h.
const nodeParamsBytes = 72

var _ [nodeParamsBytes]byte = [unsafe.Sizeof(nodeParams{})]byte{}
