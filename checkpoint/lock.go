// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// LockFile is the name of the file that says which process writes into a store's folder.
const LockFile = ".lock"

// beatInterval is the time between two signs of life in the lock file. They are for other
// hosts: on one host the operating system's locks tell who lives.
const beatInterval = 5 * time.Second

// silentBeats is how many of them a holder on another host may leave out.
const silentBeats = 3

// Holder is the process that has a store's folder.
type Holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Program string    `json:"program"`
	Since   time.Time `json:"since"`
	Beat    int64     `json:"beat"` // grows while the process lives
}

// String is "process 4711 (clm) on host a, since 2026-11-23 05:00:00".
func (h Holder) String() string {
	if h == (Holder{}) {
		return "a process that has not said which"
	}
	return fmt.Sprintf("process %d (%s) on host %s, since %s", h.PID, h.Program, h.Host,
		h.Since.Local().Format(time.DateTime))
}

// HeldError is returned by what writes into a folder that another process, or another
// Store of this one, has.
type HeldError struct {
	Dir    string
	Holder Holder
}

// Error implements error.
func (e *HeldError) Error() string {
	return fmt.Sprintf("folder %s is in use by %s: want another folder, or wait for it to end", e.Dir, e.Holder)
}

// hold is a store's hold on its folder, shared by all that need it at a time.
type hold struct {
	mu    sync.Mutex
	users int
	lock  vfs.Lock
	stop  func() // ends the signs of life
}

// Acquire makes the folder and keeps other processes from writing into it until release is
// called, once. Saves take the folder by themselves for as long as they last; a run takes it
// for all of its time, so that a second one learns at its start that the folder is in use.
//
// The lock is the operating system's and ends with the process. A holder on another host that did
// not give it up is given 15 seconds to show a sign of life, since locks of network file
// systems do not always reach other hosts. Where there are no locks at all, nobody is kept out. Package trainer calls
// it; a loop of your own that is the only one to write into its folder need not.
func (s *Store) Acquire(ctx context.Context) (release func(), err error) {
	h := &s.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users == 0 {
		if err := s.take(ctx); err != nil {
			return nil, err
		}
	}
	h.users++
	var once sync.Once
	return func() { once.Do(s.release) }, nil
}

func (s *Store) release() {
	h := &s.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users--; h.users > 0 || h.lock == nil {
		return
	}
	h.stop()
	if err := h.lock.Close(); err != nil {
		s.log().Warn("lock not removed", "path", s.path(LockFile), "err", err)
	}
	h.lock = nil
}

// take locks the folder and writes who has it.
func (s *Store) take(ctx context.Context) error {
	if err := vfs.MkdirAll(s.fs(), s.dir()); err != nil {
		return err
	}
	lock, err := s.fs().Lock(s.path(LockFile))
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	case errors.Is(err, vfs.ErrLocked):
		return errors.Join(&HeldError{Dir: s.dir(), Holder: readHolder(lock)}, lock.Close())
	case err != nil:
		return err
	}
	host, _ := os.Hostname()
	me := Holder{PID: os.Getpid(), Host: host, Program: filepath.Base(os.Args[0]),
		Since: time.Now().Truncate(time.Second)}
	if err := s.watch(ctx, lock, me); err != nil {
		return errors.Join(err, lock.Abandon())
	}
	if err := writeHolder(lock, me); err != nil {
		return errors.Join(fmt.Errorf("locking %s: %w", s.dir(), err), lock.Close())
	}
	s.hold.lock, s.hold.stop = lock, s.beat(lock, me)
	return nil
}

// watch returns a HeldError if the holder that the lock file names is on another host, or
// beyond the reach of locks, and shows a sign of life.
func (s *Store) watch(ctx context.Context, lock vfs.Lock, me Holder) error {
	last := readHolder(lock)
	if last == (Holder{}) || lock.Exclusive() && last.Host == me.Host {
		return nil
	}
	wait := s.interval() * silentBeats
	s.log().Warn("the last holder of the folder did not release it: checking whether it is still running", "dir",
		s.dir(), "holder", last.String(), "seconds", wait.Seconds())
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(s.interval() / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return nil
		case <-tick.C:
			if now := readHolder(lock); now != last && now != (Holder{}) {
				return &HeldError{Dir: s.dir(), Holder: now}
			}
		}
	}
}

// beat writes a sign of life again and again; stop ends that and waits for the end.
func (s *Store) beat(lock vfs.Lock, me Holder) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(s.interval())
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				me.Beat++
				if err := writeHolder(lock, me); err != nil {
					s.log().Warn("the lock file could not be updated", "path", s.path(LockFile), "err", err)
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func (s *Store) interval() time.Duration { return cmp.Or(s.beatInterval, beatInterval) }

// readHolder is the zero Holder if the lock file does not say who.
func readHolder(lock vfs.Lock) Holder {
	var h Holder
	text, err := lock.Read()
	if err != nil || json.Unmarshal(text, &h) != nil {
		return Holder{}
	}
	return h
}

func writeHolder(lock vfs.Lock, h Holder) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return lock.Write(append(text, '\n'))
}
