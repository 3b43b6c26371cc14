// SPDX-License-Identifier: Apache-2.0

//go:build unix

package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/window"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

const (
	stageBytes        = 1 << 20   // of a rank's staging area: two halves that stay in the caches
	channelStageBytes = 128 << 10 // of a channel's
)

// fabric implements [window.Fabric] for the ranks of one group.
type fabric struct {
	*rendezvous.Membership // since Bind

	job     *rendezvous.Job
	group   string
	members []int // ranks in the job
	rank    int
	kind    kind

	control [][]byte // by rank: the segment with its slot, channels and stages
	own     *segment // this rank's

	mu     sync.Mutex
	shared []*allocation // by number; nil when freed
	rounds int           // exchanges made
}

// allocation is one piece of memory from Alloc, as this rank sees it.
type allocation struct {
	own   *segment
	views [][]byte // by rank
}

// newFabric maps the control segments of all members; all of them call it.
func newFabric(job *rendezvous.Job, group string, members []int, k kind) (*fabric, error) {
	f := &fabric{job: job, group: group, members: members, rank: slices.Index(members, job.Rank), kind: k}
	own, views, err := f.expose(int(f.controlBytes()))
	if err != nil {
		return nil, err
	}
	f.own, f.control = own, views
	job.Hold()
	return f, nil
}

// Offsets in a control segment.
func (f *fabric) channels() uintptr { return unsafe.Sizeof(window.Slot{}) }
func (f *fabric) stage() uintptr {
	return (f.channels() + uintptr(len(f.members))*unsafe.Sizeof(window.Channel{}) + 4095) &^ 4095
}
func (f *fabric) channelStages() uintptr { return f.stage() + stageBytes }
func (f *fabric) controlBytes() uintptr {
	return f.channelStages() + uintptr(len(f.members))*channelStageBytes
}

// expose makes a segment of n bytes on each rank and maps them all on each; all ranks call it with the same n.
func (f *fabric) expose(n int) (*segment, [][]byte, error) {
	return f.exposeSizes(slices.Repeat([]int{n}, len(f.members)))
}

// exposeSizes makes a segment of sizes[rank] bytes on each rank and maps them all on each. It fails on all of them if
// it fails on one, and then tries the other kind of segment.
func (f *fabric) exposeSizes(sizes []int) (*segment, [][]byte, error) {
	page := os.Getpagesize()
	for r, n := range sizes {
		sizes[r] = (max(n, 1) + page - 1) / page * page
	}
	own, views, err := f.tryExpose(f.kind, sizes)
	if err == nil || f.kind == named {
		return own, views, err
	}
	own, views, second := f.tryExpose(named, sizes)
	if second != nil {
		return nil, nil, errors.Join(err, second)
	}
	f.kind = named
	return own, views, nil
}

func (f *fabric) tryExpose(k kind, sizes []int) (*segment, [][]byte, error) {
	own, mine, _ := makeSegment(k, sizes[f.rank]) // the error travels in the ticket
	ctx, cancel := context.WithTimeout(context.Background(), f.job.Timeout)
	defer cancel()
	tickets, err := f.job.Exchange(ctx, f.key(), f.members, mine.encode())
	var views [][]byte
	if err == nil {
		views, err = f.openAll(tickets, own, sizes)
		err = errors.Join(f.job.Agree(f.key(), f.members, err))
	}
	if own != nil {
		own.settle()
	}
	if err == nil {
		return own, views, nil
	}
	err = errors.Join(err, f.unmapOthers(views))
	if own != nil {
		err = errors.Join(err, own.free())
	}
	return nil, nil, fmt.Errorf("comm/shm: %s segments of %d bytes: %w", k, slices.Max(sizes), err)
}

// key is that of the next exchange, the same on all ranks.
func (f *fabric) key() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rounds++
	return fmt.Sprintf("shm/%s/%d", f.group, f.rounds)
}

func (f *fabric) Rank() int { return f.rank }

func (f *fabric) Size() int { return len(f.members) }

func (f *fabric) Describe() comm.Info {
	return comm.Info{Name: "shm", Path: fmt.Sprintf("shared memory of %d processes on one host (%s segments)",
		len(f.members), f.kind)}
}

func (f *fabric) Slot(rank int) *window.Slot {
	return (*window.Slot)(unsafe.Pointer(unsafe.SliceData(f.control[rank])))
}

func (f *fabric) Channel(from, to int) *window.Channel {
	at := f.channels() + uintptr(to)*unsafe.Sizeof(window.Channel{})
	return (*window.Channel)(unsafe.Pointer(&f.control[from][at]))
}

func (f *fabric) Stage(rank int) []byte { return f.control[rank][f.stage():][:stageBytes] }

func (f *fabric) ChannelStage(from, to int) []byte {
	return f.control[from][f.channelStages()+uintptr(to)*channelStageBytes:][:channelStageBytes]
}

func (f *fabric) Publish(box *window.Box, buffer []byte) bool {
	if len(buffer) == 0 {
		return false
	}
	at := uintptr(unsafe.Pointer(&buffer[0]))
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, a := range f.shared {
		if a == nil || a.own.memory == nil {
			continue
		}
		base := uintptr(unsafe.Pointer(&a.own.memory[0]))
		if at >= base && at+uintptr(len(buffer)) <= base+uintptr(len(a.own.memory)) {
			*box = window.Box{Segment: uint64(i) + 1, Offset: uint64(at - base), Length: uint64(len(buffer))}
			return true
		}
	}
	return false
}

// View trusts nothing that it reads: another process wrote it.
func (f *fabric) View(rank int, box *window.Box, n int) ([]byte, error) {
	b := *box
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.Segment == 0 || b.Segment > uint64(len(f.shared)) || f.shared[b.Segment-1] == nil {
		return nil, fmt.Errorf("a buffer in segment %d, which does not exist", b.Segment)
	}
	memory := f.shared[b.Segment-1].views[rank]
	if b.Length != uint64(n) || b.Offset > uint64(len(memory)) || b.Length > uint64(len(memory))-b.Offset {
		return nil, fmt.Errorf("a buffer of %d bytes at %d in a segment of %d: want %d bytes", b.Length, b.Offset,
			len(memory), n)
	}
	return memory[b.Offset : b.Offset+b.Length : b.Offset+b.Length], nil
}

func (f *fabric) Park(word *atomic.Uint32, old uint32, d time.Duration) { park(word, old, d) }

func (f *fabric) Unpark(word *atomic.Uint32) { unpark(word) }

func (f *fabric) Alloc(n int) (*comm.Memory, error) {
	own, views, err := f.expose(n)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shared = append(f.shared, &allocation{own: own, views: views})
	number := len(f.shared) - 1
	return comm.NewMemory(own.memory[:n:n], func() error { return f.free(number) }), nil
}

// AllocShared gives all ranks the segment of rank 0.
func (f *fabric) AllocShared(n int) (*comm.Memory, error) {
	sizes := make([]int, len(f.members))
	sizes[0] = n
	own, views, err := f.exposeSizes(sizes)
	if err != nil {
		return nil, err
	}
	together := views[0]
	views[0] = nil
	err = f.unmapOthers(views)
	free := own.free
	if f.rank > 0 {
		err = errors.Join(err, own.free())
		free = func() error { return unmap(together) }
	}
	return comm.NewMemory(together[:n:n], free), err
}

// free unmaps one allocation, the views of the other ranks' parts with it.
func (f *fabric) free(number int) error {
	f.mu.Lock()
	a := f.shared[number]
	f.shared[number] = nil
	f.mu.Unlock()
	return errors.Join(f.unmapOthers(a.views), a.own.free())
}

// unmapOthers unmaps the views of the other ranks' segments.
func (f *fabric) unmapOthers(views [][]byte) error {
	var errs []error
	for r, v := range views {
		if r != f.rank {
			errs = append(errs, unmap(v))
			views[r] = nil
		}
	}
	return errors.Join(errs...)
}

func (f *fabric) Split(name string, members []int) (window.Fabric, error) {
	sub, err := newFabric(f.job, name, comm.JobRanks(f.members, members), f.kind)
	if err != nil {
		return nil, err
	}
	return sub, nil
}

func (f *fabric) Bind(e *window.Engine) {
	f.Membership = f.job.Register("shm/"+f.group, f.members, rendezvous.Listener{Fail: e.Fail, Gone: e.Gone, At: e.At})
}

// Close unmaps everything but this rank's own part of allocations, which their owner may still read, and frees.
func (f *fabric) Close() error {
	f.Leave()
	var errs []error
	f.mu.Lock()
	for _, a := range f.shared {
		if a != nil {
			errs = append(errs, f.unmapOthers(a.views))
		}
	}
	f.mu.Unlock()
	errs = append(errs, f.unmapOthers(f.control), f.own.free(), f.job.Release())
	f.control = nil
	return errors.Join(errs...)
}

// openAll maps the segments of all ranks.
func (f *fabric) openAll(tickets [][]byte, own *segment, sizes []int) ([][]byte, error) {
	views := make([][]byte, len(tickets))
	for r, text := range tickets {
		t, err := decodeTicket(text)
		switch {
		case err == nil && r == f.rank && own != nil:
			views[r] = own.memory
			continue
		case err == nil && t.Error == "" && t.Bytes != sizes[r]:
			err = fmt.Errorf("a segment of %d bytes: want %d", t.Bytes, sizes[r])
		case err == nil:
			views[r], err = t.open()
		}
		if err != nil {
			return views, fmt.Errorf("segment of rank %d: %w", f.members[r], err)
		}
	}
	return views, nil
}
