// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// signature is a kernel's signature with the family's element type for T.
func (f family) signature(of string) string {
	if f.double {
		return strings.ReplaceAll(of, "*T", "*float64")
	}
	return strings.ReplaceAll(of, "*T", "*float32")
}

// scale emits the conversion of a number of elements to bytes.
func (f family) scale(c *build.Context, x reg.GPVirtual) {
	if f.double {
		c.SHLQ(operand.Imm(3), x)
		return
	}
	c.SHLQ(operand.Imm(2), x)
}

// broadcast emits the filling of a vector with one element.
func (f family) broadcast(c *build.Context, from operand.Mem, x reg.VecVirtual) {
	if f.double {
		c.VBROADCASTSD(from, x)
		return
	}
	c.VBROADCASTSS(from, x)
}

// fma emits sum += x·y.
func (f family) fma(c *build.Context, x operand.Op, y, sum reg.VecVirtual) {
	if f.double {
		c.VFMADD231PD(x, y, sum)
		return
	}
	c.VFMADD231PS(x, y, sum)
}

// add emits sum = x + y.
func (f family) add(c *build.Context, x operand.Op, y, sum reg.VecVirtual) {
	if f.double {
		c.VADDPD(x, y, sum)
		return
	}
	c.VADDPS(x, y, sum)
}

// broadcasts says whether operands in memory may be one element for all lanes.
func (f family) broadcasts() bool { return f.bytes() == 64 }

// fmaBroadcast emits sum += x·y with an element in memory for x, where there are broadcasts.
func (f family) fmaBroadcast(c *build.Context, x operand.Mem, y, sum reg.VecVirtual) {
	if f.double {
		c.VFMADD231PD_BCST(x, y, sum)
		return
	}
	c.VFMADD231PS_BCST(x, y, sum)
}
