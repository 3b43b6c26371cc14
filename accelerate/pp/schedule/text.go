// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// mostTicks is how many columns of time a drawing has at most.
const mostTicks = 4096

// Text draws the step for a terminal of a number of columns: a row for each rank, a column for each tick. A tick is the
// time of the shortest pass. A pass is drawn as its action, without the stage where each rank has only one, with dashes
// over its further ticks; a dot is an idle tick. A step that is longer than the lines are goes on below.
func (s *Simulation) Text(columns int) string {
	grid, width := s.grid()
	head := len("rank ") + len(strconv.Itoa(len(grid)-1)) + len(" ")
	fit := max((columns-head)/width, 1)
	var out strings.Builder
	for from := 0; from < len(grid[0]); from += fit {
		if from > 0 {
			out.WriteByte('\n')
		}
		for r, row := range grid {
			fmt.Fprintf(&out, "rank %-*d", head-len("rank "), r)
			line := ""
			for _, cell := range row[from:min(from+fit, len(row))] {
				line += cell + strings.Repeat(" ", max(width-len(cell), 0))
			}
			out.WriteString(strings.TrimRight(line, " "))
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// grid are the cells of the ranks, and how wide they are with the blank between them.
func (s *Simulation) grid() (rows [][]string, width int) {
	tick := s.tick()
	ticks := int(math.Round(s.Time / tick))
	rows = make([][]string, len(s.Timeline))
	width = len(".") + 1
	for r, spans := range s.Timeline {
		row := make([]string, max(ticks, 1))
		for i := range row {
			row[i] = "."
		}
		for i, a := range s.Schedule.Ranks[r] {
			if !a.Op.computes() {
				continue
			}
			from, to := int(math.Round(spans[i].Start/tick)), int(math.Round(spans[i].End/tick))
			label := s.label(a)
			for at := from; at < min(to, len(row)); at++ {
				row[at] = label
				label = strings.Repeat("-", len(label))
			}
			width = max(width, len(label)+1)
		}
		rows[r] = row
	}
	return rows, width
}

// tick is the time that a column stands for.
func (s *Simulation) tick() float64 {
	tick := s.Time
	for r, spans := range s.Timeline {
		for i, span := range spans {
			if d := span.End - span.Start; d > 0 && s.Schedule.Ranks[r][i].Op.computes() {
				tick = min(tick, d)
			}
		}
	}
	if tick = max(tick, s.Time/mostTicks); tick == 0 {
		return 1 // nothing takes any time
	}
	return tick
}

// label is a pass as a drawing shows it.
func (s *Simulation) label(a Action) string {
	if s.Schedule.Stages() > len(s.Schedule.Ranks) {
		return a.String()
	}
	return a.Op.String() + strconv.Itoa(a.MicroBatch)
}
