// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// dnn is the device's library of convolutions, opened when there is a first one.
type dnn struct {
	mu     sync.Mutex
	lib    cuda.Dnn
	none   bool // the machine has no library
	spaces map[cuda.Convolution]*plannedConvolution
}

// plannedConvolution is a convolution that was asked for before; there is one of each.
type plannedConvolution struct {
	cuda.Convolution
	space int // bytes of workspace; −1: the library has no algorithm
}

// convolved is what makes a convolution the same call.
type convolved struct {
	p     *plannedConvolution
	o     cuda.ConvolutionOperands
	space cuda.Ptr
}

// need opens the library and says how much workspace a convolution needs. lib is nil where the library cannot compute
// it: the answer is the same each time.
func (n *dnn) need(d *Device, c cuda.Convolution) (lib cuda.Dnn, p *plannedConvolution, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.none {
		return nil, nil, nil
	}
	if n.lib == nil {
		lib, err := d.dev.Dnn()
		if errors.Is(err, cuda.ErrNotFound) {
			n.none = true
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, err
		}
		n.lib, n.spaces = lib, map[cuda.Convolution]*plannedConvolution{}
	}
	p = n.spaces[c]
	if p == nil {
		space, err := n.lib.Workspace(c)
		switch {
		case errors.Is(err, cuda.ErrNoAlgorithm):
			space = -1
		case err != nil:
			return nil, nil, err
		}
		p = &plannedConvolution{c, space}
		n.spaces[c] = p
	}
	if p.space < 0 {
		return nil, nil, nil
	}
	return n.lib, p, nil
}

func (n *dnn) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lib == nil {
		return nil
	}
	err := n.lib.Close()
	n.lib = nil
	return err
}

// byLibrary queues a convolution or a gradient of one, if the library can compute it: it takes no images without
// pixels, which padding may surround. Nothing else is empty. The workspace is scratch, which the stream's later work
// uses again: an algorithm may want as much as its operands.
func (s *stream) byLibrary(way cuda.Direction, g *convolution, x, w, y *backend.View, accumulate bool) bool {
	if g.h*g.w == 0 {
		return false
	}
	o := cuda.ConvolutionOperands{X: s.addr(x), W: s.addr(w), Y: s.addr(y)}
	c := cuda.Convolution{Direction: way, Type: dataTypes[g.dt], TF32: s.d.compute(g.dt) == cuda.Compute32FTF32,
		N: g.n, C: g.c, H: g.h, W: g.w, K: g.o, R: g.kh, S: g.kw, P: g.oh, Q: g.ow, Stride: [2]int{g.sh, g.sw},
		Padding: [2]int{g.ph, g.pw}, Dilation: [2]int{g.dh, g.dw}, Accumulate: accumulate,
		Align: alignment(o.X, o.W, o.Y)}
	lib, p, err := s.d.dnn.need(s.d, c)
	s.must(err)
	if lib == nil {
		return false
	}
	var space cuda.Ptr
	if p.space > 0 {
		space = s.scratch(p.space)
	}
	s.d.counters.products.Add(1)
	call := convolved{p, o, space}
	s.must(s.q.library(call, func(q cuda.Stream) error {
		return lib.Convolve(q, call.p.Convolution, call.o, call.space)
	}))
	return true
}
