// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// What a table may hold. The largest schedules of published runs have some hundred thousand actions.
const (
	maxBytes  = 32 << 20
	maxRanks  = 1 << 14
	maxIndex  = 1 << 20 // numbers of stages and of micro-batches are below
	maxCells  = 1 << 21
	maxPasses = maxCells / 8 // forward passes; a lowered schedule has up to seven actions for each
)

const overlapping = "OVERLAP_F_B"

// ReadFile reads a table in PyTorch's format from a file; see [ReadCSV].
func ReadFile(path string) (*Schedule, error) {
	text, err := vfs.ReadFile(vfs.OS, path, maxBytes)
	if err != nil {
		return nil, err
	}
	s, err := read(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.Name = path
	return s, nil
}

// ReadCSV reads a table in the format of torch.distributed.pipelining: a line for each rank with its actions between
// commas (1F0, 2SEND_F3, 0UNSHARD), empty cells where a rank waits, (1F4;6B0)OVERLAP_F_B for passes that overlap. The
// table may have passes alone, or messages and the sharding's actions too. A stage is on the first rank with a forward
// pass of it. Errors name line and column, both from 1. The schedule is read, not checked: see [Schedule.Validate].
func ReadCSV(r io.Reader) (*Schedule, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("more than %d bytes: want a schedule's table", maxBytes)
	}
	return read(text)
}

// read reads the text of a table.
func read(text []byte) (*Schedule, error) {
	if n := bytes.Count(text, []byte{','}); n >= maxCells {
		return nil, fmt.Errorf("%d commas: want at most %d cells", n, maxCells)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // which spreadsheets write
	t := table{rest: strings.TrimSuffix(string(text), "\n")}
	s := &Schedule{}
	for !t.end && len(s.Ranks) < maxRanks {
		s.Ranks = append(s.Ranks, t.line())
	}
	if !t.end {
		t.add("more than %d lines: want one for each rank", maxRanks)
	}
	if err := t.err(); err != nil {
		return nil, err
	}
	if err := s.describe(); err != nil {
		return nil, err
	}
	return s, nil
}

// table reads a table's text.
type table struct {
	faults
	rest string // of the text
	end  bool   // nothing is left
	row  int    // lines that were read
}

// line reads the next line.
func (t *table) line() (list []Action) {
	line, rest, more := strings.Cut(t.rest, "\n")
	t.rest, t.end = rest, !more
	t.row++
	line = strings.TrimSuffix(line, "\r")
	for from := 0; from <= len(line) && line != ""; {
		cell, _, _ := strings.Cut(line[from:], ",")
		var err error
		if list, err = appendCell(list, cell); err != nil {
			t.add("line %d, column %d: %v", t.row, from+1, err)
		}
		from += len(cell) + 1
	}
	return list
}

// appendCell adds the actions of a cell to a list.
func appendCell(list []Action, cell string) ([]Action, error) {
	cell = strings.TrimSpace(cell)
	if n := len(cell); n >= 2 && cell[0] == '"' && cell[n-1] == '"' {
		cell = cell[1 : n-1]
	}
	if cell == "" {
		return append(list, Action{}), nil
	}
	if cell[0] != '(' {
		a, err := parseAction(cell)
		return append(list, a), err
	}
	inner, op, _ := strings.Cut(cell[1:], ")")
	parts := strings.Split(inner, ";")
	if op != overlapping || len(parts) < 2 {
		return list, fmt.Errorf("%s: want passes that overlap such as (1F4;6B0)%s", quoted(cell), overlapping)
	}
	for i, part := range parts {
		a, err := parseAction(strings.TrimSpace(part))
		if err != nil {
			return list, err
		}
		if !a.Op.Computes() {
			return list, fmt.Errorf("%s: %v overlaps with another action: want F, I, W or B", quoted(cell), a)
		}
		a.Overlap = i+1 < len(parts)
		list = append(list, a)
	}
	return list, nil
}

// describe finds out how many stages and micro-batches there are, and where the stages are.
func (s *Schedule) describe() error {
	stages, actions := 0, 0
	for _, list := range s.Ranks {
		for _, a := range list {
			if a.Op != Idle {
				stages, s.MicroBatches = max(stages, a.Stage+1), max(s.MicroBatches, a.MicroBatch+1)
				actions++
			}
		}
	}
	if actions == 0 {
		return errors.New("no actions: want a line for each rank")
	}
	if stages > actions/s.MicroBatches { // also bounds what checks allocate
		return fmt.Errorf("%d actions: want at least one for each of %d stages and %s", actions, stages,
			quantity.Of(s.MicroBatches, "micro-batch"))
	}
	s.StageToRank = slices.Repeat([]int{-1}, stages)
	for _, ops := range [][]Op{{F}, {I, W, B}} {
		for r, list := range s.Ranks {
			for _, a := range list {
				if slices.Contains(ops, a.Op) && s.StageToRank[a.Stage] < 0 {
					s.StageToRank[a.Stage] = r
				}
			}
		}
	}
	if stage := slices.Index(s.StageToRank, -1); stage >= 0 {
		return fmt.Errorf("stage %d has no pass: want those of %d stages", stage, stages)
	}
	return nil
}

// WriteCSV writes the table that [ReadCSV] reads, byte for byte as PyTorch's writer does.
func (s *Schedule) WriteCSV(w io.Writer) error {
	out := bufio.NewWriter(w)
	var line []byte
	for _, list := range s.Ranks {
		line = line[:0]
		for cell := range cells(list) {
			line = append(appendText(line, cell), ',')
		}
		switch len(line) {
		case 0:
		case 1: // one empty cell, which would otherwise be none
			line = append(line[:0], `""`...)
		default:
			line = line[:len(line)-1]
		}
		if _, err := out.Write(append(line, "\r\n"...)); err != nil {
			return err
		}
	}
	return out.Flush()
}

// appendText writes a cell.
func appendText(to []byte, cell []Action) []byte {
	if len(cell) == 1 {
		return cell[0].append(to)
	}
	to = append(to, '(')
	for i, a := range cell {
		if i > 0 {
			to = append(to, ';')
		}
		to = a.append(to)
	}
	return append(to, ")"+overlapping...)
}
