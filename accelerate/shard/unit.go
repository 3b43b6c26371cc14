// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Unit is what is gathered, and whose gradients are exchanged, together.
type Unit struct {
	Name   string
	Module nn.Module // whose forward and backward pass use the parameters; nil for a bucket
	Params []tensor.Named
}

// Units divides the parameters of a model: each of the modules, which may lie in one another, gets those that lie in it
// and in no module of the list inside of it; the model itself, the root, comes first and gets the rest. A parameter
// that several units use belongs to the innermost unit around all of them; moved lists such parameters.
func Units(tree *nn.Tree, model nn.Module, modules []nn.Module) (units []Unit, moved []string, err error) {
	paths := []string{""}
	units = []Unit{{Name: "root", Module: model}}
	missing := slices.Clone(modules)
	tree.Modules(func(path string, m nn.Module) {
		if i := slices.Index(missing, m); i >= 0 && m != model {
			missing = slices.Delete(missing, i, i+1)
			paths, units = append(paths, path), append(units, Unit{Name: path, Module: m})
		}
	})
	missing = slices.DeleteFunc(missing, func(m nn.Module) bool { return m == model })
	if len(missing) > 0 {
		return nil, nil, fmt.Errorf("shard: %T is not a module of %T", missing[0], model)
	}
	uses := map[string][]string{}
	for path, of := range tree.Aliases() {
		uses[of] = append(uses[of], path)
	}
	for _, p := range tree.Parameters() {
		at := innermost(paths, p.Name)
		home := at
		for _, other := range uses[p.Name] {
			for !within(other, paths[home]) {
				home = innermost(paths, parent(paths[home]))
			}
		}
		if home != at {
			moved = append(moved, p.Name)
		}
		units[home].Params = append(units[home].Params, p)
	}
	return units, moved, nil
}

// innermost is the unit with the longest path around a path.
func innermost(paths []string, path string) (unit int) {
	for i, p := range paths {
		if within(path, p) && len(p) > len(paths[unit]) {
			unit = i
		}
	}
	return unit
}

// within reports whether a path is that of a module or lies in it.
func within(path, module string) bool {
	return module == "" || path == module || strings.HasPrefix(path, module+".")
}

func parent(path string) string {
	i := strings.LastIndexByte(path, '.')
	return path[:max(i, 0)]
}

// Buckets divides trained parameters, last ones first as their gradients become complete, into units of about so many
// bytes.
func Buckets(params []tensor.Named, bytes int) (units []Unit) {
	size := 0
	for _, p := range slices.Backward(params) {
		n := p.Bytes()
		if len(units) == 0 || size+n > bytes {
			units, size = append(units, Unit{Name: fmt.Sprintf("bucket %d", len(units))}), 0
		}
		u := &units[len(units)-1]
		u.Params = append(u.Params, p)
		size += n
	}
	return units
}
