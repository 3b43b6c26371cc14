// SPDX-License-Identifier: Apache-2.0

// Package algorithms has the collective operations of ranks that are connected in pairs. A transport gives it [Links];
// comm/tcp and, over it, comm/mpi do. [Choose] says which reduction is done how.
//
// It is NOT an engine: it neither compares signatures nor explains errors.
package algorithms

import "slices"

// Part is what goes to or comes from one rank.
type Part struct {
	Rank  int
	Bytes []byte
}

// Links are a rank's ways to the others of its group.
type Links interface {
	Rank() int
	Size() int
	// Begin begins to send some parts and to receive others, of which none is empty. What goes from one rank to another
	// keeps its order over several rounds. The bytes to send must not change before Sent has returned.
	Begin(send, receive []Part) Round
}

// Round is an exchange that has begun.
type Round interface {
	// Received returns when all is received. Nothing is written before it is called, and rounds are received in the
	// order in which they began.
	Received() error
	// Sent returns when all that was sent may be overwritten. It follows Received.
	Sent() error
}

// round begins a round of parts, of which some may be empty.
func round(l Links, send, receive []Part) Round { return l.Begin(filled(send), filled(receive)) }

func filled(parts []Part) []Part {
	return slices.DeleteFunc(parts, func(p Part) bool { return len(p.Bytes) == 0 })
}
