// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
)

// send puts a message into the channel to one rank, piece by piece, and returns when it has been taken.
func (e *Engine) send(c *comm.Call) error {
	to := c.Root
	ch := e.Channel(e.rank, to)
	c.Encode(ch.head[:])
	ch.box = Box{}
	step := len(c.In)
	visible := e.Publish(&ch.box, c.In)
	stage := e.ChannelStage(e.rank, to)
	if !visible {
		step = len(stage)
	}
	for lo := 0; ; lo += step {
		if !visible {
			copy(stage, c.In[lo:])
		}
		e.sent[to]++
		e.raise(&ch.posted, e.sent[to])
		if err := e.await(&ch.taken, e.sent[to], to, c, only(to)); err != nil {
			return err
		}
		if lo+step >= len(c.In) {
			return nil
		}
	}
}

// receive takes the next message out of the channel from one rank.
func (e *Engine) receive(c *comm.Call) error {
	from := c.Root
	ch := e.Channel(from, e.rank)
	if err := e.await(&ch.posted, e.received[from]+1, from, c, only(from)); err != nil {
		return err
	}
	if err := comm.CompareMessage(c, e.rank, ch.head[:comm.SignatureBytes]); err != nil {
		return err
	}
	if ch.box.Segment != 0 {
		view, err := e.View(from, &ch.box, len(c.Out))
		if err != nil {
			return fmt.Errorf("comm: %v: %w", c.Signature, err)
		}
		copy(c.Out, view)
		e.received[from]++
		e.raise(&ch.taken, e.received[from])
		return nil
	}
	stage := e.ChannelStage(from, e.rank)
	for lo := 0; ; lo += len(stage) {
		if lo < len(c.Out) {
			copy(c.Out[lo:], stage)
		}
		e.received[from]++
		e.raise(&ch.taken, e.received[from])
		if lo+len(stage) >= len(c.Out) {
			return nil
		}
		if err := e.await(&ch.posted, e.received[from]+1, from, c, only(from)); err != nil {
			return err
		}
	}
}

func only(rank int) func() []int { return func() []int { return []int{rank} } }
