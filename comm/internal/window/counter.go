// SPDX-License-Identifier: Apache-2.0

package window

import (
	"sync/atomic"

	"github.com/lockstep-ml/lockstep/comm"
)

// Counter is a number that one rank raises and others wait for. It fills a cache line (two, for processors that fetch
// in pairs), may lie in memory shared by processes, and starts at zero. It wraps around; waiters are never half its
// range behind.
type Counter struct {
	n        atomic.Uint32
	sleepers atomic.Uint32 // 1 if somebody may be parked on n
	_        [120]byte
}

// reached reports whether the counter has come to want.
func (c *Counter) reached(want uint32) bool { return int32(c.n.Load()-want) >= 0 }

// Slot is what one rank shows to all others: how often it has arrived, and its call. What belongs to a call exists
// twice, for a rank may begin the next one while another still reads this one; it cannot be two ahead.
type Slot struct {
	arrived Counter
	heads   [2][headBytes]byte
	boxes   [2]Box
}

// Channel is what one rank sends to one other.
type Channel struct {
	posted Counter // pieces that the sender has put here
	taken  Counter // pieces that the receiver has copied
	head   [headBytes]byte
	box    Box
}

const headBytes = (comm.SignatureBytes + 63) / 64 * 64

// Box says where a buffer lies, in the terms of the fabric that wrote it. The zero value means that only its owner can
// see it.
type Box struct {
	Segment uint64 // 1 + the number of the segment
	Offset  uint64
	Length  uint64
	_       uint64
}
