package nn

import "github.com/lockstep-ml/lockstep/tensor"

// Tracker is implemented by modules with buffers that follow the batches of training.
type Tracker interface {
	// Track takes up the statistics that one forward pass of the module reported. It must
	// not keep them.
	Track(c *tensor.Ctx, stats []*tensor.Tensor)
}

// Observer gathers what modules report in training, in place of tracking it at once.
type Observer interface {
	// Observe is called during m's forward pass. It must copy what it keeps, and each
	// report of a module has tensors of the same shapes and dtypes.
	Observe(m Tracker, stats []*tensor.Tensor)
}

// WithObserver returns a context whose reports go to o.
func (c *Ctx) WithObserver(o Observer) *Ctx {
	d := *c
	d.observer = o
	return &d
}

// Report hands a batch's statistics, as m sees them, to the context's observer, or to m
// itself if there is none. Forward passes that are run again for gradients report
// nothing. Buffers thus move once per micro-batch and, under an observer that keeps an
// order, in one that does not depend on who computes which.
func (c *Ctx) Report(m Tracker, stats ...*tensor.Tensor) {
	switch {
	case c.again:
	case c.observer != nil:
		c.observer.Observe(m, stats)
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
