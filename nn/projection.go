// SPDX-License-Identifier: Apache-2.0

package nn

// Projection is implemented by modules whose own parameters are only read as weights and biases of products
// (tensor.Linear, tensor.AddMM), as those of [Linear]: under tensor.Ctx.Autocast their rounded copies are all that a
// step needs, so that ranks that gather parameters send those. A module that reads one in float32 all the same gets it,
// at the cost of gathering it again.
type Projection interface {
	// Projects does nothing; it marks the type.
	Projects()
}

// Projects marks a Linear as a [Projection].
func (l *Linear) Projects() {}

// Projected is the set of the parameters, by name, that lie in a Projection and have no other use.
func (t *Tree) Projected() map[string]bool {
	var paths []string
	t.Modules(func(path string, m Module) {
		if _, ok := m.(Projection); ok {
			paths = append(paths, path)
		}
	})
	tied := map[string]bool{}
	for _, of := range t.aliases {
		tied[of] = true
	}
	names := map[string]bool{}
	for _, p := range t.params {
		if !tied[p.Name] && under(paths, p.Name) {
			names[p.Name] = true
		}
	}
	return names
}
