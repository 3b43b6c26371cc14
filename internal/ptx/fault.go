// SPDX-License-Identifier: Apache-2.0

package ptx

import "fmt"

// Kind says what a kernel did wrong.
type Kind uint8

// The kinds of faults.
const (
	UndefinedRegister Kind = iota + 1 // a register was read that nothing has written
	UndefinedMemory                   // memory was read that nothing has written
	OutOfBounds                       // an address outside of any allocation or variable
	Misaligned                        // an address that is no multiple of the access's size
	UseAfterFree                      // memory that was freed
	ReadOnly                          // a write to .const or parameters
	SharedRace                        // two warps, the same shared memory, no barrier between
	GlobalRace                        // two blocks, the same global memory, no atomics
	Deadlock                          // a barrier that cannot complete
	BadSync                           // a warp-wide instruction with the wrong lanes
	Budget                            // more than Launch.MaxInstructions
	Trap                              // trap, or a failed assertion
)

var kindNames = [...]string{"", "undefined register", "undefined memory", "out of bounds", "misaligned",
	"use after free", "read-only memory", "shared memory race", "global memory race", "deadlock", "bad warp sync",
	"instruction budget", "trap"}

// String names the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Fault is the error of a launch whose kernel did something wrong.
type Fault struct {
	Kernel string
	Line   int    // of the PTX text, from 1
	Text   string // of the instruction
	Block  [3]uint32
	Thread [3]uint32
	Kind   Kind
	Msg    string
}

// Error names kernel, line, instruction, block and thread.
func (f *Fault) Error() string {
	return fmt.Sprintf("ptx: %s: %v: %s: line %d `%s`, block %s, thread %s", f.Kernel, f.Kind, f.Msg, f.Line, f.Text,
		index(f.Block), index(f.Thread))
}

func index(i [3]uint32) string { return fmt.Sprintf("(%d,%d,%d)", i[0], i[1], i[2]) }
