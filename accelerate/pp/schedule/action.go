// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"strconv"
	"strings"
)

// Op is what an action does. The names are those of PyTorch's tables.
type Op uint8

// The ops. All except the last three work on one micro-batch of one stage; the last three work on a stage.
const (
	Idle       Op = iota // nothing: an empty cell of a table
	F                    // forward pass
	I                    // backward pass to the gradient of the stage's input
	W                    // backward pass to the gradients of the stage's weights
	B                    // I and W in one pass
	SendF                // send the stage's output to the next stage
	RecvF                // receive the stage's input from the previous stage
	SendB                // send the gradient of the stage's input to the previous stage
	RecvB                // receive the gradient of the stage's output from the next stage
	Unshard              // gather the stage's sharded parameters
	Reshard              // free the gathered parameters
	ReduceGrad           // sum the stage's gradients over the data-parallel ranks
	ops
)

var opNames = [ops]string{"", "F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD",
	"REDUCE_GRAD"}

// String is the op's name in PyTorch's tables.
func (o Op) String() string {
	if o >= ops {
		return fmt.Sprintf("Op(%d)", o)
	}
	return opNames[o]
}

// Computes reports whether the op takes a rank's time.
func (o Op) Computes() bool { return o >= F && o <= B }

// moves reports whether the op is an end of a message between two stages.
func (o Op) moves() bool { return o >= SendF && o <= RecvB }

// isBackward reports whether the op is a backward pass, or a part of one.
func (o Op) isBackward() bool { return o >= I && o <= B }

// hasMicroBatch reports whether the op works on one micro-batch.
func (o Op) hasMicroBatch() bool { return o >= F && o <= RecvB }

// Action is one entry of a rank's list. Stages and micro-batches count from 0. The zero Action is an empty cell.
type Action struct {
	Op         Op
	Stage      int
	MicroBatch int // 0 for Unshard, Reshard and ReduceGrad
	// Overlap permits a rank to run the action and the next one of its list at the same time.
	Overlap bool
}

// String is the action as a cell of a table, without its overlap: 1F0, 2SEND_F3, 0UNSHARD.
func (a Action) String() string { return string(a.append(nil)) }

func (a Action) append(to []byte) []byte {
	if a.Op == Idle {
		return to
	}
	to = strconv.AppendInt(to, int64(a.Stage), 10)
	to = append(to, a.Op.String()...)
	if a.Op.hasMicroBatch() {
		to = strconv.AppendInt(to, int64(a.MicroBatch), 10)
	}
	return to
}

// parseAction reads what Action.String writes.
func parseAction(text string) (Action, error) {
	const form = `want a stage, an op and a micro-batch such as 1F0, or 1UNSHARD`
	rest := strings.TrimLeft(text, digits)
	name := rest[:len(rest)-len(strings.TrimLeft(rest, letters))]
	stage, microBatch := text[:len(text)-len(rest)], rest[len(name):]
	if stage == "" || name == "" || strings.Trim(microBatch, digits) != "" {
		return Action{}, fmt.Errorf("%s is not an action: %s", quoted(text), form)
	}
	op := opNamed(name)
	if op == Idle {
		return Action{}, fmt.Errorf("%s: unknown op %s: want one of %s", quoted(text), quoted(name),
			strings.Join(opNames[1:], ", "))
	}
	if op.hasMicroBatch() != (microBatch != "") {
		return Action{}, fmt.Errorf("%s: %s", quoted(text), map[bool]string{
			true:  op.String() + " works on a micro-batch: want its number at the end",
			false: op.String() + " works on a whole stage: want no micro-batch"}[op.hasMicroBatch()])
	}
	a := Action{Op: op}
	var err error
	if a.Stage, err = index("stage", stage); err != nil {
		return Action{}, err
	}
	if microBatch != "" {
		if a.MicroBatch, err = index("micro-batch", microBatch); err != nil {
			return Action{}, err
		}
	}
	return a, nil
}

const (
	digits  = "0123456789"
	letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"
)

func opNamed(name string) Op {
	for op := F; op < ops; op++ {
		if opNames[op] == name {
			return op
		}
	}
	return Idle
}

// index reads the number of a stage or a micro-batch.
func index(what, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n >= maxIndex {
		return 0, fmt.Errorf("%s %s: want at most %d", what, quoted(text), maxIndex-1)
	}
	return n, nil
}

// quoted is the text for a message: in quotes, and cut if it is long.
func quoted(text string) string {
	if len(text) > 40 {
		return strconv.Quote(text[:40]) + "…"
	}
	return strconv.Quote(text)
}
