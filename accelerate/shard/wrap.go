// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Wrap chooses the units of a model, and what of it stays whole.
type Wrap struct {
	// Modules are the units whose parameters come and go together; nil: those of Classes or of MinParams, else the
	// model's blocks. What lies in none of them is whole for the length of a pass.
	Modules   []nn.Module
	Classes   []string // the names of their types
	MinParams int      // 0, or the least number of parameters of each
	// Ignored is a regular expression for the whole path of modules whose parameters stay whole on every rank, and
	// Persist the number of elements below which a parameter does.
	Ignored string
	Persist int
}

// units are the modules whose parameters come and go together.
func (w *Wrap) units(tree *nn.Tree, blocks []nn.Module) ([]nn.Module, error) {
	switch {
	case w.Modules != nil:
		return w.Modules, nil
	case len(w.Classes) > 0:
		return ofClasses(tree, w.Classes)
	case w.MinParams > 0:
		return ofSize(tree, w.MinParams), nil
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
			fmt.Errorf("shard: the model has no module of class %s (fsdp_transformer_layer_cls_to_wrap): want "+
				"one of %s", missing[0], strings.Join(types, ", "))
	}
	return list, nil
}

// staying reports of parameters, by name, whether they stay whole where others come and go: those of ignored modules,
// and small ones.
func (w *Wrap) staying(tree *nn.Tree) (func(p tensor.Named) bool, error) {
	if w.Ignored == "" && w.Persist == 0 {
		return nil, nil
	}
	pattern, err := regexp.Compile("^(?:" + w.Ignored + ")$")
	if err != nil {
		return nil, fmt.Errorf("shard: fsdp_ignored_modules: %w", err)
	}
	var ignored []string
	if w.Ignored != "" {
		tree.Modules(func(path string, _ nn.Module) {
			if path != "" && pattern.MatchString(path) {
				ignored = append(ignored, path+".")
			}
		})
		if len(ignored) == 0 {
			return nil, fmt.Errorf("shard: fsdp_ignored_modules %q matches no module's path; they are as %s",
				w.Ignored, somePaths(tree))
		}
	}
	return func(p tensor.Named) bool {
		return p.Numel() < w.Persist ||
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
