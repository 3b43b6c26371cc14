// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// wrapped are the modules whose parameters come and go together: those of Sharding, or what the plan chooses by class
// or size, or blocks.
func wrapped(a *Accelerator, blocks []nn.Module) ([]nn.Module, error) {
	switch {
	case a.sharding.Modules != nil:
		return a.sharding.Modules, nil
	case len(a.plan.units.classes) > 0:
		return ofClasses(a.tree, a.plan.units.classes)
	case a.plan.units.least > 0:
		return ofSize(a.tree, a.plan.units.least), nil
	}
	return blocks, nil
}

// ofClasses lists the modules of the named types.
func ofClasses(tree *nn.Tree, names []string) (list []nn.Module, err error) {
	missing := slices.Clone(names)
	known := map[string]bool{}
	tree.Modules(func(path string, m nn.Module) {
		if path == "" {
			return
		}
		t := reflect.TypeOf(m)
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		known[t.String()] = true
		for _, name := range names {
			if isClass(t, name) {
				missing = slices.DeleteFunc(missing, func(s string) bool { return s == name })
				list = append(list, m)
				return
			}
		}
	})
	if len(missing) > 0 {
		types := make([]string, 0, len(known))
		for t := range known {
			types = append(types, t)
		}
		slices.Sort(types)
		return nil,
			fmt.Errorf("accelerate: the model has no module of class %s (fsdp_transformer_layer_cls_to_wrap): want "+
				"one of %s", missing[0], strings.Join(types, ", "))
	}
	return list, nil
}

// staying reports of parameters, by name, whether they stay whole where others come and go: those of ignored modules,
// and small ones.
func staying(a *Accelerator) (func(p tensor.Named) bool, error) {
	if a.sharding.Ignored == "" && a.sharding.Persist == 0 {
		return nil, nil
	}
	pattern, err := regexp.Compile("^(?:" + a.sharding.Ignored + ")$")
	if err != nil {
		return nil, fmt.Errorf("accelerate: fsdp_ignored_modules: %w", err)
	}
	var ignored []string
	if a.sharding.Ignored != "" {
		a.tree.Modules(func(path string, _ nn.Module) {
			if path != "" && pattern.MatchString(path) {
				ignored = append(ignored, path+".")
			}
		})
		if len(ignored) == 0 {
			return nil, fmt.Errorf("accelerate: fsdp_ignored_modules %q matches no module's path; they are as %s",
				a.sharding.Ignored, somePaths(a.tree))
		}
	}
	return func(p tensor.Named) bool {
		return p.Numel() < a.sharding.Persist ||
			slices.ContainsFunc(ignored, func(path string) bool { return strings.HasPrefix(p.Name, path) })
	}, nil
}

// somePaths are a few paths of modules.
func somePaths(tree *nn.Tree) string {
	var paths []string
	tree.Modules(func(path string, _ nn.Module) {
		if path != "" && len(paths) < 5 {
			paths = append(paths, path)
		}
	})
	return strings.Join(paths, ", ")
}

// isClass reports whether a name is that of a type: Block, gpt2.Block, or GPT2Block, as transformers calls it.
func isClass(t reflect.Type, name string) bool {
	return name == t.Name() || name == t.String() || strings.EqualFold(name, strings.ReplaceAll(t.String(), ".", ""))
}

// ofSize lists modules of at least so many parameters that are in no smaller such module, as PyTorch's
// size_based_auto_wrap_policy does: from the innermost outwards, a module counts what its wrapped parts leave.
func ofSize(tree *nn.Tree, least int) (list []nn.Module) {
	type node struct {
		path   string
		module nn.Module
	}
	var nodes []node
	tree.Modules(func(path string, m nn.Module) {
		if path != "" {
			nodes = append(nodes, node{path, m})
		}
	})
	left := map[string]int{} // parameters below a path that are in no wrapped module
	for _, p := range tree.Parameters() {
		for path := p.Name; path != ""; {
			path = path[:max(0, strings.LastIndexByte(path, '.'))]
			left[path] += p.Numel()
		}
	}
	slices.SortStableFunc(nodes, func(a, b node) int { // parts before what they are parts of
		return strings.Count(b.path, ".") - strings.Count(a.path, ".")
	})
	for _, n := range nodes {
		size := left[n.path]
		if size < least {
			continue
		}
		list = append(list, n.module)
		for path := n.path; ; {
			left[path] -= size
			if path == "" {
				break
			}
			path = path[:max(0, strings.LastIndexByte(path, '.'))]
		}
	}
	return list
}
