// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/tests/internal/twohosts"
)

// sleep waits; false if the job ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// apply waits for a fault's moment and makes it happen. A job that ends before is no failure.
func (j *job) apply(ctx context.Context, f fault) error {
	for f.step > 0 && newest(j.out()) < f.step {
		if !sleep(ctx, 2*time.Millisecond) {
			return nil
		}
	}
	if !sleep(ctx, f.after) {
		return nil
	}
	happens := actions[f.kind]
	for {
		undo, err := happens(j, f)
		if err != nil {
			return err
		}
		if undo != nil {
			j.note("%s", f)
			sleep(ctx, f.hold)
			err := undo()
			j.settle(f)
			j.note("%s is over", f)
			return err
		}
		if !sleep(ctx, time.Millisecond) { // there was nobody to hit
			return nil
		}
	}
}

// begin takes down that a fault is about to happen.
func (j *job) begin(f fault) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts.applied[f.kind]++
	if !f.kind.trait().harmless {
		j.disturbed = true
		j.active++
	}
}

// settle takes down that it is over.
func (j *job) settle(f fault) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.healed = time.Now()
	if !f.kind.trait().harmless {
		j.active--
	}
}

// action makes a fault happen and returns what ends it; nil if there is nobody to hit now.
type action func(*job, fault) (undo func() error, err error)

var actions = map[kind]action{
	killRank:     signals(ranks, syscall.SIGKILL),
	killLauncher: signals(launchers, syscall.SIGKILL),
	killGuard:    signals(guards, syscall.SIGKILL),
	killBoth:     signals(launcherAndGuard, syscall.SIGKILL),
	killAll:      signals(all, syscall.SIGKILL),
	interrupt:    interruptOne,
	stopRank:     signals(ranks, syscall.SIGSTOP),
	stopLauncher: signals(launchers, syscall.SIGSTOP),
	stopAll:      signals(all, syscall.SIGSTOP),
	freezeRank:   freeze,
	linkDown:     takeLinkDown,
	linkCut:      wire(func(fault) (twohosts.Fate, func()) { return twohosts.Lose, func() {} }),
	linkOneWay:   wire(loseOneWay),
	linkLoss:     wire(loseSome),
	linkStall:    wire(holdBack),
	relayCut:     func(j *job, f fault) (func() error, error) { return j.disturbRelay(f, j.relay.cut) },
	relayStall:   func(j *job, f fault) (func() error, error) { return j.disturbRelay(f, j.relay.stall) },
	diskFull:     fillDisk(func(j *job) string { return j.dir }),
	shmFull:      fillDisk(func(*job) string { return "/dev/shm" }),
	diskReadOnly: coverOutput,
	peersGarbage: strangers(writeGarbage),
	peersIdle:    strangers(sayNothing),
	peersHalf:    halfHandshakes,
	peersToken:   wrongTokens,
	clockWall:    moveClocks,
	// since the start
	clockMono: func(j *job, f fault) (func() error, error) { j.begin(f); return func() error { return nil }, nil },
}

// ranks are one rank's process, at random.
func ranks(j *job, f fault) []found {
	list := slices.DeleteFunc(living(j.marker), func(p found) bool {
		return p.guard() || j.layout != goroutines && p.rank() < 0
	})
	return one(list, f)
}

func one(list []found, f fault) []found {
	if len(list) == 0 {
		return nil
	}
	return list[f.pick%uint64(len(list)):][:1]
}

// launchers are one launcher's.
func launchers(j *job, f fault) []found {
	list := living(j.marker)
	return one(slices.DeleteFunc(list, func(p found) bool {
		return p.guard() || p.rank() >= 0 || !slices.Contains(p.line, "launch")
	}), f)
}

// guards are one guard's.
func guards(j *job, f fault) []found {
	return one(slices.DeleteFunc(living(j.marker), func(p found) bool { return !p.guard() }), f)
}

// launcherAndGuard are one launcher and its guard, if both live.
func launcherAndGuard(j *job, f fault) []found {
	list := launchers(j, f)
	if len(list) == 0 {
		return nil
	}
	for _, p := range living(j.marker) {
		if p.guard() && parent(p.pid) == list[0].pid {
			return append(list, p)
		}
	}
	return nil
}

func parent(pid int) int {
	fields := stat(pid)
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(fields[1]) // the kernel's
	return n
}

// all are all of the job's processes.
func all(j *job, _ fault) []found { return living(j.marker) }

// signals sends a signal to processes; those that it stops continue afterwards.
func signals(who func(*job, fault) []found, s syscall.Signal) action {
	return func(j *job, f fault) (func() error, error) {
		list := who(j, f)
		if len(list) == 0 {
			return nil, nil
		}
		j.begin(f)
		for _, p := range list {
			j.note("%v for %s", s, p)
			_ = syscall.Kill(p.pid, s) // it may have ended
		}
		if s == syscall.SIGKILL {
			j.mu.Lock()
			j.counts.kills += len(list)
			j.mu.Unlock()
			return func() error { return nil }, nil
		}
		return func() error {
			for _, p := range list {
				_ = syscall.Kill(p.pid, syscall.SIGCONT) // it may have been killed
			}
			return nil
		}, nil
	}
}

// freeze stops a rank, for as long as others let it live.
func freeze(j *job, f fault) (func() error, error) {
	list := ranks(j, f)
	if len(list) == 0 {
		return nil, nil
	}
	j.begin(f)
	j.note("SIGSTOP for %s", list[0])
	_ = syscall.Kill(list[0].pid, syscall.SIGSTOP) // it may have ended
	return func() error { return nil }, nil
}

// interruptOne is Ctrl-C or SIGTERM for one launcher and what is in its process group.
func interruptOne(j *job, f fault) (func() error, error) {
	j.mu.Lock()
	running := slices.DeleteFunc(slices.Clone(j.programs), (*program).over)
	j.mu.Unlock()
	if len(running) == 0 {
		return nil, nil
	}
	j.begin(f)
	running[f.pick%uint64(len(running))].signal([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM}[f.pick/2%2])
	return func() error { return nil }, nil
}

// takeLinkDown takes a host's interface down and up again.
func takeLinkDown(j *job, f fault) (func() error, error) {
	i := int(f.pick % 2)
	j.begin(f)
	return func() error { return j.hosts.IP("-n %s link set %s up", j.hosts.Names[i], j.hosts.Link(i)) },
		j.hosts.IP("-n %s link set %s down", j.hosts.Names[i], j.hosts.Link(i))
}

// wire changes what becomes of frames between hosts.
func wire(fate func(fault) (twohosts.Fate, func())) action {
	return func(j *job, f fault) (func() error, error) {
		bad, end := fate(f)
		j.begin(f)
		j.hosts.Wire.Set(bad)
		return func() error {
			j.hosts.Wire.Set(nil)
			end()
			return nil
		}, nil
	}
}

func loseOneWay(f fault) (twohosts.Fate, func()) {
	deaf := int(f.pick % 2)
	return func(from int) (bool, time.Duration) { return from != deaf, 0 }, func() {}
}

func loseSome(fault) (twohosts.Fate, func()) {
	return func(int) (bool, time.Duration) { return rand.IntN(10) == 0, 0 }, func() {}
}

func holdBack(fault) (twohosts.Fate, func()) {
	over := make(chan struct{})
	return func(int) (bool, time.Duration) {
		<-over
		return false, 0
	}, func() { close(over) }
}

// disturbRelay has the relay before rank 0 do what it should not.
func (j *job) disturbRelay(f fault, how func() (undo func())) (func() error, error) {
	j.begin(f)
	undo := how()
	return func() error {
		undo()
		return nil
	}, nil
}

// fillDisk takes all room in a file system, and what is given back meanwhile.
func fillDisk(dir func(*job) string) action {
	return func(j *job, f fault) (func() error, error) {
		if f.step == 0 && newest(j.out()) == 0 && j.counts.tries == 0 {
			return nil, nil // not before it has begun
		}
		j.begin(f)
		b, err := inflate(dir(j))
		if err != nil {
			return nil, err
		}
		return b.free, nil
	}
}

// coverOutput makes output_dir read-only.
func coverOutput(j *job, f fault) (func() error, error) {
	if _, err := os.Stat(j.out()); err != nil {
		return nil, nil // not there yet
	}
	j.begin(f)
	return readOnly(j.out())
}

// moveClocks has the wall clocks of ranks jump, to and fro.
func moveClocks(j *job, f fault) (func() error, error) {
	j.begin(f)
	j.clocks.jump(f.pick)
	return func() error {
		j.clocks.jump(f.pick / 3)
		return nil
	}, nil
}
