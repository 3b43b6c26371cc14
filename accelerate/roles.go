// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/dist"
)

// roles are the peers of a rank by what they do together. Without a mesh all ranks see different data and each has the
// whole model, so that the peers of the data are all ranks.
type roles struct {
	axes  []dist.Axis
	mesh  dist.Mesh
	data  *Peers // nil: all ranks
	model *Peers // nil: this rank alone
	ended chan struct{}
}

// WithMesh arranges the ranks along axes, as dist.NewMesh does. Ranks that differ along an axis whose name begins with
// dp (dp, dp_replicate, dp_shard) see different data, and their gradients are summed. Those that differ along other
// axes (pp, cp, tp) see the same data.
func WithMesh(axes ...dist.Axis) Option { return func(a *Accelerator) { a.axes = axes } }

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

// arrange finds this rank's place in the mesh.
func (r *Ranks) arrange() error {
	if len(r.axes) == 0 {
		return nil
	}
	var err error
	if r.mesh, err = dist.NewMesh(r.size, r.axes...); err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	data, model := r.along()
	r.data = &Peers{rank: r.mesh.Coord(r.rank, data...), size: r.mesh.Size(data...)}
	r.model = &Peers{rank: r.mesh.Coord(r.rank, model...), size: r.mesh.Size(model...)}
	return nil
}

// along are the axes of the data and of the model.
func (r *roles) along() (data, model []string) {
	for _, a := range r.mesh.Axes() {
		if strings.HasPrefix(a.Name, "dp") {
			data = append(data, a.Name)
		} else {
			model = append(model, a.Name)
		}
	}
	return data, model
}

// split makes the groups of the mesh. It is collective, and does nothing without a mesh or if they are there.
func (r *Ranks) split() error {
	if r.data == nil || r.group == nil || r.ended != nil {
		return nil
	}
	r.ended = make(chan struct{})
	data, model := r.along()
	for _, role := range []struct {
		peers *Peers
		axes  []string
	}{{r.data, data}, {r.model, model}} {
		if role.peers.size == 1 {
			continue
		}
		var err error
		if role.peers.group, err = r.mesh.Group(r.group, role.axes...); err != nil {
			return fmt.Errorf("accelerate: groups of mesh %v: %w", r.mesh, err)
		}
		go together(r.group, role.peers.group, r.ended)
	}
	return nil
}

// together ends two groups of a rank with the error that ends one of them.
func together(a, b *dist.Group, ended <-chan struct{}) {
	select {
	case <-a.Dead():
		b.Abort(a.Err())
	case <-b.Dead():
		a.Abort(b.Err())
	case <-ended:
	}
}

// groups are those of the mesh that the rank has.
func (r *roles) groups() (list []*dist.Group) {
	for _, p := range []*Peers{r.data, r.model} {
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
	for _, p := range []*Peers{r.data, r.model} {
		p.group = nil
	}
	return errors.Join(errs...)
}
