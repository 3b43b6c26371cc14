// SPDX-License-Identifier: Apache-2.0

// Package nccl has interfaces for the part of NVIDIA's NCCL that Lockstep uses. comm/nccl opens the library and has the
// engine; internal/cuda/fake has a fake for tests.
package nccl

import (
	"errors"

	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// Open returns the library that ranks use. comm/nccl sets it to the real one, tests to the fake.
var Open = func() (Library, error) { return nil, errors.New("this program has no NCCL: want the build tag cuda") }

// ID is ncclUniqueId: by it the ranks of a communicator find each other.
type ID [128]byte

// DataType is ncclDataType_t.
type DataType int32

// The library's numbers.
const (
	Int8     DataType = 0
	Uint8    DataType = 1
	Int32    DataType = 2
	Int64    DataType = 4
	Float16  DataType = 6
	Float32  DataType = 7
	Float64  DataType = 8
	BFloat16 DataType = 9
)

// Size is the number of bytes of an element.
func (d DataType) Size() int {
	switch d {
	case Int8, Uint8:
		return 1
	case Float16, BFloat16:
		return 2
	case Int32, Float32:
		return 4
	}
	return 8
}

// RedOp is ncclRedOp_t.
type RedOp int32

// The library's numbers.
const (
	Sum  RedOp = 0
	Prod RedOp = 1
	Max  RedOp = 2
	Min  RedOp = 3
)

// Library is the library.
type Library interface {
	// Version is the library's, as 2.27.3.
	Version() string
	// UniqueID makes the name of a new communicator, on one rank.
	UniqueID() (ID, error)
	// Init makes rank's part of a communicator of n ranks on a device. All ranks call it, and it waits for them. It
	// asks over from time to time, whose error ends it.
	Init(dev cuda.Device, n, rank int, id ID, over func() error) (Comm, error)
}

// Comm is a rank's part of a communicator. One goroutine uses it at a time; Abort alone may come from another, at any
// moment, and calls then return an error. Calls queue work on a stream and return before it is done; all ranks make the
// same calls in the same order.
type Comm interface {
	// Group makes the calls of f, which are sends and receives alone, one: they cannot block each other.
	Group(f func() error) error
	Send(s cuda.Stream, p cuda.Ptr, count int, dt DataType, to int) error
	Recv(s cuda.Stream, p cuda.Ptr, count int, dt DataType, from int) error
	// AllReduce combines count elements of all ranks in an order of the library's own; out may be in.
	AllReduce(s cuda.Stream, out, in cuda.Ptr, count int, dt DataType, op RedOp) error
	// ReduceScatter leaves the rank's part of count elements in out.
	ReduceScatter(s cuda.Stream, out, in cuda.Ptr, count int, dt DataType, op RedOp) error
	// AllGather puts count elements of each rank side by side; in may be the rank's place in out.
	AllGather(s cuda.Stream, out, in cuda.Ptr, count int, dt DataType) error
	Broadcast(s cuda.Stream, p cuda.Ptr, count int, dt DataType, root int) error
	// AsyncError is what went wrong in work that was queued; nil so far.
	AsyncError() error
	// Abort ends queued work, whose results are then undefined, and gives the communicator up.
	Abort() error
	// Close waits for queued work and gives the communicator back. All ranks call it.
	Close() error
}
