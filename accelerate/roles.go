// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/unbuilt"
)

// roles are the peers of a rank by what they do together. Without a mesh all ranks see different data and each has the
// whole model, so that the peers of the data are all ranks.
type roles struct {
	axes     []comm.Axis
	mesh     comm.Mesh
	data     *Peers // nil: all ranks
	model    *Peers // nil: this rank alone
	shards   *Peers // nil: those of the data
	replicas *Peers // nil: this rank alone
	ended    chan struct{}
}

// WithMesh arranges the ranks along axes, as comm.NewMesh does. The axes are dp, dp_replicate and dp_shard: ranks that
// differ along them see different data, and their gradients are summed. A model is spread over the ranks that differ
// along axes other than dp_replicate. An axis of another kind of parallelism (tp, pp, cp, sp, ep) is an error until
// that is built, unless its size is 1.
func WithMesh(axes ...comm.Axis) Option { return func(a *Accelerator) { a.axes = axes } }

// replicate is the axis along which ranks own the same shards.
const replicate = "dp_replicate"

// dataAxes are those along which ranks see different data.
var dataAxes = []string{"dp", replicate, "dp_shard"}

// plannedAxes are those along which ranks will share the work on the same data.
var plannedAxes = map[string]string{
	"tp": "tensor parallelism", "pp": "pipeline parallelism", "cp": "context parallelism", "sp": "sequence parallelism",
	"ep": "expert parallelism",
}

// checkAxes refuses what no step honours: the ranks along such an axis would all do the same work.
func checkAxes(m comm.Mesh) error {
	if unbuilt.Axes() {
		return nil
	}
	for _, a := range m.Axes() {
		planned, known := plannedAxes[a.Name]
		switch {
		case slices.Contains(dataAxes, a.Name) || known && a.Size == 1:
		case known:
			return fmt.Errorf("accelerate: mesh %v: %s is not built yet (axis %q): want axes among %s", m, planned,
				a.Name, strings.Join(dataAxes, ", "))
		default:
			return fmt.Errorf("accelerate: mesh %v: unknown axis %q: want axes among %s", m, a.Name,
				strings.Join(dataAxes, ", "))
		}
	}
	return nil
}

// Data are the ranks that see different data: the training stream is divided among them, and gradients, losses and
// batch statistics are summed over them.
func (r *Ranks) Data() *Peers {
	if r.data != nil {
		return r.data
	}
	return &r.Peers
}

// Model are the ranks that see the same data.
func (r *Ranks) Model() *Peers {
	if r.model != nil {
		return r.model
	}
	return &Peers{size: 1}
}

// sharing are those of the data's ranks over which a sharded model is spread: all, or those of this rank's replica.
func (r *Ranks) sharing() *Peers {
	if r.shards != nil {
		return r.shards
	}
	return r.Data()
}

// twins are the ranks that own the same shards as this one, each in its replica of the model.
func (r *Ranks) twins() *Peers {
	if r.replicas != nil {
		return r.replicas
	}
	return &Peers{size: 1}
}

// arrange finds this rank's place in the mesh. A sharded model has so many replicas; 0 leaves it to the mesh.
func (r *Ranks) arrange(sharded bool, replicas int) error {
	if len(r.axes) == 0 && sharded && replicas > 1 {
		if r.size%replicas != 0 {
			return fmt.Errorf("accelerate: %d replicas of a sharded model on %d ranks: want a divisor of that "+
				"(dp_replicate_size)", replicas, r.size)
		}
		r.axes = []comm.Axis{{Name: replicate, Size: replicas}, {Name: "dp_shard", Size: r.size / replicas}}
	}
	if len(r.axes) == 0 {
		return nil
	}
	var err error
	if r.mesh, err = comm.NewMesh(r.size, r.axes...); err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	if err := checkAxes(r.mesh); err != nil {
		return err
	}
	for _, role := range r.along() {
		*role.peers = &Peers{rank: r.mesh.Coord(r.rank, role.axes...), size: r.mesh.Size(role.axes...)}
	}
	if !sharded {
		r.shards, r.replicas = nil, nil
	} else if n := r.twins().size; replicas > 1 && n != replicas {
		return fmt.Errorf("accelerate: mesh %v has %d replicas of the sharded model, dp_replicate_size says %d", r.mesh,
			n, replicas)
	}
	return nil
}

// role is peers and the axes along which they differ.
type role struct {
	peers **Peers
	axes  []string
}

// along are the roles that the mesh makes.
func (r *roles) along() []role {
	var data, model, shards, replicas []string
	for _, a := range r.mesh.Axes() {
		switch {
		case !slices.Contains(dataAxes, a.Name):
			model = append(model, a.Name)
			continue
		case a.Name == replicate:
			replicas = append(replicas, a.Name)
		default:
			shards = append(shards, a.Name)
		}
		data = append(data, a.Name)
	}
	list := []role{{&r.data, data}, {&r.model, model}}
	if len(replicas) > 0 {
		list = append(list, role{&r.shards, shards}, role{&r.replicas, replicas})
	}
	return list
}

// split makes the groups of the mesh. It is collective, and does nothing without a mesh or if they are there.
func (r *Ranks) split() error {
	if r.data == nil || r.group == nil || r.ended != nil {
		return nil
	}
	r.ended = make(chan struct{})
	for _, role := range r.along() {
		peers := *role.peers
		if peers == nil || peers.size == 1 {
			continue
		}
		var err error
		if peers.group, err = r.mesh.Group(r.group, role.axes...); err != nil {
			return fmt.Errorf("accelerate: groups of mesh %v: %w", r.mesh, err)
		}
		go together(r.group, peers.group, r.ended)
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

func (r *roles) all() []*Peers { return []*Peers{r.data, r.model, r.shards, r.replicas} }

// groups are those of the mesh that the rank has.
func (r *roles) groups() (list []*comm.Group) {
	for _, p := range r.all() {
		if p != nil && p.group != nil {
			list = append(list, p.group)
		}
	}
	return list
}

func (r *roles) abort(err error) {
	for _, g := range r.groups() {
		g.Abort(err)
	}
}

func (r *roles) close() error {
	if r.ended == nil {
		return nil
	}
	close(r.ended)
	r.ended = nil
	var errs []error
	for _, g := range r.groups() {
		errs = append(errs, g.Close())
	}
	for _, p := range r.all() {
		if p != nil {
			p.group = nil
		}
	}
	return errors.Join(errs...)
}
