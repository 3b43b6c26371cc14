// SPDX-License-Identifier: Apache-2.0

// Package failure records the end of an engine's group: the first failure, and the ranks that have left.
//
// It does NOT find out about failures, and tells no other rank: engines do.
package failure

import (
	"sync"
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/comm"
)

// State is what one rank knows. Its methods may be called from several goroutines.
type State struct {
	first  atomic.Pointer[error]
	onFail atomic.Pointer[func(error)]
	gone   []atomic.Pointer[comm.RankLostError] // by rank
}

// New returns the state of a group of so many ranks, none of which has failed.
func New(ranks int) *State { return &State{gone: make([]atomic.Pointer[comm.RankLostError], ranks)} }

// OnFailure registers the function that is told of the failure of another rank. It implements part of [comm.Engine].
func (s *State) OnFailure(failed func(error)) {
	var once sync.Once
	tell := func(err error) { once.Do(func() { failed(err) }) }
	s.onFail.Store(&tell)
	if err := s.Err(); err != nil {
		tell(err)
	}
}

// Err is the first failure, nil if there is none.
func (s *State) Err() error {
	if err := s.first.Load(); err != nil {
		return *err
	}
	return nil
}

// Set takes down a failure, and reports whether it is the first.
func (s *State) Set(err error) bool { return s.first.CompareAndSwap(nil, &err) }

// Tell tells the function of OnFailure, if there is one.
func (s *State) Tell(err error) {
	if tell := s.onFail.Load(); tell != nil {
		(*tell)(err)
	}
}

// Gone takes down that a rank has left in good order: only waiting for it is an error.
func (s *State) Gone(rank int, why *comm.RankLostError) { s.gone[rank].Store(why) }

// Left reports whether a rank has left.
func (s *State) Left(rank int) bool { return s.gone[rank].Load() != nil }

// Obstacle returns why waiting for rank in a call is in vain, or nil.
func (s *State) Obstacle(rank int, c *comm.Call) error {
	lost := s.gone[rank].Load() // before the failure: a rank that fails tells of it before it leaves
	if err := s.Err(); err != nil {
		return err
	}
	if lost == nil {
		return nil
	}
	named := *lost
	named.Group, named.Call = c.Group, c.String()
	return &named
}
