// SPDX-License-Identifier: Apache-2.0

package checkpointer_test

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// one is a rank of a group.
type one struct{ g *comm.Group }

func (o one) Rank() int          { return o.g.Rank() }
func (o one) WorldSize() int     { return o.g.Size() }
func (o one) Group() *comm.Group { return o.g }
func (o one) GatherBytes(ctx context.Context, mine []byte) ([][]byte, error) {
	return comm.AllGatherObject(ctx, o.g, mine)
}

// hosts runs f on three ranks: the first has a host of its own, the others share one.
func hosts(t *testing.T, disks [2]vfs.FS, set func(*args.TrainingArguments),
	f func(*checkpointer.Checkpointer, *optim.Optimizer) error) (errs [3]error) {
	var group sync.WaitGroup
	for rank, g := range local.New(3, comm.Options{}) {
		c, opt := newRun(t, disks[min(rank, 1)], uint64(rank+1))
		c.Ranks, c.First = one{g}, rank < 2
		c.Args.SaveOnEachNode = true
		c.Beside = []checkpoint.Part{checkpoint.BytesPart("big.bin", slices.Repeat([]byte("0123456789"), 1<<20))}
		set(c.Args)
		group.Go(func() { errs[rank] = f(c, opt) })
	}
	group.Wait()
	return errs
}

func saveOnHosts(c *checkpointer.Checkpointer, opt *optim.Optimizer) error {
	ctx := context.Background()
	release, err := c.Claim(ctx, false)
	if err != nil {
		return err
	}
	defer release()
	for _, step := range []int64{2, 4, 6} {
		info, err := c.Save(ctx, counter(step), opt)
		if err == nil && c.Ranks.Rank() == 0 {
			c.Rotate("a run", nil)
		}
		if err := c.Mirror(ctx, info, err); err != nil {
			return err
		}
	}
	return c.SaveModel("")
}

// Each host has the files of rank 0, and its ranks resume from them.
func TestEachHostHasWhatRankZeroSaves(t *testing.T) {
	disks := [2]vfs.FS{vfs.NewMem(), vfs.NewMem()}
	limit := 2
	errs := hosts(t, disks, func(a *args.TrainingArguments) { a.SaveTotalLimit = &limit }, saveOnHosts)
	require.Equal(t, [3]error{}, errs)
	var names [2][]string
	for i, disk := range disks {
		for _, dir := range []string{"out", "out/checkpoint-6"} {
			entries, err := disk.ReadDir(dir)
			require.NoError(t, err)
			for _, e := range entries {
				name := filepath.Join(dir, e.Name())
				names[i] = append(names[i], name)
				if e.IsDir() || e.Name() == checkpoint.LockFile {
					continue
				}
				mine, err := vfs.ReadFile(disk, name, 1<<30)
				require.NoError(t, err)
				first, err := vfs.ReadFile(disks[0], name, 1<<30)
				require.NoError(t, err)
				require.True(t, string(first) == string(mine), name)
			}
		}
	}
	require.Equal(t, names[0], names[1])
	require.Contains(t, names[1], filepath.Join("out", "model.safetensors"))
	require.NotContains(t, names[1], filepath.Join("out", "checkpoint-2"))

	var models [3]map[string][]byte
	errs = hosts(t, disks, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" },
		func(c *checkpointer.Checkpointer, opt *optim.Optimizer) error {
			ck, err := c.Open(context.Background(), "", false)
			if err != nil {
				return err
			}
			err = c.Restore(context.Background(), ck, opt)
			models[c.Ranks.Rank()] = values(c, opt)
			return err
		})
	require.Equal(t, [3]error{}, errs)
	require.Equal(t, models[0], models[1])
	require.Equal(t, models[0], models[2])
}

// A full disk of any host is an error of all ranks, and nobody waits.
func TestAHostThatCannotWriteFailsAll(t *testing.T) {
	full := errors.New("disk full")
	for host := range 2 {
		for _, n := range []int{2, 4, 9} { // of the files, folders and syncs of a save
			disks := [2]vfs.FS{vfs.NewMem(), vfs.NewMem()}
			inject, _ := errorfs.From(n, errorfs.Kind.Changes, full)
			disks[host] = errorfs.Wrap(disks[host], inject)
			errs := hosts(t, disks, func(*args.TrainingArguments) {}, saveOnHosts)
			for _, err := range errs {
				require.ErrorContains(t, err, "disk full", "host %d, %d", host, n)
			}
		}
	}
}

// What cannot be sent is an error of the start.
func TestSaveOnEachNodeRefuses(t *testing.T) {
	for want, set := range map[string]func(*args.TrainingArguments){
		"want async_save false": func(a *args.TrainingArguments) { a.AsyncSave = true },
		"":                      func(*args.TrainingArguments) {},
	} {
		for _, err := range hosts(t, [2]vfs.FS{vfs.NewMem(), vfs.NewMem()}, set,
			func(c *checkpointer.Checkpointer, _ *optim.Optimizer) error {
				return c.CheckShared(context.Background())
			}) {
			if want == "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, want)
		}
	}
	shared := vfs.NewMem()
	for _, err := range hosts(t, [2]vfs.FS{shared, shared}, func(*args.TrainingArguments) {}, saveOnHosts) {
		require.ErrorContains(t, err, "is in use by")
		require.ErrorContains(t, err, "save_on_each_node")
	}
}

// Ranks of one host share its disk, and a rank that has left the others cannot reach them.
func TestModelsAreSentToOtherHostsAlone(t *testing.T) {
	disks := [2]vfs.FS{vfs.NewMem(), vfs.NewMem()}
	left := func(oneHost bool) [3]error {
		return hosts(t, disks, func(*args.TrainingArguments) {},
			func(c *checkpointer.Checkpointer, _ *optim.Optimizer) error {
				c.Ranks, c.OneHost = gone{c.Ranks.Rank()}, oneHost
				return c.SaveModel("")
			})
	}
	require.Equal(t, [3]error{}, left(true))
	_, err := disks[1].ReadDir("out")
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, err := range left(false) {
		require.ErrorContains(t, err, "want SaveModel on all ranks before Close")
	}
}

// gone is a rank of three whose group is closed.
type gone struct{ rank int }

func (g gone) Rank() int          { return g.rank }
func (g gone) WorldSize() int     { return 3 }
func (g gone) Group() *comm.Group { return nil }
func (g gone) GatherBytes(_ context.Context, mine []byte) ([][]byte, error) {
	return [][]byte{mine}, nil
}
