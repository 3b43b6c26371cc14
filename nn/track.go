// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Tracker is implemented by modules with buffers that follow the batches of training.
type Tracker interface {
	// Track updates the buffers with the statistics that one forward pass of the module
	// reported. It must not keep the tensors.
	Track(c *tensor.Ctx, stats []*tensor.Tensor)
}

// Observer collects what modules report in training, instead of tracking it at once.
type Observer interface {
	// Observe is called during m's forward pass. It must copy what it keeps. All reports
	// of a module have tensors of the same shapes and dtypes.
	Observe(m Tracker, stats []*tensor.Tensor)
}

// WithObserver returns a context whose reports go to o, too.
func (c *Ctx) WithObserver(o Observer) *Ctx {
	d := *c
	d.observers = append(slices.Clip(c.observers), o)
	return &d
}

// Report passes m's statistics of a batch to the context's observers, or to m itself if
// there are none. Forward passes that are repeated for gradients report nothing. So
// buffers are updated once per micro-batch and, with an observer that keeps an order, in
// an order that does not depend on which rank computed which batch.
func (c *Ctx) Report(m Tracker, stats ...*tensor.Tensor) {
	switch {
	case c.again:
	case len(c.observers) > 0:
		for _, o := range c.observers {
			o.Observe(m, stats)
		}
	default:
		t := c.NoGrad()
		t.Scope(func(t *tensor.Ctx) []*tensor.Tensor {
			m.Track(t, stats)
			return nil
		})
	}
}

// Trackers lists the modules that track statistics, in the order of the walk.
func (t *Tree) Trackers() []Tracker {
	var list []Tracker
	for _, n := range t.modules {
		if m, ok := n.module.(Tracker); ok {
			list = append(list, m)
		}
	}
	return list
}
