// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"errors"
	"io"

	"github.com/lockstep-ml/lockstep/checkpoint"
)

// errTogether is why a checkpoint cannot be written later.
var errTogether = errors.New("async_save: every rank writes a part of each checkpoint (fsdp_state_dict_type " +
	"sharded_state_dict, or a ddp_comm_hook with a state), so training waits for it: want async_save false, or " +
	"full_state_dict and a hook without a state")

// CheckLater makes it an error if async_save cannot be had.
func (c *Checkpointer) CheckLater() error {
	if !c.Args.AsyncSave {
		return nil
	}
	_, _, hook := c.Hook.HookState()
	if c.scatters() || hook && !c.Args.SaveOnlyModel {
		return errTogether
	}
	return nil
}

// Copy is Save that copies everything into memory and leaves the writing to its caller: training may continue while
// write runs. write is nil on ranks that have nothing to write. Copy is collective as Save is.
func (c *Checkpointer) Copy(ctx context.Context, loop Loop, opt Optimizer) (write func() (checkpoint.Info, error),
	err error) {
	if err := c.CheckLater(); err != nil {
		return nil, err
	}
	var parts []checkpoint.Part
	if c.Ranks.Rank() == 0 || c.Shards != nil {
		if parts, err = c.parts(ctx, loop, opt); err != nil {
			return nil, err
		}
	}
	if c.Ranks.Rank() != 0 {
		return nil, attend(parts)
	}
	for i, p := range parts {
		held := new(memory)
		if err := p.Write(held); err != nil {
			return nil, err
		}
		parts[i].Write = held.writeTo
	}
	return func() (checkpoint.Info, error) {
		return c.Store.Save(context.WithoutCancel(ctx), loop.Step, checkpoint.Content{RunID: loop.RunID, Parts: parts})
	}, nil
}

// memory is a file in memory, in pieces, so that it grows without being copied.
type memory struct{ pieces [][]byte }

const pieceSize = 4 << 20

func (m *memory) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		last := len(m.pieces) - 1
		if last < 0 || len(m.pieces[last]) == cap(m.pieces[last]) {
			size := 4 << 10
			if last >= 0 {
				size = pieceSize
			}
			m.pieces = append(m.pieces, make([]byte, 0, size))
			last++
		}
		k := min(len(p), cap(m.pieces[last])-len(m.pieces[last]))
		m.pieces[last], p = append(m.pieces[last], p[:k]...), p[k:]
	}
	return n, nil
}

func (m *memory) writeTo(w io.Writer) error {
	for _, piece := range m.pieces {
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	return nil
}
