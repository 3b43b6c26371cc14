// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/checkpoint"
)

// background is a checkpoint that is written while training continues (async_save).
type background struct {
	step int64
	done chan struct{}
	info checkpoint.Info
	err  error
}

// writeLater begins to write a checkpoint whose state was copied, and rotates the old ones behind it.
func (r *run) writeLater(write func() (checkpoint.Info, error)) {
	b := &background{step: r.state.GlobalStep, done: make(chan struct{})}
	c, keep, id := r.checkpointer(), r.checkpointer().Keep(r.state), r.progress.RunID
	r.writing = b
	go func() {
		defer close(b.done)
		b.err = protect(func() (err error) {
			if b.info, err = write(); err == nil {
				c.Rotate(id, keep)
			}
			return err
		})
	}()
}

// settle reports how a checkpoint that is written in the background ended, if it has; with wait it waits for it.
func (r *run) settle(wait bool) error {
	b := r.writing
	if b == nil {
		return nil
	}
	if !wait {
		select {
		case <-b.done:
		default:
			return nil
		}
	}
	<-b.done
	r.writing = nil
	if b.err != nil {
		return fmt.Errorf("trainer: the checkpoint of step %d, which was written in the background: %w", b.step, b.err)
	}
	r.checkpoint, r.completed = b.info.Path, b.info.Path
	return nil
}
