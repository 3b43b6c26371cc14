// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Partition divides the ranks of a group into sub-groups of one name.
type Partition struct {
	Name string
	// Color has a number for each rank of the group. The ranks of one number are a sub-group, in ascending order; ranks
	// of a negative number are in none.
	Color []int
}

// members are the ranks of each sub-group, by their colors' first ranks.
func (p Partition) members() [][]int {
	var list [][]int
	at := map[int]int{} // by color
	for r, c := range p.Color {
		if c < 0 {
			continue
		}
		if _, seen := at[c]; !seen {
			at[c] = len(list)
			list = append(list, nil)
		}
		list[at[c]] = append(list[at[c]], r)
	}
	return list
}

// Split returns this rank's sub-group of each of the partitions, nil where its color is negative: MPI_Comm_split for
// several divisions together. All ranks of g call it with the same arguments, in the same order relative to other
// collective calls. It is one collective call and waits for those before it; then the members of each sub-group connect
// to each other. The failure of a sub-group does not end others, unless a rank is lost.
func (g *Group) Split(partitions ...Partition) ([]*Group, error) {
	var names []string
	sets := make([]subset, len(partitions))
	for i, p := range partitions {
		if p.Name == "" || len(p.Color) != g.Size() {
			return nil, g.reject(fmt.Errorf("comm: partition %q with %d colors: want a name and a color for each of "+
				"%d ranks", p.Name, len(p.Color), g.Size()))
		}
		names = append(names, p.Name)
		sets[i] = subset{p.Name, p.members()}
	}
	if len(sets) == 0 {
		return nil, nil
	}
	return g.divide("split "+strings.Join(names, ", "), sets)
}

// Sub returns the sub-group of the given ranks of g, in the given order; ranks of g that are not members get nil. All
// ranks of g call it as they call Split.
func (g *Group) Sub(name string, members []int) (*Group, error) {
	for i, r := range members {
		if r < 0 || r >= g.Size() || slices.Contains(members[:i], r) {
			return nil,
				g.reject(fmt.Errorf("comm: sub-group %q of ranks %v: want distinct ranks in [0, %d)", name, members,
					g.Size()))
		}
	}
	if len(members) == 0 || name == "" {
		return nil,
			g.reject(fmt.Errorf("comm: sub-group %q of ranks %v: want a name and at least one rank", name, members))
	}
	own, err := g.divide("sub-group "+name, []subset{{name, [][]int{members}}})
	if err != nil {
		return nil, err
	}
	return own[0], nil
}

// subset is the members of disjoint sub-groups of one name.
type subset struct {
	name   string
	groups [][]int
}

// divide returns this rank's sub-group of each set.
func (g *Group) divide(label string, sets []subset) ([]*Group, error) {
	if err := g.agree(label, fmt.Sprint(sets)); err != nil {
		return nil, err
	}
	own := make([]*Group, len(sets))
	for i, set := range sets {
		for _, members := range set.groups {
			g.mu.Lock()
			g.subs++
			number := g.subs
			g.mu.Unlock()
			if !slices.Contains(members, g.Rank()) {
				continue
			}
			sub, err := g.sub(set.name, number, members)
			if err != nil {
				for _, made := range own[:i] {
					if made != nil {
						err = errors.Join(err, made.Close())
					}
				}
				return nil, err
			}
			own[i] = sub
		}
	}
	return own, nil
}

// sub makes the numbered sub-group of ranks of which this is one.
func (g *Group) sub(name string, number int, members []int) (*Group, error) {
	opts := g.opts
	opts.Name = fmt.Sprintf("%s/%s", g.opts.Name, name)
	unique := fmt.Sprintf("%s/%s#%d", g.unique, name, number)
	e, err := g.engine.Split(unique, members)
	if err != nil {
		return nil, g.reject(fmt.Errorf("comm: sub-group %q: %w", name, err))
	}
	return newGroup(e, unique, JobRanks(g.members, members), opts, g.family), nil
}

// EndTogether ends two groups of a rank with the error that ends one of them: a sub-group does not end with the group
// that it was divided from. It returns when one has ended, or done is closed.
func EndTogether(a, b *Group, done <-chan struct{}) {
	select {
	case <-a.Dead():
		b.Abort(a.Err())
	case <-b.Dead():
		a.Abort(b.Err())
	case <-done:
	}
}
