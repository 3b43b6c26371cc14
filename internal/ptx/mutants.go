// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"strings"
)

// Mutant is a module with one mistake.
type Mutant struct {
	Line int    // of the text
	What string // what was done there
	Src  string // the whole module
}

// exchanges are pairs of opcode parts that a mutant exchanges.
var exchanges = map[string]string{"add": "sub", "sub": "add", "mul": "add", "min": "max", "max": "min", "and": "or",
	"or": "and", "xor": "or", "shl": "shr", "lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq",
	"ltu": "leu", "gtu": "geu", "bfly": "idx", "down": "up", "up": "down"}

// Mutants makes modules that each have one mistake: an instruction removed, an operation or a comparison exchanged with
// its neighbour, a guard or the branch that it decides negated. A suite of tests measures itself by how many it finds:
// a mutant is found if it cannot be linked, faults or gives other numbers. Loops may be endless, so launches want
// MaxInstructions. kernels restricts the mutants to functions of these names; none means all.
func Mutants(src string, kernels ...string) ([]Mutant, error) {
	m, err := Parse(src)
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, k := range kernels {
		if f := m.functions[k]; f == nil || !f.defined {
			return nil, fmt.Errorf("ptx: no function %q to mutate", k)
		}
		wanted[k] = true
	}
	var list []Mutant
	for _, f := range m.order {
		if len(wanted) > 0 && !wanted[f.name] {
			continue
		}
		for i := range f.body {
			list = append(list, mutantsOf(src, &f.body[i])...)
		}
	}
	return list, nil
}

func mutantsOf(src string, st *statement) []Mutant {
	text := src[st.pos:st.end]
	var list []Mutant
	replace := func(what, with string) {
		if with != text {
			list = append(list, Mutant{st.line, what, src[:st.pos] + with + src[st.end:]})
		}
	}
	short := strings.Join(strings.Fields(text), " ")
	if st.op != "ret" && st.op != "exit" && st.op != "call" {
		replace("removed: "+short, "")
	}
	if st.guard != nil {
		negated := strings.Replace(text, "@", "@!", 1)
		if st.guard.not {
			negated = strings.Replace(text, "@!", "@", 1)
		}
		replace("negated: "+short, negated)
	}
	parts := append([]string{st.op}, st.mods...)
	for i, p := range parts {
		other, ok := exchanges[p]
		arithmetic := i == 0
		order := i == 1 && (st.op == "setp" || st.op == "set") || i == 2 && st.op == "shfl"
		if !ok || !arithmetic && !order {
			continue
		}
		if st.op == "mul" && (st.has("wide") || st.has("hi")) {
			continue
		}
		changed := append([]string(nil), parts...)
		changed[i] = other
		if st.op == "mul" {
			changed = without(changed, "lo")
		}
		replace(fmt.Sprintf("%s for %s: %s", other, p, short),
			strings.Replace(text, strings.Join(parts, "."), strings.Join(changed, "."), 1))
	}
	return list
}

func without(list []string, part string) []string {
	var kept []string
	for _, p := range list {
		if p != part {
			kept = append(kept, p)
		}
	}
	return kept
}
