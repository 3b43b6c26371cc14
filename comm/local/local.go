// SPDX-License-Identifier: Apache-2.0

// Package local is the engine for ranks that are goroutines of one process. Use it for parallel work in one
// process, and to try out code for many ranks: [Run] starts the ranks and waits for them. Buffers are reduced
// in place.
//
// It is not for several processes (see package comm/shm), and it starts no goroutine but those that run a
// group's calls.
package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/window"
)

// New returns the groups of n ranks, in rank order. Each rank's goroutine closes its own, whatever happens; see [Run].
// It panics if n is below 1.
func New(n int, opts comm.Options) []*comm.Group {
	if n < 1 {
		panic(fmt.Sprintf("local: group of %d ranks: want at least 1", n))
	}
	groups := make([]*comm.Group, n)
	for r, e := range Engines(n) {
		groups[r] = comm.New(e, opts)
	}
	return groups
}

// Engines returns the engines of New's groups. It is for tests of device engines, which need one beside them.
func Engines(n int) []comm.Engine {
	h := newHub(comm.AllRanks(n))
	engines := make([]comm.Engine, n)
	for r := range engines {
		engines[r] = window.New(h.fabric(r))
	}
	return engines
}

// Run calls body once for each of n ranks, each on its own goroutine with its group, and returns when all have ended. A
// rank whose body returns an error or panics aborts the group, so that the others return too; the rank's own error is
// the result, before errors that only tell of it. A panic is raised again on the caller.
func Run(n int, opts comm.Options, body func(g *comm.Group) error) error {
	groups := New(n, opts)
	errs := make([]error, n)
	panics := make([]any, n)
	var ranks sync.WaitGroup
	for r, g := range groups {
		ranks.Go(func() { errs[r] = runRank(g, body, &panics[r]) })
	}
	ranks.Wait()
	for _, p := range panics {
		if p != nil {
			panic(p)
		}
	}
	if r := comm.RootCause(errs); r >= 0 {
		return fmt.Errorf("rank %d: %w", r, errs[r])
	}
	return nil
}

// errGoexit is the error of a rank whose body ended its goroutine by runtime.Goexit, as t.FailNow does.
var errGoexit = errors.New("the rank's goroutine ended")

func runRank(g *comm.Group, body func(g *comm.Group) error, panicked *any) (err error) {
	returned := false
	defer func() {
		if !returned {
			cause := errGoexit
			if *panicked = recover(); *panicked != nil {
				cause = fmt.Errorf("panic: %v", *panicked)
			}
			g.Abort(cause)
			err = cause
		}
		err = errors.Join(err, g.Close())
	}()
	if err = body(g); err != nil {
		g.Abort(err)
	}
	returned = true
	return err
}

// hub is what the ranks of one group share.
type hub struct {
	members  []int // ranks of the outermost group
	slots    []window.Slot
	channels []window.Channel // from × size + to
	engines  []*window.Engine

	mu       sync.Mutex
	parked   map[*atomic.Uint32]chan struct{}
	boxes    map[*window.Box][]byte
	children map[string]*parcel[*hub] // of sub-groups
	together map[int]*parcel[[]byte]  // memory of all ranks, by number
	failure  error                    // for engines that come later
	left     []*comm.RankLostError    // likewise
}

// parcel is what the first of some ranks has made for all, while they come to fetch it.
type parcel[T any] struct {
	content T
	fetched int
}

// fetch returns the content of the parcel of a key, which n ranks fetch. The first makes it.
func fetch[K comparable, T any](parcels map[K]*parcel[T], key K, n int, content func() T) T {
	p := parcels[key]
	if p == nil {
		p = &parcel[T]{content: content()}
		parcels[key] = p
	}
	if p.fetched++; p.fetched == n {
		delete(parcels, key)
	}
	return p.content
}

func newHub(members []int) *hub {
	n := len(members)
	return &hub{
		members: members,
		slots:   make([]window.Slot, n), channels: make([]window.Channel, n*n), engines: make([]*window.Engine, n),
		parked: map[*atomic.Uint32]chan struct{}{}, boxes: map[*window.Box][]byte{},
		children: map[string]*parcel[*hub]{}, together: map[int]*parcel[[]byte]{},
		left: make([]*comm.RankLostError, n),
	}
}

func (h *hub) fabric(rank int) *fabric { return &fabric{hub: h, rank: rank} }

// fabric implements [window.Fabric] for one rank.
type fabric struct {
	*hub
	rank   int
	shares int // calls of AllocShared
}

func (f *fabric) Rank() int { return f.rank }

func (f *fabric) Size() int { return len(f.slots) }

func (f *fabric) Describe() comm.Info {
	return comm.Info{Name: "local", Path: fmt.Sprintf("memory of one process, %d goroutines", len(f.slots))}
}

func (f *fabric) Slot(rank int) *window.Slot { return &f.slots[rank] }

func (f *fabric) Channel(from, to int) *window.Channel { return &f.channels[from*len(f.slots)+to] }

func (f *fabric) Stage(int) []byte { return nil }

func (f *fabric) ChannelStage(int, int) []byte { return nil }

// Publish always succeeds: every rank sees all memory.
func (f *fabric) Publish(box *window.Box, buffer []byte) bool {
	box.Segment = 1
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes[box] = buffer
	return true
}

func (f *fabric) View(rank int, box *window.Box, n int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.boxes[box]; len(b) == n {
		return b, nil
	}
	return nil, fmt.Errorf("rank %d published %d bytes: want %d", rank, len(f.boxes[box]), n)
}

func (f *fabric) Park(word *atomic.Uint32, old uint32, d time.Duration) {
	f.mu.Lock()
	if word.Load() != old {
		f.mu.Unlock()
		return
	}
	woken := f.parked[word]
	if woken == nil {
		woken = make(chan struct{})
		f.parked[word] = woken
	}
	f.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-woken:
	case <-timer.C:
	}
}

func (f *fabric) Unpark(word *atomic.Uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if woken := f.parked[word]; woken != nil {
		close(woken)
		delete(f.parked, word)
	}
}

// Probe and Process say that the ranks are goroutines of one process: there is nobody to ask.
func (f *fabric) Probe(context.Context) map[int]uint64 { return nil }

func (f *fabric) Process(int) (host string, pid int) { return "", 0 }

// wake ends all sleeps, for a look at the group's health.
func (f *fabric) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for word, woken := range f.parked {
		close(woken)
		delete(f.parked, word)
	}
}

func (f *fabric) Alloc(n int) (*comm.Memory, error) { return comm.NewMemory(comm.Aligned(n), nil), nil }

func (f *fabric) AllocShared(n int) (*comm.Memory, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shares++
	memory := fetch(f.together, f.shares, f.Size(), func() []byte { return comm.Aligned(n) })
	return comm.NewMemory(memory, nil), nil
}

func (f *fabric) Split(name string, members []int) (window.Fabric, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := fetch(f.children, name, len(members), func() *hub { return newHub(comm.JobRanks(f.members, members)) })
	return h.fabric(slices.Index(members, f.rank)), nil
}

func (f *fabric) Bind(e *window.Engine) {
	f.mu.Lock()
	failure, left := f.failure, slices.Clone(f.left)
	f.engines[f.rank] = e
	f.mu.Unlock()
	for r, why := range left {
		if why != nil {
			e.Gone(r, why)
		}
	}
	if failure != nil {
		e.Fail(failure)
	}
}

// others returns the engines of the other ranks that exist yet, after record has noted what those that come later must
// know.
func (f *fabric) others(record func()) []*window.Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	record()
	var list []*window.Engine
	for r, e := range f.engines {
		if r != f.rank && e != nil {
			list = append(list, e)
		}
	}
	return list
}

func (f *fabric) Abort(err error) {
	for _, e := range f.others(func() { f.failure = err }) {
		e.Fail(err)
	}
	f.wake()
}

func (f *fabric) Close() error {
	why := &comm.RankLostError{Rank: f.members[f.rank], GroupRank: f.rank, Cause: "it closed the group"}
	for _, e := range f.others(func() { f.left[f.rank] = why }) {
		e.Gone(f.rank, why)
	}
	f.wake()
	return nil
}
