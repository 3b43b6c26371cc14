// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"unicode"

	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/program"
)

const help = `/reset         start over
/system TEXT   start over with another system prompt
/save FILE     add the conversation to FILE, as a row that examples/finetune reads
/exit          end, as Ctrl-D does
"""            before and after a message of several lines; pasted lines need none
Ctrl-C stops an answer.
`

// session is one run of the program.
type session struct {
	*conversation
	process *program.Process
	in      *input
	out     *os.File

	mu      sync.Mutex
	stop    context.CancelCauseFunc // of the answer; nil: none is under way
	stopped bool
}

// typed is what in gave.
type typed struct {
	text string
	err  error
}

// person reports whether somebody types: then errors are said, and do not end the program.
func (s *session) person() bool { return s.in.echo != nil }

// say tells a person, or the log of a script, about the conversation.
func (s *session) say(format string, values ...any) {
	fmt.Fprintf(s.process.Stderr, "("+format+")\n", values...)
}

// run talks until the input or ctx ends.
func (s *session) run(ctx context.Context) error {
	if s.person() {
		defer s.process.OnInterrupt(s.interrupt)()
		s.process.Line("model", s.base.Dir, s.base.Model.ModelType(), program.Count(s.base.Model.ContextLength(),
			"token")+" of context")
		s.say("/help lists commands; Ctrl-D ends")
	}
	if len(s.options.EOS) == 0 && len(s.stops) == 0 {
		s.say("the model has no token that ends an answer, and the template ends it with none: answers end where the " +
			"context does, or at max_new_tokens")
	}
	messages, next := make(chan typed), make(chan bool)
	defer close(next)
	go func() {
		for range next {
			text, err := s.in.message()
			messages <- typed{text, err}
		}
	}()
	for interrupted := false; ; {
		next <- true
		var m typed
		select {
		case m = <-messages:
		case <-ctx.Done():
			s.in.end()
			return context.Cause(ctx)
		}
		again := errors.Is(m.err, errInterrupted)
		switch {
		case errors.Is(m.err, io.EOF), again && interrupted:
			return nil
		case again:
			s.say(farewell)
		case m.err == nil && strings.TrimSpace(m.text) == "/exit":
			return nil
		case m.err == nil:
			m.err = s.take(ctx, m.text)
		}
		interrupted = again
		switch {
		case errors.Is(m.err, syscall.EPIPE):
			return nil // who reads has read enough
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case m.err != nil && !again && !s.person():
			return m.err
		case m.err != nil && !again:
			s.say("%v", m.err)
		}
	}
}

// take obeys a command, or answers a message.
func (s *session) take(ctx context.Context, text string) error {
	command, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	rest = strings.TrimSpace(rest)
	switch {
	case command == "":
		return nil
	case !strings.HasPrefix(command, "/"), strings.Contains(command[1:], "/"): // a path is a message
		return s.reply(ctx, text)
	}
	switch command {
	case "/help":
		_, err := io.WriteString(s.out, help)
		return err
	case "/reset":
		s.reset()
	case "/system":
		s.reset()
		s.system = rest
	case "/save":
		if rest == "" || len(s.messages) == 0 {
			return errors.New("/save needs the name of a file, and a conversation to save")
		}
		if err := s.save(rest); err != nil {
			return err
		}
		s.say("added to %s", rest)
	default:
		return fmt.Errorf("there is no %s: /help lists commands", command)
	}
	return nil
}

// reply prints the answer to a message.
func (s *session) reply(ctx context.Context, text string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s.under(stop)
	defer s.under(nil)
	show := func(piece string) error {
		_, err := io.WriteString(s.out, piece)
		return err
	}
	if s.person() {
		lines := &wrapper{out: s.out, columns: s.columns}
		show = func(piece string) error { return lines.write(printable(piece)) }
	}
	end, err := s.answer(ctx, text, show, func() {
		s.say("the context is full: the model does not see the first %s any more", program.Count(s.from, "message"))
	})
	if _, nl := fmt.Fprintln(s.out); err == nil {
		err = nl
	}
	if err == nil && end != atEnd {
		s.say("%s", end)
	}
	return err
}

// columns is where lines of answers break; 0: nowhere.
func (s *session) columns() int {
	if !terminal.Moves(s.out) {
		return 0
	}
	return terminal.Width(s.out)
}

// printable leaves out what a terminal would act on: control characters, other than ends of lines and tabs.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}

// under sets what stops the answer that is under way.
func (s *session) under(stop context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop, s.stopped = stop, false
}

// interrupt stops an answer. It returns false if there is none, or it was stopped before: then the program ends.
func (s *session) interrupt() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil || s.stopped {
		return false
	}
	s.stop(errStopped)
	s.stopped = true
	return true
}
