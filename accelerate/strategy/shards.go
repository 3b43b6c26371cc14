// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Shards is a rank's part of a model that is spread over the ranks, for those who save and load it.
type Shards interface {
	// Placed lists what this rank has of the parameters and buffers, to be read and written. What several ranks have,
	// all of them list. Of parameters that are cut it is vectors, without what this rank gathered of the others'; of
	// parameters of which this rank has nothing there is no entry.
	Placed() []tensor.Placed
	// Cut reports whether ranks own a part each of the parameter of a name. Of others this rank has all or nothing.
	Cut(name string) bool
	// Placement is what this rank owns of the trained parameter of a name, and of what its optimizer keeps for it; ok
	// is false if there is no such parameter.
	Placement(name string) (p tensor.Placement, ok bool)
	// Publish makes the parameters of all ranks what each made of Placed. It is collective.
	Publish(ctx context.Context) error
}

// Memory is what a rank holds of a sharded model, in bytes. The optimizer's state comes on top: it is as large as that
// of the parameters that the rank trains.
type Memory struct {
	// Parameters stay from step to step: shards, or whole parameters where they do not come and go.
	Parameters int64
	// Uncut are the parameters and buffers that are not cut, which are not among Parameters.
	Uncut int64
	// Gradients are the sums of a window: those that exist at the same time at its end.
	Gradients int64
	// Sums is how many they are for each gradient.
	Sums int
	// Gathered is the most that comes and goes: whole parameters of units, and their gradients before each is with its
	// owner.
	Gathered int64
	// Together is the most of Parameters, Gradients and Gathered at one time. A sum is there when its gradient is with
	// its owner: where whole parameters come and go, those of the last units to come, and of the root, are not when
	// most has come, and where they stay until the backward pass, none of the micro-batch's is.
	Together int64
	// Allocated is what the rank has now in memory of the group that has the model once, and its part of what the group
	// shares.
	Allocated int64
	// Shared is true if the ranks of a host have the parameters together, whole and once.
	Shared bool
}
