// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Axis is a dimension of a mesh. A Size of −1 stands for the ranks that the other axes leave.
type Axis struct {
	Name string
	Size int
}

// Mesh arranges ranks along named axes, of which the last is the fastest: the mesh of dp=2, tp=4 has ranks 0 to 3 at
// dp 0. It is PyTorch's DeviceMesh. The zero value has no axes and one rank.
type Mesh struct{ axes []Axis }

// ParseAxes reads axes as "dp=2,tp=4".
func ParseAxes(text string) ([]Axis, error) {
	var axes []Axis
	for part := range strings.SplitSeq(text, ",") {
		name, size, ok := strings.Cut(strings.TrimSpace(part), "=")
		n, err := strconv.Atoi(size)
		if !ok || name == "" || err != nil {
			return nil, fmt.Errorf("comm: mesh %q: got %q, want axes as dp=2,tp=4", text, part)
		}
		axes = append(axes, Axis{name, n})
	}
	return axes, nil
}

// NewMesh arranges world ranks. The product of the sizes must be world; one size may be −1.
func NewMesh(world int, axes ...Axis) (Mesh, error) {
	m := Mesh{axes: slices.Clone(axes)}
	product, open := 1, -1
	for i, a := range m.axes {
		switch {
		case a.Name == "" || slices.ContainsFunc(m.axes[:i], func(b Axis) bool { return a.Name == b.Name }):
			return Mesh{}, fmt.Errorf("comm: mesh %v: axis %d is named %q: want names, each once", m, i, a.Name)
		case a.Size == -1 && open < 0:
			open = i
		case a.Size < 1 || a.Size > world:
			return Mesh{}, fmt.Errorf("comm: mesh %v: want sizes from 1 to %d ranks, and −1 at most once", m, world)
		default:
			if product > world/a.Size { // before it can overflow
				return Mesh{}, fmt.Errorf("comm: mesh %v has more than the %d ranks of the job", m, world)
			}
			product *= a.Size
		}
	}
	if open >= 0 && world%product == 0 {
		m.axes[open].Size = world / product
		product = world
	}
	if product != world {
		return Mesh{}, fmt.Errorf("comm: mesh %v does not fit %d ranks: want sizes whose product is %d", m, world,
			world)
	}
	return m, nil
}

// String writes the axes as ParseAxes reads them.
func (m Mesh) String() string {
	parts := make([]string, len(m.axes))
	for i, a := range m.axes {
		parts[i] = fmt.Sprintf("%s=%d", a.Name, a.Size)
	}
	return strings.Join(parts, ",")
}

// Axes are the axes, with their sizes.
func (m Mesh) Axes() []Axis { return slices.Clone(m.axes) }

// Size is the number of ranks along the given axes together; axes that the mesh does not have count 1.
func (m Mesh) Size(axes ...string) int {
	size := 1
	for _, a := range m.axes {
		if slices.Contains(axes, a.Name) {
			size *= a.Size
		}
	}
	return size
}

// Coord is the place of a rank along the given axes, counted as if they were one axis, in the mesh's order.
func (m Mesh) Coord(rank int, axes ...string) int {
	at, stride := 0, 1
	for i := len(m.axes) - 1; i >= 0; i-- {
		a := m.axes[i]
		if slices.Contains(axes, a.Name) {
			at += rank % a.Size * stride
			stride *= a.Size
		}
		rank /= a.Size
	}
	return at
}

// Peers are the ranks that share a rank's place on all other axes than the given ones, ordered by Coord. The rank is
// one of them.
func (m Mesh) Peers(rank int, axes ...string) []int {
	var rest []string
	world := 1
	for _, a := range m.axes {
		world *= a.Size
		if !slices.Contains(axes, a.Name) {
			rest = append(rest, a.Name)
		}
	}
	peers := make([]int, m.Size(axes...))
	for r := range world {
		if m.Coord(r, rest...) == m.Coord(rank, rest...) {
			peers[m.Coord(r, axes...)] = r
		}
	}
	return peers
}

// Group returns this rank's sub-group of g along the given axes, whose name is that of the axes. All ranks of g call
// it. The mesh must have as many ranks as g.
func (m Mesh) Group(g *Group, axes ...string) (*Group, error) {
	var own *Group
	made := make([]bool, g.Size())
	for rank := range g.Size() {
		if made[rank] {
			continue
		}
		peers := m.Peers(rank, axes...)
		for _, p := range peers {
			made[p] = true
		}
		sub, err := g.Sub(strings.Join(axes, "×"), peers)
		if err != nil {
			return nil, err
		}
		if sub != nil {
			own = sub
		}
	}
	return own, nil
}
