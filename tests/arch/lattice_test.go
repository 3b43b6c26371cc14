// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/lockstep-ml/lockstep"

// anything marks folders that may import every other.
const anything = "*"

// lattice says which top-level folders a folder's non-test files may import, beside the
// folder itself. "models." is the package models alone, without those below it. It
// changes only with an argument, never to make a build pass.
var lattice = map[string][]string{
	"internal":     {},
	"args":         {"internal"},
	"trace":        {"internal"},
	"samplers":     {"internal"},
	"hub":          {"internal"},
	"tensor":       {"internal"},
	"metrics":      {"tensor"},
	"optim":        {"tensor", "internal"},
	"comm":         {"tensor", "internal"},
	"nn":           {"tensor", "internal"},
	"data":         {"samplers", "tensor", "internal"},
	"models":       {"data", "nn", "tensor", "internal"},
	"callbacks":    {"args", "nn", "optim", "trace", "internal"},
	"integrations": {"args", "callbacks", "nn", "tensor", "trace", "internal"},
	"checkpoint":   {"comm", "tensor", "internal"},
	"accelerate":   {"args", "data", "comm", "nn", "optim", "samplers", "tensor", "trace", "internal"},
	"trainer": {"accelerate", "args", "callbacks", "checkpoint", "data", "comm", "models.", "nn", "optim", "samplers",
		"tensor", "trace", "internal"},
	"program":  {"accelerate", "args", "callbacks", "integrations", "tensor", "trainer", "internal"},
	"cmd":      {anything},
	"examples": {anything},
	"tests":    {anything},
	"bench":    {anything},
}

// plugins are opened by a blank import in the user's program; the libraries that know
// their interface must not know them.
var plugins = []string{"tensor/cuda", "comm/nccl", "comm/mpi"}

// imports reports a file that imports what the lattice does not allow.
func imports(f file) []string {
	top := topOf(f.dir)
	allowed, known := lattice[top]
	if !known {
		return []string{fmt.Sprintf("%s: the top-level folder %q is not in the design's tree: want one of %s", f.name,
			top, strings.Join(folders(), ", "))}
	}
	if f.test || slices.Contains(allowed, anything) {
		return nil
	}
	var bad []string
	for _, path := range f.imports() {
		dir, own := strings.CutPrefix(path, module+"/")
		if !own {
			continue
		}
		to := topOf(dir)
		switch {
		case slices.ContainsFunc(plugins, func(p string) bool { return within(dir, p) && !within(f.dir, p) }):
			bad = append(bad, fmt.Sprintf("%s imports %s: only a program does, by a blank import", f.name, dir))
		case dir == "accelerate" && f.dir != dir && top == dir:
			bad = append(bad, fmt.Sprintf("%s imports accelerate: its parts do not import the whole", f.name))
		case to == top || slices.Contains(allowed, to) || to == dir && slices.Contains(allowed, to+"."):
		default:
			bad = append(bad, fmt.Sprintf("%s imports %s: %s may import %s", f.name, dir, top, may(allowed)))
		}
	}
	return bad
}

func may(allowed []string) string {
	if len(allowed) == 0 {
		return "nothing but itself"
	}
	return strings.Join(allowed, ", ")
}

func folders() []string {
	var names []string
	for n := range lattice {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func topOf(dir string) string {
	top, _, _ := strings.Cut(dir, "/")
	return top
}

func within(dir, parent string) bool { return dir == parent || strings.HasPrefix(dir, parent+"/") }

func TestImportLattice(t *testing.T) { requireNone(t, imports) }

// The table itself must make sense: it names its own folders, and nobody imports upwards.
func TestLatticeHasNoCycle(t *testing.T) {
	var visit func(folder string, path []string)
	visit = func(folder string, path []string) {
		require.NotContains(t, path, folder, "cycle")
		allowed, known := lattice[folder]
		require.True(t, known, "%s leads to %s, which is no folder of the lattice", path, folder)
		for _, to := range allowed {
			if to != anything {
				visit(strings.TrimSuffix(to, "."), append(slices.Clone(path), folder))
			}
		}
	}
	for folder := range lattice {
		visit(folder, nil)
	}
}

func TestImportLatticeBites(t *testing.T) {
	for _, c := range []struct{ name, source, want string }{
		{"tensor/a.go", imported("nn"), "tensor/a.go imports nn: tensor may import internal"},
		{"internal/a/a.go", imported("tensor"),
			"internal/a/a.go imports tensor: internal may import nothing but itself"},
		{"internal/a/a.go", imported("internal/b"), ""},
		{"tensor/sub/a.go", imported("internal/b"), ""},
		{"trainer/a.go", imported("models"), ""},
		{"trainer/a.go", imported("models/gpt2"),
			"trainer/a.go imports models/gpt2: trainer may import " + may(lattice["trainer"])},
		{"trainer/a_test.go", imported("models/gpt2"), ""},
		{"models/gpt2/a.go", imported("models"), ""},
		{"accelerate/profile/a.go", imported("accelerate"),
			"accelerate/profile/a.go imports accelerate: its parts do not import the whole"},
		{"accelerate/profile/a.go", imported("accelerate/shard"), ""},
		{"trainer/a.go", imported("accelerate"), ""},
		{"accelerate/a.go", imported("tensor/cuda"),
			"accelerate/a.go imports tensor/cuda: only a program does, by a blank import"},
		{"tensor/cuda/a.go", imported("tensor/cuda/ptx"), ""},
		{"examples/clm/main.go", imported("tensor/cuda"), ""},
		{"tensor/a.go", `package a; import _ "example.com/other"`, ""},
		{"helpers/a.go", "package a",
			`helpers/a.go: the top-level folder "helpers" is not in the design's tree: want one of ` +
				strings.Join(folders(), ", ")},
		{"a.go", "package a", `a.go: the top-level folder "." is not in the design's tree: want one of ` +
			strings.Join(folders(), ", ")},
	} {
		requireBites(t, imports, c.name, c.source, c.want)
	}
}

func imported(dir string) string { return fmt.Sprintf("package a; import _ %q", module+"/"+dir) }
