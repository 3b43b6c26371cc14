// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"slices"
	"strings"
)

const (
	tailLines   = 12  // reported
	tailColumns = 400 // of each line
)

// fatalSigns begin the line at which a program that dies says why; what follows (a dump of
// all goroutines) hides it.
var fatalSigns = []string{"panic: ", "fatal error: ", "SIGSEGV: ", "SIGBUS: ", "SIGQUIT: ",
	"Traceback (most recent call last):"}

// tail keeps a stream's last lines, and the first ones of a fatal error.
type tail struct {
	last  []string
	fatal []string
	redo  bool // the last line ended with a carriage return: the next one replaces it
}

func (t *tail) add(line []byte) {
	text := string(bytes.TrimRight(line, "\r\n"))
	if len(text) > tailColumns {
		text = strings.ToValidUTF8(text[:tailColumns], "") + " …"
	}
	if t.redo && len(t.last) > 0 && text != "" {
		t.last = t.last[:len(t.last)-1]
	}
	t.redo = bytes.HasSuffix(line, []byte("\r"))
	if text == "" {
		return
	}
	if len(t.last) == tailLines {
		t.last = append(t.last[:0], t.last[1:]...)
	}
	t.last = append(t.last, text)
	switch {
	case len(t.fatal) > 0 && len(t.fatal) < tailLines:
		t.fatal = append(t.fatal, text)
	case len(t.fatal) == 0 && slices.ContainsFunc(fatalSigns,
		func(sign string) bool { return strings.HasPrefix(text, sign) }):
		t.fatal = append(t.fatal, text)
	}
}

// lines is what to show of the stream.
func (s *stream) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tail.fatal) > 0 {
		return s.tail.fatal
	}
	return s.tail.last
}
