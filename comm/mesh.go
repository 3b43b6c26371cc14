// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Axes is a set of dimensions of a [Mesh]. Each constant is one axis; combine them with |.
type Axes uint8

// The axes, the slowest first: ranks that differ only along TP have consecutive numbers. The names and their order are
// those of torchtitan's ParallelDims and of accelerate's ParallelismConfig.
const (
	PP          Axes = 1 << iota // pipeline parallelism: different layers
	DPReplicate                  // data parallelism: different samples, the same parameters
	DPShard                      // data parallelism: different samples, the parameters spread over the ranks
	CP                           // context parallelism: different tokens of the same samples
	TP                           // tensor parallelism: different parts of each layer
	numAxes     = iota
)

var axisNames = [numAxes]string{"pp", "dp_replicate", "dp_shard", "cp", "tp"}

// String returns the names: "dp_replicate×cp".
func (a Axes) String() string {
	var names []string
	for i, name := range axisNames {
		if a&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "×")
}

// Mesh is the number of ranks along each axis. 0 counts as 1, and −1 means the ranks that the other axes leave;
// [Mesh.Of] resolves it. It is PyTorch's DeviceMesh with fixed names. The zero value has one rank.
type Mesh struct{ PP, DPReplicate, DPShard, CP, TP int }

// ParseMesh reads a mesh as "dp_shard=-1,tp=4", in any order.
func ParseMesh(text string) (Mesh, error) {
	var m Mesh
	var seen Axes
	for part := range strings.SplitSeq(text, ",") {
		name, size, ok := strings.Cut(strings.TrimSpace(part), "=")
		n, err := strconv.Atoi(size)
		if !ok || name == "" || err != nil || n == 0 {
			return Mesh{}, fmt.Errorf("comm: mesh %q has %q: want axes as dp_shard=2,tp=4", text, part)
		}
		i := slices.Index(axisNames[:], name)
		switch {
		case i < 0:
			return Mesh{}, fmt.Errorf("comm: mesh %q: unknown axis %q: want axes among %s", text, name,
				strings.Join(axisNames[:], ", "))
		case seen&(1<<i) != 0:
			return Mesh{}, fmt.Errorf("comm: mesh %q: axis %q is given twice: want each once", text, name)
		}
		seen |= 1 << i
		*m.size(i) = n
	}
	return m, nil
}

// size is that of the axis of a number.
func (m *Mesh) size(axis int) *int {
	return [...]*int{&m.PP, &m.DPReplicate, &m.DPShard, &m.CP, &m.TP}[axis]
}

// Of resolves the mesh for a job of world ranks: no size is 0 or −1 afterwards. The product of the sizes must be world.
func (m Mesh) Of(world int) (Mesh, error) {
	given, product := m, 1
	open := (*int)(nil)
	for i := range numAxes {
		n := m.size(i)
		switch {
		case *n == 0:
			*n = 1
		case *n == -1 && open == nil:
			open = n
		case *n < 1 || *n > world:
			return Mesh{}, fmt.Errorf("comm: mesh %v: want sizes from 1 to %d ranks, and −1 at most once", given, world)
		case product > world / *n: // before it can overflow
			return Mesh{}, fmt.Errorf("comm: mesh %v has more than the %d ranks of the job", given, world)
		default:
			product *= *n
		}
	}
	if open != nil && world%product == 0 {
		*open = world / product
		product = world
	}
	if product != world {
		return Mesh{}, fmt.Errorf("comm: mesh %v does not fit %d ranks: want sizes whose product is %d", given, world,
			world)
	}
	return m, nil
}

// String writes the axes of more than one rank as ParseMesh reads them.
func (m Mesh) String() string {
	var parts []string
	for i, name := range axisNames {
		if n := *m.size(i); n != 0 && n != 1 {
			parts = append(parts, fmt.Sprintf("%s=%d", name, n))
		}
	}
	if len(parts) == 0 {
		return "dp_shard=1"
	}
	return strings.Join(parts, ",")
}

// mostDrawn is the most ranks that Drawing shows one by one.
const mostDrawn = 16

// Drawing is String with the ranks in their places, unless they are many: "dp_replicate=2,dp_shard=2 [[0 1] [2 3]]".
// The outer brackets are those of the first axis. Like Coord it needs the result of Of.
func (m Mesh) Drawing() string {
	text := m.String()
	if m.Size(^Axes(0)) > mostDrawn {
		return text
	}
	return text + " " + m.draw(0, m.Axes())
}

// draw brackets the ranks that differ along axes, from the given one on.
func (m Mesh) draw(rank int, axes Axes) string {
	if axes == 0 {
		return strconv.Itoa(rank)
	}
	rest := axes & (axes - 1) // without the slowest
	parts := make([]string, m.Size(axes&^rest))
	for i := range parts {
		parts[i] = m.draw(rank+i*m.Size(rest), rest)
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// Axes are those along which ranks differ: of more than one rank.
func (m Mesh) Axes() Axes {
	var axes Axes
	for i := range numAxes {
		if n := *m.size(i); n != 0 && n != 1 {
			axes |= 1 << i
		}
	}
	return axes
}

// Size is the number of ranks along the given axes together.
func (m Mesh) Size(axes Axes) int {
	size := 1
	for i := range numAxes {
		if axes&(1<<i) != 0 {
			size *= max(1, *m.size(i))
		}
	}
	return size
}

// Coord is the place of a rank along the given axes, counted as if they were one axis. Like the methods below it needs
// the result of Of.
func (m Mesh) Coord(rank int, axes Axes) int {
	at, stride := 0, 1
	for i := numAxes - 1; i >= 0; i-- {
		size := max(1, *m.size(i))
		if axes&(1<<i) != 0 {
			at += rank % size * stride
			stride *= size
		}
		rank /= size
	}
	return at
}

// Peers are the ranks that share a rank's place on all other axes than the given ones, in ascending order, which is
// that of Coord. The rank is one of them.
func (m Mesh) Peers(rank int, axes Axes) []int {
	var peers []int
	for r := range m.Size(^Axes(0)) {
		if m.Coord(r, ^axes) == m.Coord(rank, ^axes) {
			peers = append(peers, r)
		}
	}
	return peers
}

// Groups returns this rank's sub-group of g along each of the sets of axes, named after them. It is one collective
// call, see [Group.Split]. The mesh must have as many ranks as g.
func (m Mesh) Groups(g *Group, sets ...Axes) ([]*Group, error) {
	partitions := make([]Partition, len(sets))
	for i, axes := range sets {
		partitions[i] = Partition{Name: axes.String(), Color: make([]int, g.Size())}
		for r := range g.Size() {
			partitions[i].Color[r] = m.Coord(r, ^axes)
		}
	}
	return g.Split(partitions...)
}
