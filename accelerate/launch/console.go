// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
)

// console serialises what all ranks write to the launcher's two streams.
type console struct {
	mu sync.Mutex
}

// maxLine is where a line without an end is cut.
const maxLine = 64 << 10

// stream takes one stream of one rank: into its log file as it comes, to the console line
// by line with the rank in front, and into a tail for the report. A write never fails: the
// rank must not notice that a disk is full.
type stream struct {
	prefix  string
	console *console
	shown   io.Writer // nil if not shown
	file    *os.File  // nil if not kept
	tail    tail
	logger  *slog.Logger

	mu      sync.Mutex
	pending []byte // what came after the last line's end
	out     []byte
}

// Write takes bytes as they come from the pipe.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(p)
	s.pending = append(s.pending, p...)
	for {
		n := lineEnd(s.pending)
		if n == 0 {
			break
		}
		s.line(s.pending[:n])
		s.pending = s.pending[n:]
	}
	s.pending = slices.Clone(s.pending) // let go of the lines before
	s.show()
	return len(p), nil
}

// lineEnd is the length of the first line, with its end; 0 if there is no whole one. A
// carriage return ends a line too: progress bars are overwritten in place.
func lineEnd(b []byte) int {
	i := bytes.IndexAny(b, "\r\n")
	switch {
	case i < 0 && len(b) >= maxLine:
		return maxLine
	case i < 0 || b[i] == '\r' && i+1 == len(b): // "\r\n" may come in two parts
		return 0
	case b[i] == '\r' && b[i+1] == '\n':
		return i + 2
	}
	return i + 1
}

func (s *stream) line(l []byte) {
	s.tail.add(l)
	if s.shown == nil {
		return
	}
	s.out = append(s.out, s.prefix...)
	s.out = append(s.out, l...)
	if end := l[len(l)-1]; end != '\n' && end != '\r' {
		s.out = append(s.out, '\n')
	}
}

// keep writes to the log file until that fails.
func (s *stream) keep(p []byte) {
	if s.file == nil {
		return
	}
	if _, err := s.file.Write(p); err != nil {
		s.logger.Warn("a rank's log is truncated", "error", err)
		s.file.Close() // the write's error is the one to report
		s.file = nil
	}
}

// show hands whole lines to the console in one piece.
func (s *stream) show() {
	if len(s.out) == 0 {
		return
	}
	s.console.mu.Lock()
	defer s.console.mu.Unlock()
	if _, err := s.shown.Write(s.out); err != nil {
		s.shown = nil // whoever read the console is gone
	}
	s.out = s.out[:0]
}

// close ends the last line and the file.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) > 0 {
		s.line(s.pending)
		s.pending = nil
	}
	s.show()
	if s.file == nil {
		return
	}
	if err := s.file.Close(); err != nil {
		s.logger.Warn("a rank's log may be incomplete", "error", err)
	}
	s.file = nil
}
