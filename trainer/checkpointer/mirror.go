// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// chunk is how many bytes of a file travel at a time.
const chunk = 4 << 20

// mirrors reports whether each host has its own output_dir, into which its first rank writes what rank 0 saves.
func (c *Checkpointer) mirrors() bool {
	return c.Args.SaveOnEachNode && c.Ranks.WorldSize() > 1 && !c.OneHost
}

// Writes reports whether this rank writes into output_dir by itself: rank 0, and under save_on_each_node the first rank
// of each other host.
func (c *Checkpointer) Writes() bool { return c.Ranks.Rank() == 0 || c.mirrors() && c.First }

// checkMirrors makes it an error of the start if save_on_each_node cannot be had.
func (c *Checkpointer) checkMirrors() error {
	switch {
	case !c.mirrors():
		return nil
	case c.Args.AsyncSave:
		return Refuse("save_on_each_node sends each checkpoint to the other hosts while training waits: want " +
			"async_save false")
	case c.scatters():
		return Refuse("save_on_each_node: every rank writes a part of each checkpoint (fsdp_state_dict_type %s): "+
			"want %s", args.ShardedStateDict, args.FullStateDict)
	}
	if _, _, ok := c.Hook.HookState(); ok && !c.Args.SaveOnlyModel {
		return Refuse("save_on_each_node: every rank writes the state of its communication hook: want an output_dir " +
			"that all hosts share")
	}
	return nil
}

// mirrored is what rank 0 tells of what it has saved.
type mirrored struct {
	Name  string              `json:"name"` // of the checkpoint; "" if files were saved
	Saved checkpoint.Manifest `json:"saved"`
	Keep  []string            `json:"keep"` // the checkpoints of the run that rank 0 has
	Err   string              `json:"err"`
}

// Mirror brings the checkpoint that rank 0 has saved to the other hosts under save_on_each_node, and deletes there what
// rank 0 has deleted. All ranks call it, with their results of Save; then an error of one is one of all.
func (c *Checkpointer) Mirror(ctx context.Context, info checkpoint.Info, failed error) error {
	if !c.mirrors() {
		return failed
	}
	m := mirrored{Saved: info.Manifest}
	if c.Ranks.Rank() == 0 && failed == nil {
		m.Name = info.Name()
		m.Keep, failed = c.kept(info.RunID)
	}
	return c.send(ctx, m, info.Path, failed, func(m mirrored, parts []checkpoint.Part) error {
		if _, err := c.Store.Copy(ctx, m.Name, m.Saved, parts); err != nil {
			return err
		}
		if _, err := c.Store.Rotate(1, m.Saved.RunID, m.Keep...); err != nil {
			c.Log.Warn("save_on_each_node: old checkpoints could not be deleted", "err", err)
		}
		return nil
	})
}

// kept names the checkpoints of a run.
func (c *Checkpointer) kept(run string) (names []string, err error) {
	list, err := c.Store.List()
	for _, info := range list {
		if info.RunID == run {
			names = append(names, info.Name())
		}
	}
	return names, err
}

var errClosed = errors.New("save_on_each_node: the other hosts received no files, because this rank has left the " +
	"group: want SaveModel on all ranks before Close")

// mirrorFiles brings the files of a saved model to the other hosts.
func (c *Checkpointer) mirrorFiles(ctx context.Context, to *checkpoint.Store, files []checkpoint.File,
	failed error) error {
	if !c.mirrors() {
		return failed
	}
	return c.send(ctx, mirrored{Saved: checkpoint.Manifest{Files: files}}, to.Dir, failed,
		func(m mirrored, parts []checkpoint.Part) error {
			written, err := replaceModel(ctx, to, parts)
			for i := range written {
				if err == nil && written[i] != m.Saved.Files[i] {
					err = fmt.Errorf("%s differs from the file of rank 0", written[i].Name)
				}
			}
			return err
		})
}

// send sends the files of a folder of rank 0 to the first rank of each other host, which writes them. It is collective.
func (c *Checkpointer) send(ctx context.Context, m mirrored, dir string, failed error,
	write func(mirrored, []checkpoint.Part) error) error {
	ctx = context.WithoutCancel(ctx)
	if c.Ranks.Group() == nil {
		return errors.Join(failed, errClosed)
	}
	if err := c.failTogether(ctx, failed); err != nil {
		return err
	}
	if err := comm.BroadcastObject(ctx, c.Ranks.Group(), &m, 0); err != nil {
		return err
	}
	var err error
	switch files := m.Saved.Files; {
	case c.Ranks.Rank() == 0:
		err = c.sendFiles(ctx, dir, files)
	case c.First:
		err = c.receive(ctx, files, func(parts []checkpoint.Part) error { return write(m, parts) })
	default:
		err = c.each(ctx, files, func(int, []byte) error { return nil })
	}
	if err = c.failTogether(ctx, err); err != nil {
		return fmt.Errorf("save_on_each_node: %w", err)
	}
	return nil
}

// each goes through the bytes of files, as many at a time as travel. f sees them on all ranks; what it puts there on
// rank 0 is sent. An error of f is returned when all have been sent.
func (c *Checkpointer) each(ctx context.Context, files []checkpoint.File, f func(file int, part []byte) error) error {
	var failed error
	buffer := make([]byte, chunk)
	for i, file := range files {
		for left := file.Size; left > 0; {
			part := buffer[:min(left, chunk)]
			left -= int64(len(part))
			if c.Ranks.Rank() == 0 && failed == nil {
				failed = f(i, part)
			}
			err := c.Ranks.Group().Broadcast(comm.Of(part), 0, comm.Label("save_on_each_node")).Wait(ctx)
			if err != nil {
				return errors.Join(failed, err)
			}
			if c.Ranks.Rank() != 0 && failed == nil {
				failed = f(i, part)
			}
		}
	}
	return failed
}

func (c *Checkpointer) sendFiles(ctx context.Context, dir string, files []checkpoint.File) (err error) {
	disk := c.Store.FS
	if disk == nil {
		disk = vfs.OS
	}
	var open io.ReadCloser
	at := -1
	defer func() {
		if open != nil {
			err = errors.Join(err, open.Close())
		}
	}()
	return c.each(ctx, files, func(file int, part []byte) error {
		if file != at {
			if open != nil {
				_ = open.Close() // which was only read
			}
			f, err := disk.Open(filepath.Join(dir, files[file].Name))
			if err != nil {
				open = nil
				return err
			}
			open, at = f, file
		}
		_, err := io.ReadFull(open, part)
		return err
	})
}

// receive gives write the files that rank 0 sends. write takes them in their order.
func (c *Checkpointer) receive(ctx context.Context, files []checkpoint.File,
	write func([]checkpoint.Part) error) error {
	readers, writers := make([]*io.PipeReader, len(files)), make([]*io.PipeWriter, len(files))
	parts := make([]checkpoint.Part, len(files))
	for i, file := range files {
		readers[i], writers[i] = io.Pipe()
		parts[i] = checkpoint.Part{Name: file.Name, Write: func(w io.Writer) error {
			_, err := io.CopyN(w, readers[i], file.Size)
			return err
		}}
	}
	done := make(chan error, 1)
	go func() {
		err := write(parts)
		for _, r := range readers {
			_ = r.Close() // so that what still comes is dropped
		}
		done <- err
	}()
	lost := c.each(ctx, files, func(file int, part []byte) error {
		_, _ = writers[file].Write(part) // an error is write's, which has ended
		return nil
	})
	for _, w := range writers {
		_ = w.CloseWithError(cmp.Or(lost, io.ErrUnexpectedEOF))
	}
	return errors.Join(lost, <-done)
}
