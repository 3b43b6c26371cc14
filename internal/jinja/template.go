// SPDX-License-Identifier: Apache-2.0

// Package jinja renders the chat templates of language models: the part of Jinja that they use, as transformers renders
// it (trim_blocks, lstrip_blocks, loop controls, its own tojson, raise_exception, strftime_now and generation blocks).
// Use package data/chat for conversations; this one knows none.
//
// What it does not have, such as include, import, recursive loops, call blocks and changes of lists, is an error when
// the template is read or rendered. A template is a program of a stranger: output, steps, time and nesting are bounded.
package jinja

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// maxSource is the largest template, in bytes. Real ones have up to 30,000.
const maxSource = 1 << 20

// Template is a template that has been read. It is safe for concurrent use.
type Template struct{ body []statement }

// Limits bound a rendering.
type Limits struct {
	Output int           // bytes, of the output and of each value; 0: 16 MiB
	Steps  int           // 0: 10 million
	Time   time.Duration // 0: 5 seconds
	Now    func() time.Time
}

func (l Limits) now() time.Time {
	if l.Now != nil {
		return l.Now()
	}
	return time.Now()
}

// Raised is what a template says of its input by raise_exception.
type Raised struct {
	Line    int
	Message string
}

// Error is the message.
func (e *Raised) Error() string { return fmt.Sprintf("the template refuses it: %s", e.Message) }

// Parse reads a template.
func Parse(source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("a template of %d bytes: want at most %d", len(source), maxSource)
	}
	if at := invalid(source); at >= 0 {
		return nil, fmt.Errorf("byte %d of the template is no UTF-8", at+1)
	}
	defer catch(&err)
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	p := &parser{tokens: lex(strings.TrimSuffix(source, "\n"))}
	return &Template{p.body()}, nil
}

// Render renders the template with variables. Spans are the bytes of the text that generation blocks have written.
func (t *Template) Render(vars map[string]any, limits Limits) (text string, spans [][2]int, err error) {
	if limits.Output == 0 {
		limits.Output = 16 << 20
	}
	if limits.Steps == 0 {
		limits.Steps = 10_000_000
	}
	if limits.Time == 0 {
		limits.Time = 5 * time.Second
	}
	defer catch(&err)
	s := &state{limits: limits, end: time.Now().Add(limits.Time), out: &strings.Builder{},
		scope: &scope{map[string]any{}, &scope{vars, nil}}}
	s.runAll(t.body)
	return s.out.String(), s.spans, nil
}

// catch turns a panic of this package into an error.
func catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case *Error:
		*err = r
	case *Raised:
		*err = r
	default:
		panic(r)
	}
}

// strftime is Python's, of the directives that templates use.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		trim := format[i] == '-' && i+1 < len(format)
		if trim {
			i++
		}
		layout := map[byte]string{'d': "02", 'b': "Jan", 'B': "January", 'Y': "2006", 'y': "06", 'm': "01", 'H': "15",
			'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'A': "Monday", 'a': "Mon", 'Z': "MST", 'z': "-0700", 'j': "002",
			'F': "2006-01-02", 'T': "15:04:05"}[format[i]]
		text := t.Format(layout)
		switch {
		case format[i] == '%':
			text = "%"
		case layout == "":
			text = "%" + format[i:i+1]
		case trim:
			text = strings.TrimLeft(text, "0")
		}
		b.WriteString(text)
	}
	return b.String()
}

// invalid is the place of the first byte that is no UTF-8, or -1.
func invalid(text string) int {
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)) {
			return i
		}
	}
	return -1
}
