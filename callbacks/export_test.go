// SPDX-License-Identifier: Apache-2.0

package callbacks

import "time"

// SetClock replaces the clock of a Speed.
func SetClock(s *Speed, now func() time.Time) { s.meter.now = now }

// SetWidth replaces the width of the terminal of a Progress: a line may have one column less.
func SetWidth(p *Progress, columns func() int) {
	p.open()
	p.terminal.size = func() int { return columns() - 1 }
}

// TerminalOfProgress returns the terminal that a Progress writes to.
func TerminalOfProgress(p *Progress) *Terminal { return p.terminal }
