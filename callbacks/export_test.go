// SPDX-License-Identifier: Apache-2.0

package callbacks

import "time"

// SetClock replaces the clock of a Speed.
func SetClock(s *Speed, now func() time.Time) { s.meter.now = now }

// SetClocks replaces the clocks of a Progress.
func SetClocks(p *Progress, now func() time.Time) { p.pace.now, p.work.now, p.run.now = now, now, now }

// SetWidth replaces the width of the terminal of a Progress.
func SetWidth(p *Progress, columns func() int) {
	p.open()
	p.terminal.size = columns
}

// TerminalOfProgress gives the terminal that a Progress writes to.
func TerminalOfProgress(p *Progress) *Terminal { return p.terminal }
