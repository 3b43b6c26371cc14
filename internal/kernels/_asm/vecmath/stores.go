// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
	"github.com/mmcloughlin/avo/x86"
)

// ways are the registers that say whether functions use non-temporal stores.
type ways map[string]reg.GPVirtual

// choose makes the non-temporal stores of these functions a choice: up to four of a turn are gathered, and one test
// jumps to them behind the function's end, else they are common stores.
func (w ways) choose(f *ir.File) error {
	for _, function := range f.Functions() {
		way, ok := w[function.Name]
		if !ok {
			continue
		}
		c := chooser{function: function.Name, way: way}
		for _, n := range function.Nodes {
			c.add(n)
		}
		function.Nodes = append(c.nodes, c.behind...)
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

type chooser struct {
	function      string
	way           reg.GPVirtual
	nodes, behind []ir.Node
	stores        []*ir.Instruction // gathered
	groups        int
	err           error
}

func (c *chooser) add(n ir.Node) {
	i, ok := n.(*ir.Instruction)
	switch {
	case ok && i.Opcode == "VMOVNTPS":
		if c.stores = append(c.stores, i); len(c.stores) == 4 {
			c.flush()
		}
		return
	case len(c.stores) == 0:
	case !ok || i.Opcode == "ADDQ" || !operand.IsZMM(c.stores[0].Operands[0]): // 16 registers hold no more
		c.flush()
	case slices.ContainsFunc(c.stores, func(s *ir.Instruction) bool {
		return slices.ContainsFunc(i.OutputRegisters(), func(r reg.Register) bool { return r == s.Operands[0] })
	}):
		c.err = fmt.Errorf("%s: %s changes what has still to be stored", c.function, i.Opcode)
	}
	c.nodes = append(c.nodes, n)
}

// flush emits the gathered stores.
func (c *chooser) flush() {
	if len(c.stores) == 0 {
		return
	}
	c.groups++
	here, there := ir.Label(fmt.Sprint("stored", c.groups)), ir.Label(fmt.Sprint("nonTemporal", c.groups))
	c.nodes = append(c.nodes, c.checked(x86.TESTL(c.way, c.way)), c.checked(x86.JNE(operand.LabelRef(there))))
	c.behind = append(c.behind, there)
	for _, s := range c.stores {
		c.nodes, c.behind = append(c.nodes, c.checked(x86.VMOVUPS(s.Operands[0], s.Operands[1]))), append(c.behind, s)
	}
	c.nodes, c.behind = append(c.nodes, here), append(c.behind, c.checked(x86.JMP(operand.LabelRef(here))))
	c.stores = nil
}

func (c *chooser) checked(i *ir.Instruction, err error) *ir.Instruction {
	if err != nil {
		c.err = err
	}
	return i
}
