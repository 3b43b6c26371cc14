// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// layout is where the ranks of a job are.
type layout string

const (
	goroutines layout = "goroutines" // of one process
	shm        layout = "shm"        // processes of a launcher, shared memory
	tcp        layout = "tcp"        // processes of a launcher, TCP
	relayed    layout = "relay"      // two launchers that take each other for hosts, with a relay before rank 0
	hosts      layout = "hosts"      // two launchers in two network namespaces
)

var layouts = []layout{goroutines, shm, tcp, relayed, hosts}

// launchers is how many launchers a layout has.
func (l layout) launchers() int {
	switch l {
	case goroutines:
		return 0
	case relayed, hosts:
		return 2
	}
	return 1
}

// kind is a kind of fault.
type kind string

const (
	killRank     kind = "kill-rank"
	killLauncher kind = "kill-launcher"
	killGuard    kind = "kill-guard"
	killBoth     kind = "kill-both" // launcher and guard at the same time
	killAll      kind = "kill-all"  // every process
	interrupt    kind = "interrupt"
	stopRank     kind = "stop-rank" // for a moment
	stopLauncher kind = "stop-launcher"
	stopAll      kind = "stop-all"
	freezeRank   kind = "freeze-rank" // for good
	linkDown     kind = "link-down"   // the interface, for a moment
	linkCut      kind = "link-cut"    // longer than a host may be silent
	linkOneWay   kind = "link-one-way"
	linkLoss     kind = "link-loss"
	linkStall    kind = "link-stall" // frames are held back for a moment
	relayCut     kind = "relay-cut"
	relayStall   kind = "relay-stall"
	diskFull     kind = "disk-full"
	diskReadOnly kind = "disk-read-only"
	shmFull      kind = "shm-full"
	peersGarbage kind = "peers-garbage"
	peersIdle    kind = "peers-idle"
	peersHalf    kind = "peers-half" // handshakes of a real program, cut off
	peersToken   kind = "peers-token"
	clockWall    kind = "clock-wall" // each rank's wall clock is wrong, and jumps
	clockMono    kind = "clock-mono" // each rank's monotonic clock has another start
)

// trait is what the harness must know of a kind.
type trait struct {
	kind     kind
	harmless bool // no rank may end or start again because of it
	group    string
	layouts  []layout
}

var (
	launched   = []layout{shm, tcp, relayed, hosts}
	everywhere = layouts
)

// traits is the table of all kinds, in the order of the tour. Faults of one group are not combined.
var traits = []trait{
	{killRank, false, "kill-rank", everywhere},
	{killLauncher, false, "kill-launcher", launched},
	{killGuard, true, "kill-guard", launched},
	{killBoth, false, "kill-both", launched},
	{killAll, false, "kill-all", everywhere},
	{interrupt, false, "interrupt", everywhere},
	{stopRank, true, "stop-rank", everywhere},
	{stopLauncher, true, "stop-launcher", launched},
	{stopAll, true, "stop-all", []layout{goroutines, shm, tcp, relayed}},
	{freezeRank, false, "freeze-rank", launched},
	{linkDown, true, "link", []layout{hosts}},
	{linkCut, false, "link", []layout{hosts}},
	{linkOneWay, false, "link", []layout{hosts}},
	{linkLoss, true, "link", []layout{hosts}},
	{linkStall, true, "link", []layout{hosts}},
	{relayCut, false, "link", []layout{relayed}},
	{relayStall, true, "link", []layout{relayed}},
	{diskFull, false, "disk", everywhere},
	{diskReadOnly, false, "disk", everywhere},
	{shmFull, false, "disk", []layout{shm, hosts}},
	{peersGarbage, true, "peers-garbage", launched},
	{peersIdle, true, "peers-idle", launched},
	{peersHalf, true, "peers-half", launched},
	{peersToken, true, "peers-token", launched},
	{clockWall, true, "clock", everywhere},
	{clockMono, true, "clock", everywhere},
}

func (k kind) trait() trait {
	return traits[slices.IndexFunc(traits, func(t trait) bool { return t.kind == k })]
}

// fault is one of a scenario's.
type fault struct {
	kind  kind
	step  int           // it waits for a checkpoint of this step or a later one; 0 for the first process
	after time.Duration // and then so long
	hold  time.Duration // it lasts so long, if it lasts
	pick  uint64        // chooses the victim
}

// String is like "kill-rank@40+12ms".
func (f fault) String() string {
	return fmt.Sprintf("%s@%d+%dms", f.kind, f.step, f.after.Milliseconds())
}

// scenario is a job and what happens to it.
type scenario struct {
	index    int
	layout   layout
	ranks    int
	restarts int // that launchers make by themselves
	stages   int // of the pipelines of every other try; 1: none
	faults   []fault
}

// String is one line.
func (s scenario) String() string {
	var list []string
	for _, f := range s.faults {
		list = append(list, f.String())
	}
	return fmt.Sprintf("%d %s×%d restarts=%d stages=%d %s", s.index, s.layout, s.ranks, s.restarts, s.stages,
		strings.Join(list, " "))
}

// harmless tells whether the job must end without starting again.
func (s scenario) harmless() bool {
	return !slices.ContainsFunc(s.faults, func(f fault) bool { return !f.kind.trait().harmless })
}

func (s scenario) has(k kind) bool {
	return slices.ContainsFunc(s.faults, func(f fault) bool { return f.kind == k })
}

// plan is how scenarios are drawn: from a seed, and of the kinds and layouts that this machine can have.
type plan struct {
	seed    uint64
	kinds   []kind
	layouts []layout
}

// newPlan leaves out what cannot be had.
func newPlan(seed uint64, without func(kind) bool, no func(layout) bool) plan {
	p := plan{seed: seed}
	for _, l := range layouts {
		if !no(l) {
			p.layouts = append(p.layouts, l)
		}
	}
	for _, t := range traits {
		if !without(t.kind) && slices.ContainsFunc(t.layouts, func(l layout) bool {
			return slices.Contains(p.layouts, l)
		}) {
			p.kinds = append(p.kinds, t.kind)
		}
	}
	return p
}

// scenario returns the one of an index, always the same.
func (p plan) scenario(index int) scenario {
	r := rand.New(rand.NewPCG(p.seed, uint64(index)))
	tour := p.tour()
	var s scenario
	if index < len(tour) {
		s = scenario{layout: pick(r, p.common(tour[index]))}
		for _, k := range tour[index] {
			s.faults = append(s.faults, draw(r, k))
		}
	} else {
		s = scenario{layout: pick(r, p.layouts)}
		for range 1 + r.IntN(4) {
			if fits := p.fitting(s); len(fits) > 0 {
				s.faults = append(s.faults, draw(r, pick(r, fits)))
			}
		}
	}
	s.index = index
	s.ranks, s.restarts = 1+r.IntN(4), r.IntN(4)
	if s.layout.launchers() == 2 {
		s.ranks = 2 * (1 + r.IntN(2))
	}
	if s.has(freezeRank) || s.layout == shm || s.layout == tcp {
		s.ranks = max(s.ranks, 2) // somebody must notice, and there must be something to share
	}
	if s.stages = 1; s.ranks%2 == 0 && r.IntN(2) == 0 {
		s.stages = 2
	}
	return s
}

// fitting are the kinds that can be added to a scenario.
func (p plan) fitting(s scenario) []kind {
	var list []kind
	for _, k := range p.kinds {
		t := k.trait()
		taken := slices.ContainsFunc(s.faults, func(f fault) bool { return f.kind.trait().group == t.group })
		if !taken && slices.Contains(t.layouts, s.layout) {
			list = append(list, k)
		}
	}
	return list
}

// tour puts each kind into one of the first scenarios: as few as its layouts allow, at most three to each, and what is
// harmless by itself, so that it is seen to be.
func (p plan) tour() [][]kind {
	var list [][]kind
	for _, k := range p.kinds {
		t := k.trait()
		i := slices.IndexFunc(list, func(with []kind) bool {
			return len(with) < 3 && with[0].trait().harmless == t.harmless &&
				len(p.common(append(with[:len(with):len(with)], k))) > 0 &&
				!slices.ContainsFunc(with, func(o kind) bool { return o.trait().group == t.group })
		})
		if i < 0 {
			list = append(list, []kind{k})
		} else {
			list[i] = append(list[i], k)
		}
	}
	return list
}

// common are the layouts that can have all of some kinds.
func (p plan) common(kinds []kind) []layout {
	var list []layout
	for _, l := range p.layouts {
		if !slices.ContainsFunc(kinds, func(k kind) bool { return !slices.Contains(k.trait().layouts, l) }) {
			list = append(list, l)
		}
	}
	return list
}

// draw makes a fault of a kind at a random time: a third of them while the job starts.
func draw(r *rand.Rand, k kind) fault {
	f := fault{kind: k, pick: r.Uint64(), after: time.Duration(r.IntN(60_000)) * time.Microsecond,
		hold: time.Duration(200+r.IntN(1800)) * time.Millisecond}
	if r.IntN(3) > 0 {
		f.step = saveSteps * (1 + r.IntN(steps/saveSteps*4/5))
	} else {
		f.after = time.Duration(r.IntN(500_000)) * time.Microsecond
	}
	switch k {
	case linkDown, linkStall:
		f.hold = time.Duration(100+r.IntN(900)) * time.Millisecond // TCP tries again within the silence that is allowed
	case linkCut, linkOneWay:
		f.hold = time.Duration(1500+r.IntN(2500)) * time.Millisecond // the jobs allow a second of silence
	case peersGarbage, peersIdle, peersHalf, peersToken:
		f.hold = time.Hour // until the job ends
		if f.step == 0 {
			f.after /= 50 // they are there before the ranks are
		}
	case linkLoss:
		f.hold = time.Duration(500+r.IntN(2000)) * time.Millisecond
	}
	return f
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }
