// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"fmt"
	"slices"
)

// Op is the operation of a call.
type Op uint8

// The operations. Send and Recv are between two ranks; all others are collective: every rank of the group issues them,
// in one order.
const (
	opInvalid Op = iota
	AllReduce
	ReduceScatter
	AllGather
	Broadcast
	Reduce
	Gather
	Scatter
	AllToAll
	Barrier
	Send
	Recv
	numOps
)

var opNames = [numOps]string{"invalid", "all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "gather",
	"scatter", "all-to-all", "barrier", "send", "recv"}

// String returns the name that errors use: "all-reduce".
func (o Op) String() string { return nameOf(o, opNames[:], "op") }

// MarshalText is String, for JSON.
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (o *Op) UnmarshalText(text []byte) error {
	return byName(o, opNames[:], string(text), "operation")
}

// Reduces reports whether the operation combines values of several ranks.
func (o Op) Reduces() bool { return o == AllReduce || o == ReduceScatter || o == Reduce }

// Rooted reports whether one rank, the root, has another part in it than the rest.
func (o Op) Rooted() bool { return o == Broadcast || o == Reduce || o == Gather || o == Scatter }

// PointToPoint reports whether the operation is between two ranks.
func (o Op) PointToPoint() bool { return o == Send || o == Recv }

// ReduceOp is how a reduction combines two values.
type ReduceOp uint8

// The ways to combine. Min and Max return NaN if either value is NaN, and hold −0 below +0. Bool knows Min (and) and
// Max (or) only.
const (
	Sum ReduceOp = iota
	Min
	Max
	Product
	numReduceOps
)

var reduceNames = [numReduceOps]string{"sum", "min", "max", "product"}

// String returns the name: "sum".
func (r ReduceOp) String() string { return nameOf(r, reduceNames[:], "reduce-op") }

// MarshalText is String, for JSON.
func (r ReduceOp) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (r *ReduceOp) UnmarshalText(text []byte) error {
	return byName(r, reduceNames[:], string(text), "reduction")
}

func nameOf[T ~uint8](v T, names []string, kind string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, uint8(v))
}

func byName[T ~uint8](to *T, names []string, name, kind string) error {
	i := slices.Index(names, name)
	if i < 0 {
		return fmt.Errorf("comm: unknown %s %q", kind, name)
	}
	*to = T(i)
	return nil
}
