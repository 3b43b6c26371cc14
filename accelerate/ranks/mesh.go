// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// roles are the peers of a rank by what they do together. They follow only from the axes of the mesh.
type roles struct {
	mesh  comm.Mesh            // of all ranks
	all   *Peers               // all ranks
	peers map[comm.Axes]*Peers // along axes that some, but not all, ranks differ by
	ended chan struct{}        // closed when the groups are
}

// The axes that ranks of a role differ by.
const (
	dataAxes  = comm.DPReplicate | comm.DPShard
	partAxes  = dataAxes | comm.CP // any but those that cut the model
	lossAxes  = partAxes | comm.PP
	shardAxes = comm.DPShard | comm.CP
	modelAxes = comm.PP | comm.CP | comm.TP
)

// DataRanks are the ranks that see different samples: the training stream is divided among them.
func (r *Ranks) DataRanks() *Peers { return r.along(dataAxes) }

// LossRanks are the ranks that compute different loss terms, or none where another stage of their pipeline does: loss
// terms are summed over them.
func (r *Ranks) LossRanks() *Peers { return r.along(lossAxes) }

// ModelRanks are the ranks that share the work on the same samples.
func (r *Ranks) ModelRanks() *Peers { return r.along(modelAxes) }

// TensorRanks are the ranks that hold parts of the same layers.
func (r *Ranks) TensorRanks() *Peers { return r.along(comm.TP) }

// PipelineRanks are the ranks that hold the layers of one model.
func (r *Ranks) PipelineRanks() *Peers { return r.along(comm.PP) }

// ContextRanks are the ranks that see different tokens of the same samples.
func (r *Ranks) ContextRanks() *Peers { return r.along(comm.CP) }

// SamePartRanks are the ranks that hold the same part of the model before it is sharded: all except those of other
// layers and of other parts of a layer. Gradients are summed over them.
func (r *Ranks) SamePartRanks() *Peers { return r.along(partAxes) }

// ShardRanks are the ranks over which a sharded model is spread.
func (r *Ranks) ShardRanks() *Peers { return r.along(shardAxes) }

// ReplicaRanks are the ranks that own the same shard as this one, each in its replica of a sharded model.
func (r *Ranks) ReplicaRanks() *Peers { return r.along(comm.DPReplicate) }

// along are the ranks that differ from this one along the given axes.
func (r *roles) along(axes comm.Axes) *Peers {
	switch axes &= r.mesh.Axes(); axes {
	case 0:
		return &Peers{size: 1}
	case r.mesh.Axes():
		return r.all
	default:
		return r.peers[axes]
	}
}

// MeshFor is the mesh of so many ranks whose axes have the given sizes; 0 leaves one open. The ranks that the sizes
// leave lie along dp_shard if the model is sharded and no size is given there, and along dp_replicate otherwise. Sizes
// of one rank altogether, which other tools write where nothing was asked for, leave all ranks. The error has all that
// is wrong.
func MeshFor(world int, sizes comm.Mesh, sharded bool) (comm.Mesh, error) {
	m := sizes
	if m.Axes() == 0 {
		m = comm.Mesh{}
	}
	rest := true
	switch {
	case sharded && m.DPShard == 0:
		m.DPShard = -1
	case m.DPReplicate == 0:
		m.DPReplicate = -1
	default:
		rest = false
	}
	if fitted, err := m.Of(world); err == nil {
		return fitted, spreads(fitted, sharded)
	}
	product := sizes.Size(^comm.Axes(0))
	want := fmt.Sprintf("%s, or sizes whose product is %d", quantity.Of(product, "rank"), world)
	if rest {
		want = fmt.Sprintf("a multiple of %d ranks, or sizes whose product divides %d (%s)", product, world,
			divisors(world))
	} else if world%product == 0 && m.DPShard == 0 {
		want += fmt.Sprintf("; or dp_shard_size %d, which shards the model", world/product)
	}
	return m, fmt.Errorf("accelerate: mesh %v does not fit %s: want %s", sizes, quantity.Of(world, "rank"), want)
}

// divisors lists those of a number of ranks.
func divisors(n int) string {
	var list []string
	for d := 1; d <= n; d++ {
		if n%d == 0 {
			list = append(list, fmt.Sprint(d))
		}
	}
	return strings.Join(list, ", ")
}

// Mesh is how the ranks are arranged.
func (r *Ranks) Mesh() comm.Mesh { return r.mesh }

// arrange finds this rank's place in the mesh.
func (r *Ranks) arrange() error {
	sizes, err := r.sizes()
	if err != nil {
		return err
	}
	if given := r.options.Mesh; given == (comm.Mesh{}) {
		r.mesh, err = MeshFor(r.size, sizes, r.options.Sharded)
	} else if r.mesh, err = given.Of(r.size); err != nil {
		err = fmt.Errorf("accelerate: %w", err)
	} else {
		err = errors.Join(agree(r.mesh, sizes), spreads(r.mesh, r.options.Sharded))
	}
	if err != nil {
		return err
	}
	r.all, r.peers = &r.Peers, map[comm.Axes]*Peers{}
	for _, axes := range []comm.Axes{dataAxes, partAxes, lossAxes, modelAxes, shardAxes, comm.DPReplicate, comm.TP,
		comm.PP, comm.CP} {
		if axes &= r.mesh.Axes(); axes != 0 && axes != r.mesh.Axes() {
			r.peers[axes] = &Peers{rank: r.mesh.Coord(r.rank, axes), size: r.mesh.Size(axes)}
		}
	}
	return nil
}

// spreads refuses a mesh whose ranks all have the whole of a model that is to be sharded.
func spreads(m comm.Mesh, sharded bool) error {
	if !sharded || m.Axes() == 0 || m.Size(shardAxes) > 1 {
		return nil
	}
	return fmt.Errorf("accelerate: mesh %v has no ranks to spread the model over: want dp_shard_size of at least 2, "+
		"or no sharding (fsdp, zero_stage)", m)
}

// agree refuses a mesh of the program that has other sizes than those asked for.
func agree(m, sizes comm.Mesh) error {
	var faults []error
	for axis := comm.PP; axis <= comm.TP; axis <<= 1 {
		if n := sizes.Size(axis); n > 1 && n != m.Size(axis) {
			faults = append(faults, fmt.Errorf("accelerate: mesh %v of the program, and %v_size is %d: want one of "+
				"both, or the same", m, axis, n))
		}
	}
	return errors.Join(faults...)
}

// sizes are those asked for, with the replicas of a sharded model that lie one on each host.
func (r *Ranks) sizes() (comm.Mesh, error) {
	o, sizes := &r.options, r.options.Sizes
	if !o.Hybrid || sizes.DPReplicate > 0 || sizes.DPShard > 0 || o.Mesh != (comm.Mesh{}) || r.place == nil ||
		r.place.LocalWorldSize == 0 {
		return sizes, nil
	}
	if r.size%r.place.LocalWorldSize != 0 {
		return sizes, fmt.Errorf("accelerate: %d ranks, and %d of them on this host: want as many on each host with "+
			"hybrid_shard, or dp_replicate_size", r.size, r.place.LocalWorldSize)
	}
	sizes.DPReplicate = r.size / r.place.LocalWorldSize
	return sizes, nil
}

// split makes the groups of the mesh, in one collective call. It does nothing if there are none or they are there.
func (r *Ranks) split() error {
	if len(r.peers) == 0 || r.group == nil || r.ended != nil {
		return nil
	}
	r.ended = make(chan struct{})
	sets := slices.Sorted(maps.Keys(r.peers))
	groups, err := r.mesh.Groups(r.group, sets...)
	if err != nil {
		return fmt.Errorf("accelerate: groups of mesh %v: %w", r.mesh, err)
	}
	for i, axes := range sets {
		r.peers[axes].group = groups[i]
		go comm.EndTogether(r.group, groups[i], r.ended)
	}
	return nil
}

func (r *roles) abort(err error) {
	for _, p := range r.peers {
		if p.group != nil {
			p.group.Abort(err)
		}
	}
}

func (r *roles) close() error {
	if r.ended == nil {
		return nil
	}
	close(r.ended)
	r.ended = nil
	var errs []error
	for _, p := range r.peers {
		if p.group != nil {
			errs = append(errs, p.group.Close())
			p.group = nil
		}
	}
	return errors.Join(errs...)
}
