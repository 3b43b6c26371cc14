// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/unbuilt"
)

// roles are the peers of a rank by what they do together. They follow from the axes of the mesh alone.
type roles struct {
	mesh  comm.Mesh            // of all ranks
	all   *Peers               // all ranks
	peers map[comm.Axes]*Peers // along axes that some, but not all, ranks differ by
	ended chan struct{}        // closed when the groups are
}

// The axes that ranks of a role differ by.
const (
	dataAxes  = comm.DPReplicate | comm.DPShard
	lossAxes  = dataAxes | comm.CP
	shardAxes = comm.DPShard | comm.CP
	modelAxes = comm.PP | comm.CP | comm.TP
	partAxes  = lossAxes // any but those that cut the model
)

// checkAxes refuses what no step honours: the ranks along such an axis would all do the same work.
func checkAxes(m comm.Mesh) error {
	if unbuilt.Axes() {
		return nil
	}
	for _, k := range []struct {
		axis comm.Axes
		name string
	}{{comm.PP, "pipeline parallelism"}, {comm.CP, "context parallelism"}, {comm.TP, "tensor parallelism"}} {
		if m.Size(k.axis) > 1 {
			return fmt.Errorf("accelerate: mesh %v: %s is not built yet (axis %q): want axes among dp_replicate, "+
				"dp_shard", m, k.name, k.axis)
		}
	}
	return nil
}

// Data are the ranks that see different samples: the training stream is divided among them.
func (r *Ranks) Data() *Peers { return r.along(dataAxes) }

// Loss are the ranks that see different tokens: loss terms and gradients are summed over them.
func (r *Ranks) Loss() *Peers { return r.along(lossAxes) }

// Model are the ranks that share the work on the same samples.
func (r *Ranks) Model() *Peers { return r.along(modelAxes) }

// Tensor are the ranks that hold parts of the same layers.
func (r *Ranks) Tensor() *Peers { return r.along(comm.TP) }

// Pipe are the ranks that hold the layers of one model.
func (r *Ranks) Pipe() *Peers { return r.along(comm.PP) }

// Context are the ranks that see different tokens of the same samples.
func (r *Ranks) Context() *Peers { return r.along(comm.CP) }

// SamePart are the ranks that hold the same part of the model before it is sharded: all but those of other layers and
// of other parts of a layer.
func (r *Ranks) SamePart() *Peers { return r.along(partAxes) }

// Sharers are the ranks over which a sharded model is spread.
func (r *Ranks) Sharers() *Peers { return r.along(shardAxes) }

// Replicas are the ranks that own the same shard as this one, each in its replica of a sharded model.
func (r *Ranks) Replicas() *Peers { return r.along(comm.DPReplicate) }

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

// MeshFor is the mesh of a job in which nobody asks for another (Options.Mesh). A sharded model has so many replicas; 0
// stands for one.
func MeshFor(ranks int, sharded bool, replicas int) (comm.Mesh, error) {
	if !sharded {
		return comm.Mesh{DPReplicate: ranks}.Of(ranks)
	}
	replicas = max(1, replicas)
	if ranks%replicas != 0 {
		return comm.Mesh{}, fmt.Errorf("accelerate: %d replicas of a sharded model on %d ranks: want a divisor of "+
			"that (dp_replicate_size)", replicas, ranks)
	}
	return comm.Mesh{DPReplicate: replicas, DPShard: -1}.Of(ranks)
}

// arrange finds this rank's place in the mesh.
func (r *Ranks) arrange() error {
	o := &r.options
	replicas, err := r.replicas()
	if err != nil {
		return err
	}
	if o.Mesh == (comm.Mesh{}) {
		r.mesh, err = MeshFor(r.size, o.Sharded, replicas)
	} else if r.mesh, err = o.Mesh.Of(r.size); err != nil {
		err = fmt.Errorf("accelerate: %w", err)
	} else if err = checkAxes(r.mesh); err == nil && o.Sharded && replicas > 1 && replicas != r.mesh.DPReplicate {
		err = fmt.Errorf("accelerate: mesh %v has %d replicas of the sharded model: want the %d of dp_replicate_size",
			r.mesh, r.mesh.DPReplicate, replicas)
	}
	if err != nil {
		return err
	}
	r.all, r.peers = &r.Peers, map[comm.Axes]*Peers{}
	for _, axes := range []comm.Axes{dataAxes, lossAxes, modelAxes, shardAxes, comm.DPReplicate, comm.TP, comm.PP,
		comm.CP} {
		if axes &= r.mesh.Axes(); axes != 0 && axes != r.mesh.Axes() {
			r.peers[axes] = &Peers{rank: r.mesh.Coord(r.rank, axes), size: r.mesh.Size(axes)}
		}
	}
	return nil
}

// replicas is how many replicas of a sharded model there are; 0 leaves it to the mesh.
func (r *Ranks) replicas() (int, error) {
	o := &r.options
	if o.ShardReplicas > 0 || !o.Hybrid || o.Mesh != (comm.Mesh{}) || r.place == nil || r.place.LocalWorldSize == 0 {
		return o.ShardReplicas, nil
	}
	if r.size%r.place.LocalWorldSize != 0 {
		return 0, fmt.Errorf("accelerate: %d ranks, and %d of them on this host: want as many on each host with "+
			"hybrid_shard, or dp_replicate_size", r.size, r.place.LocalWorldSize)
	}
	return r.size / r.place.LocalWorldSize, nil
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
		go together(r.group, groups[i], r.ended)
	}
	return nil
}

// together ends two groups of a rank with the error that ends one of them.
func together(a, b *comm.Group, ended <-chan struct{}) {
	select {
	case <-a.Dead():
		b.Abort(a.Err())
	case <-b.Dead():
		a.Abort(b.Err())
	case <-ended:
	}
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
