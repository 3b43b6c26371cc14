// SPDX-License-Identifier: Apache-2.0

package comm

import "github.com/lockstep-ml/lockstep/tensor"

// staging is the way of a call's tensors through host memory.
type staging struct {
	g     *Group
	queue *tensor.Queue // nil: everything lies in host memory
	dev   *tensor.Device
}

// CountsOnly reports whether the group's calls move nothing, as those of comm/fake: what is in the buffers does not
// matter.
func (g *Group) CountsOnly() bool {
	_, counts := g.engine.(interface{ CountsOnly() })
	return counts
}

// stage waits until the call's tensors are ready. Those that do not lie in host memory, or in a file, whose faults only
// copies report, are copied there; In and Out are the host's bytes afterwards. It is nil where nothing is copied.
func (g *Group) stage(c *Call) (*staging, error) {
	if g.CountsOnly() && !onHost(c.from) && !onHost(c.to) {
		return nil, nil
	}
	s := &staging{g: g}
	return s, tensor.Try(func() {
		if m := c.from; onHost(m) {
			m.Wait()
		} else if m != nil {
			c.In = room(c.In, m)
			s.on(m.Device()).Read(c.In, m)
		}
		switch m := c.to; {
		case m == nil:
		case m == c.from:
			c.Out = c.In
		case onHost(m):
			m.Wait()
		default:
			c.Out = room(c.Out, m)
		}
	})
}

// onHost reports whether a tensor lies in host memory; nil is none.
func onHost(m *tensor.Memory) bool {
	if m == nil {
		return false
	}
	_, host := m.Host()
	return host
}

// room is the host memory for a tensor: what the caller gave, or new.
func room(given []byte, m *tensor.Memory) []byte {
	if len(given) == m.Len() {
		return given
	}
	return Aligned(m.Len())
}

// finish copies the result to where it belongs.
func (s *staging) finish(c *Call) error {
	return tensor.Try(func() {
		if m := c.to; m != nil && !onHost(m) {
			s.on(m.Device()).Write(m, c.Out)
		}
		if s.queue != nil { // after a fault it is not used again
			s.g.mu.Lock()
			s.g.queues[s.dev] = append(s.g.queues[s.dev], s.queue)
			s.g.mu.Unlock()
		}
	})
}

// on is a queue of the device.
func (s *staging) on(dev *tensor.Device) *tensor.Queue {
	if s.queue != nil && s.dev == dev {
		return s.queue
	}
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queues == nil {
		g.queues = map[*tensor.Device][]*tensor.Queue{}
	}
	if s.queue != nil {
		g.queues[s.dev] = append(g.queues[s.dev], s.queue)
	}
	s.dev = dev
	if free := g.queues[dev]; len(free) > 0 {
		s.queue, g.queues[dev] = free[len(free)-1], free[:len(free)-1]
	} else {
		s.queue = dev.NewQueue()
	}
	return s.queue
}
