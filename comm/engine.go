// SPDX-License-Identifier: Apache-2.0

package comm

// Engine moves and combines the bytes of one group on one rank. A [Group] issues its calls in order and handles
// deadlines and errors. comm/local, comm/shm, comm/tcp and comm/fake implement it, as do engines that a user adds (MPI,
// NCCL). commtest.Run tests an engine. Programs need only a Group.
type Engine interface {
	// Rank and Size are this rank's number and the number of ranks.
	Rank() int
	Size() int

	// Describe names the engine and the path that its bytes take, for logs and for the tests that ask which one ran.
	Describe() Info

	// Run performs one call. Collective calls are made on one goroutine, in order; messages on others, one goroutine
	// per partner and direction. It compares signatures (see [Compare]) before a caller's buffer is written, returns a
	// *TimeoutError within a second of the deadline, and returns soon after Abort. The buffers belong to it until it
	// returns.
	Run(c *Call) error

	// Alloc returns n bytes that calls reduce in place, if the engine has such memory, else ordinary memory. It is
	// collective.
	Alloc(n int) (*Memory, error)

	// Split makes the engine of a sub-group of the given ranks, in the given order. Its members call it, with the same
	// arguments, and no other rank does. No two sub-groups of a job have the same name.
	Split(name string, members []int) (Engine, error)

	// OnFailure registers the function that is told, once, that another rank failed or was lost. It may be called at
	// once.
	OnFailure(failed func(error))

	// Abort makes running and later calls return on this rank and tells the others why. Only the first call counts.
	Abort(err error)

	// Close leaves the group cleanly and frees everything. Ranks that wait for this one afterwards get a
	// *RankLostError.
	Close() error
}

// Sharer is an engine whose ranks, those of one host, can share memory.
type Sharer interface {
	// AllocShared returns n bytes that are the same memory on every rank. It is collective.
	AllocShared(n int) (*Memory, error)
}

// Info says which engine a group has.
type Info struct {
	Name string // "local", "shm", "tcp", "fake"
	Path string // the way the bytes take, in words: "shared memory of 4 processes"
}
