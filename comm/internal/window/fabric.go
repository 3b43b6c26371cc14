// SPDX-License-Identifier: Apache-2.0

package window

import (
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
)

// Fabric is the memory that the ranks of one group share, as one of them sees it, and the ways to sleep and to give
// notice. Engine has its methods.
type Fabric interface {
	Rank() int
	Size() int
	Describe() comm.Info
	comm.Prober

	// Slot and Channel return the shared structures, zeroed before any rank could see them.
	Slot(rank int) *Slot
	Channel(from, to int) *Channel

	// Stage is the memory that rank copies a buffer into if the others cannot see it; each channel has one. Neither is
	// used where Publish always succeeds. Stage has the same size for all ranks.
	Stage(rank int) []byte
	ChannelStage(from, to int) []byte

	// Publish says in this rank's own box where its buffer lies; false if the others cannot see it.
	Publish(box *Box, buffer []byte) bool

	// View returns the n bytes that rank has published in its box. A box that makes no sense is an error: it may have
	// been written by a broken process.
	View(rank int, box *Box, n int) ([]byte, error)

	// Park sleeps until word is no longer old, somebody calls Unpark, or d has passed; it may return early.
	Park(word *atomic.Uint32, old uint32, d time.Duration)
	Unpark(word *atomic.Uint32)

	// Alloc returns memory for which Publish succeeds; all ranks call it alike. Split returns the fabric of a
	// sub-group; its members call it.
	Alloc(n int) (*comm.Memory, error)
	// AllocShared returns memory that all ranks have together, and which is there until it is freed, beyond Close.
	AllocShared(n int) (*comm.Memory, error)
	Split(name string, members []int) (Fabric, error)

	// Bind names the engine that is to be told of failures of others. It comes once, before anything else.
	Bind(e *Engine)

	// Abort tells the other ranks that this one gives up, and why. Close leaves in good order and frees the memory; the
	// engine uses nothing afterwards.
	Abort(err error)
	Close() error
}
