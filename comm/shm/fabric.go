// SPDX-License-Identifier: Apache-2.0

//go:build unix

package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
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
	job     *rendezvous.Job
	group   string
	members []int // ranks in the job
	rank    int
	timeout time.Duration
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
func newFabric(job *rendezvous.Job, group string, members []int, timeout time.Duration, k kind) (*fabric, error) {
	f := &fabric{job: job, group: group, members: members, rank: slices.Index(members, job.Rank), timeout: timeout,
		kind: k}
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
	sizes := make([]int, len(f.members))
	for r := range sizes {
		sizes[r] = n
	}
	return f.exposeSizes(sizes)
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
	tickets, err := f.exchange(mine.encode())
	var views [][]byte
	if err == nil {
		views, err = f.openAll(tickets, own, sizes)
		err = f.agree(err)
	}
	if own != nil {
		own.settle()
	}
	if err == nil {
		return own, views, nil
	}
	for r, v := range views {
		if r != f.rank {
			err = errors.Join(err, unmap(v))
		}
	}
	if own != nil {
		err = errors.Join(err, own.free())
	}
	return nil, nil, fmt.Errorf("comm/shm: %s segments of %d bytes: %w", k, slices.Max(sizes), err)
}

// agree exchanges errors; it returns those of all ranks, so that all ranks go the same way.
func (f *fabric) agree(err error) error {
	var mine []byte
	if err != nil {
		mine = []byte(err.Error())
	}
	all, err := f.exchange(mine)
	if err != nil {
		return err
	}
	var faults []string
	for r, text := range all {
		if len(text) > 0 {
			faults = append(faults, fmt.Sprintf("rank %d: %s", f.members[r], text))
		}
	}
	if faults != nil {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

// exchange gives every rank the values of all.
func (f *fabric) exchange(mine []byte) ([][]byte, error) {
	f.mu.Lock()
	f.rounds++
	key := fmt.Sprintf("shm/%s/%d", f.group, f.rounds)
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	return f.job.Exchange(ctx, key, f.members, mine)
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
	for r := 1; r < len(views); r++ {
		if r != f.rank {
			err = errors.Join(err, unmap(views[r]))
		}
	}
	free := own.free
	if f.rank > 0 {
		err = errors.Join(err, own.free())
		free = func() error { return unmap(views[0]) }
	}
	return comm.NewMemory(views[0][:n:n], free), err
}

// free unmaps one allocation, the views of the other ranks' parts with it.
func (f *fabric) free(number int) error {
	f.mu.Lock()
	a := f.shared[number]
	f.shared[number] = nil
	f.mu.Unlock()
	return errors.Join(f.unview(a), a.own.free())
}

func (f *fabric) unview(a *allocation) error {
	var errs []error
	for r, v := range a.views {
		if r != f.rank {
			errs = append(errs, unmap(v))
		}
	}
	a.views = nil
	return errors.Join(errs...)
}

func (f *fabric) Split(name string, members []int) (window.Fabric, error) {
	inJob := make([]int, len(members))
	for i, r := range members {
		inJob[i] = f.members[r]
	}
	sub, err := newFabric(f.job, name, inJob, f.timeout, f.kind)
	if err != nil {
		return nil, err
	}
	return sub, nil
}

func (f *fabric) Bind(e *window.Engine) {
	f.job.Register("shm/"+f.group, f.members, rendezvous.Listener{Fail: e.Fail, Gone: e.Gone, At: e.At})
}

// Probe implements [comm.Prober].
func (f *fabric) Probe(ctx context.Context) map[int]uint64 {
	return f.job.Probe(ctx, "shm/"+f.group, f.members)
}

// Process implements [comm.Prober].
func (f *fabric) Process(rank int) (host string, pid int) {
	p := f.job.Peers[f.members[rank]]
	return p.Host, p.PID
}

func (f *fabric) Abort(err error) { f.job.Abort("shm/"+f.group, f.rank, err) }

// Close unmaps everything but this rank's own part of allocations, which their owner may still read, and frees.
func (f *fabric) Close() error {
	f.job.Unregister("shm/" + f.group)
	var errs []error
	f.mu.Lock()
	for _, a := range f.shared {
		if a != nil {
			errs = append(errs, f.unview(a))
		}
	}
	f.mu.Unlock()
	for r, v := range f.control {
		if r != f.rank {
			errs = append(errs, unmap(v))
		}
	}
	errs = append(errs, f.own.free(), f.job.Release())
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
