// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
)

// The comments between which a turn's vectors stand. They are not printed.
const (
	partMark = "part"
	endMark  = "end of parts"
)

// interleave takes the instructions of the vectors of each turn in turns: the first one of each, the second one of
// each, and so on. The vectors share nothing but what they only read, accumulators, which are still added to in order,
// and pointers, which move on only in turns of one vector.
func interleave(f *ir.File) error {
	for _, section := range f.Sections {
		function, ok := section.(*ir.Function)
		if !ok {
			continue
		}
		var nodes []ir.Node
		var parts [][]ir.Node
		for _, n := range function.Nodes {
			switch mark := markOf(n); {
			case mark == partMark:
				parts = append(parts, nil)
			case mark == endMark:
				nodes, parts = append(nodes, inTurns(parts)...), nil
			case len(parts) > 0:
				parts[len(parts)-1] = append(parts[len(parts)-1], n)
			default:
				nodes = append(nodes, n)
			}
		}
		function.Nodes = nodes
	}
	return nil
}

// broadcast makes the functions of 512 bits read a number as 4 bytes that the load repeats. The linker aligns data to
// 32 bytes at most: half of all whole vectors would lie across two cache lines.
func broadcast(f *ir.File) error {
	for _, function := range f.Functions() {
		for _, i := range function.Instructions() {
			if !slices.ContainsFunc(i.Operands, operand.IsZMM) {
				continue
			}
			for _, o := range i.Operands {
				if m, ok := o.(operand.Mem); !ok || !strings.HasPrefix(m.Symbol.Name, "x") {
					continue
				}
				if i.Opcode == "VMOVUPS" {
					i.Opcode = "VBROADCASTSS"
				} else {
					i.Suffixes = append(i.Suffixes, "BCST")
				}
			}
		}
	}
	return nil
}

// alignShort aligns the turns of common loops that fit into a cache line to one: where a short turn begins may add half
// to its time.
func alignShort(f *ir.File) error {
	const fit = 12
	for _, function := range f.Functions() {
		at := slices.Index(function.Nodes, ir.Node(ir.Label("loop")))
		if at < 0 {
			continue
		}
		turn := slices.IndexFunc(function.Nodes[at:], func(n ir.Node) bool {
			i, ok := n.(*ir.Instruction)
			return ok && i.IsBranch
		})
		if turn <= fit {
			align := &ir.Instruction{Opcode: "PCALIGN", Operands: []operand.Op{operand.Imm(64)}}
			function.Nodes = slices.Insert(function.Nodes, at, ir.Node(align))
		}
	}
	return nil
}

func markOf(n ir.Node) string {
	if c, ok := n.(*ir.Comment); ok && len(c.Lines) == 1 {
		return c.Lines[0]
	}
	return ""
}

func inTurns(parts [][]ir.Node) []ir.Node {
	var nodes []ir.Node
	for i := range parts[0] {
		for _, p := range parts {
			nodes = append(nodes, p[i])
		}
	}
	return nodes
}
