// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// shardUsers may import accelerate/shard, beside accelerate itself: nobody else needs to know which strategy there is.
func shardUsers(f file) []string {
	top := topOf(f.dir)
	if f.test || top == "accelerate" || slices.Contains(lattice[top], anything) ||
		!slices.Contains(f.imports(), module+"/accelerate/shard") {
		return nil
	}
	return []string{fmt.Sprintf("%s imports accelerate/shard: want strategy.Shards, which every strategy can give",
		f.name)}
}

func TestStrategiesAreBehindTheirInterface(t *testing.T) {
	requireNone(t, shardUsers)
	const fault = " imports accelerate/shard: want strategy.Shards, which every strategy can give"
	requireBites(t, shardUsers, "trainer/a.go", imported("accelerate/shard"), "trainer/a.go"+fault)
	requireBites(t, shardUsers, "trainer/checkpointer/a.go", imported("accelerate/shard"),
		"trainer/checkpointer/a.go"+fault)
	requireBites(t, shardUsers, "accelerate/a.go", imported("accelerate/shard"), "")
	requireBites(t, shardUsers, "trainer/a_test.go", imported("accelerate/shard"), "")
	requireBites(t, shardUsers, "bench/a.go", imported("accelerate/shard"), "")
}

// rooms are packages that get what they need through interfaces, with the packages above and beside them that they must
// therefore not import, tests included.
var rooms = map[string][]string{
	"accelerate/feed":      {"accelerate"},
	"trainer/checkpointer": {"trainer", "accelerate"},
}

// widest is how many methods an interface of a room may ask for.
const widest = 5

// upward reports a room that imports what it must not.
func upward(f file) (bad []string) {
	for _, dir := range rooms[f.dir] {
		if slices.Contains(f.imports(), module+"/"+dir) {
			bad = append(bad, fmt.Sprintf("%s imports %s: want an interface of what it needs", f.name, dir))
		}
	}
	return bad
}

// wide reports interfaces of a room that ask for too much.
func wide(f file) (bad []string) {
	if rooms[f.dir] == nil {
		return nil
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		face, ok := spec.Type.(*ast.InterfaceType)
		if !ok {
			return true
		}
		for _, m := range face.Methods.List {
			if len(m.Names) == 0 {
				bad = append(bad, fmt.Sprintf("%s: %s embeds an interface: want its methods", f.line(spec), spec.Name))
			}
		}
		if n := face.Methods.NumFields(); n > widest {
			bad = append(bad, fmt.Sprintf("%s: %s has %d methods: want at most %d", f.line(spec), spec.Name, n,
				widest))
		}
		return true
	})
	return bad
}

func TestRoomsGetWhatTheyNeedThroughSmallInterfaces(t *testing.T) {
	requireNone(t, upward)
	requireNone(t, wide)
	const name = "trainer/checkpointer/a.go"
	requireBites(t, upward, name, imported("trainer"), name+" imports trainer: want an interface of what it needs")
	requireBites(t, upward, name, imported("accelerate"),
		name+" imports accelerate: want an interface of what it needs")
	requireBites(t, upward, "trainer/checkpointer/a_test.go", imported("trainer"),
		"trainer/checkpointer/a_test.go imports trainer: want an interface of what it needs")
	requireBites(t, upward, name, imported("accelerate/ddp"), "")
	requireBites(t, upward, "trainer/a.go", imported("accelerate"), "")
	requireBites(t, wide, name, "package a; type i interface { a(); b(); c(); d(); e() }", "")
	requireBites(t, wide, name, "package a; type i interface { a(); b(); c(); d(); e(); f() }",
		name+":1: i has 6 methods: want at most 5")
	requireBites(t, wide, name, "package a; type j interface{}; type i interface { j }",
		name+":1: i embeds an interface: want its methods")
}

// testedAlone reports tests of packages below accelerate that need accelerate. The profiler's need its spans.
func testedAlone(f file) []string {
	if !f.test || f.dir == "accelerate" || !within(f.dir, "accelerate") || f.dir == "accelerate/profile" ||
		!slices.Contains(f.imports(), module+"/accelerate") {
		return nil
	}
	return []string{fmt.Sprintf("%s imports accelerate: want a test without it, as by strategytest", f.name)}
}

func TestPartsOfAccelerateAreTestedAlone(t *testing.T) {
	requireNone(t, testedAlone)
	requireBites(t, testedAlone, "accelerate/shard/a_test.go", imported("accelerate"),
		"accelerate/shard/a_test.go imports accelerate: want a test without it, as by strategytest")
	requireBites(t, testedAlone, "accelerate/shard/a_test.go", imported("accelerate/ddp"), "")
	requireBites(t, testedAlone, "accelerate/profile/a_test.go", imported("accelerate"), "")
	requireBites(t, testedAlone, "accelerate/a_test.go", imported("accelerate"), "")
}

// largeInterfaces reports interfaces of accelerate that list too many methods; larger ones are made of small ones.
func largeInterfaces(f file) (bad []string) {
	if f.test || !within(f.dir, "accelerate") {
		return nil
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if t, ok := n.(*ast.InterfaceType); ok && t.Methods.NumFields() > widest {
			bad = append(bad, fmt.Sprintf("%s: an interface of %d methods: want at most %d", f.line(t),
				t.Methods.NumFields(), widest))
		}
		return true
	})
	return bad
}

func TestInterfacesOfAccelerateAreSmall(t *testing.T) {
	requireNone(t, largeInterfaces)
	const five = "package a\n\ntype I interface {\nA()\nB()\nC()\nD()\nE\n"
	requireBites(t, largeInterfaces, "accelerate/a/a.go", five+"F()\n}",
		"accelerate/a/a.go:3: an interface of 6 methods: want at most 5")
	requireBites(t, largeInterfaces, "accelerate/a/a.go", five+"}", "")
	requireBites(t, largeInterfaces, "nn/a.go", five+"F()\n}", "")
}

// plain are packages that plan and compute nothing: tools and other programs use them without the engine.
var plain = []string{"accelerate/pp/schedule"}

// heavy reports plain packages that import more of this module than small internals.
func heavy(f file) (bad []string) {
	if f.test || !slices.Contains(plain, f.dir) {
		return nil
	}
	for _, path := range f.imports() {
		if dir, own := strings.CutPrefix(path, module+"/"); own && topOf(dir) != "internal" {
			bad = append(bad, fmt.Sprintf("%s imports %s: want nothing of this module but internal/", f.name, dir))
		}
	}
	return bad
}

func TestPlainPackagesStandAlone(t *testing.T) {
	requireNone(t, heavy)
	requireBites(t, heavy, "accelerate/pp/schedule/a.go", imported("comm"),
		"accelerate/pp/schedule/a.go imports comm: want nothing of this module but internal/")
	requireBites(t, heavy, "accelerate/pp/schedule/a.go", imported("internal/misspelt"), "")
	requireBites(t, heavy, "accelerate/pp/schedule/a_test.go", imported("comm"), "")
	requireBites(t, heavy, "accelerate/pp/a.go", imported("comm"), "")
}
