// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// LogHandler writes log messages in the form in which a Printer writes records, behind the time and the level:
//
//	2026-11-25 18:34:38 WARN a rank failed; all ranks are started again  rank 1  cause exit code 3
//
// On a terminal a long message is folded between its pairs, and the levels of warnings and errors have colour. Package
// program and lockstep launch log by it, so that a screen has one form of lines.
type LogHandler struct {
	out   *logOutput
	level slog.Leveler
	attrs string // of With, as they are written
	group string // of WithGroup: "a.b."
}

type logOutput struct {
	mu sync.Mutex
	w  io.Writer
}

// NewLogHandler returns a handler that writes messages of a level and above to w.
func NewLogHandler(w io.Writer, level slog.Leveler) *LogHandler {
	return &LogHandler{out: &logOutput{w: w}, level: level}
}

// Enabled implements slog.Handler.
func (h *LogHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// Handle implements slog.Handler.
func (h *LogHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	if !r.Time.IsZero() {
		b.WriteString(r.Time.Format(time.DateTime))
		b.WriteByte(' ')
	}
	fmt.Fprintf(&b, "%s %s%s", r.Level, r.Message, h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		writeAttr(&b, h.group, a)
		return true
	})
	text := b.String()
	if width := terminal.Width(h.out.w); width > 0 {
		text = strings.Join(terminal.Fold(strings.Split(text, "  "), "  ", width, "", "  "), "\n")
	}
	text = strings.Replace(text, r.Level.String(), h.painted(r.Level), 1) // the time has no letters
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	_, err := io.WriteString(h.out.w, text+"\n")
	return err
}

// painted is a level's name, in its colour where there is any.
func (h *LogHandler) painted(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return terminal.Paint(h.out.w, terminal.Red, l.String())
	case l >= slog.LevelWarn:
		return terminal.Paint(h.out.w, terminal.Yellow, l.String())
	}
	return l.String()
}

// WithAttrs implements slog.Handler.
func (h *LogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var b strings.Builder
	b.WriteString(h.attrs)
	for _, a := range attrs {
		writeAttr(&b, h.group, a)
	}
	return &LogHandler{h.out, h.level, b.String(), h.group}
}

// WithGroup implements slog.Handler.
func (h *LogHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &LogHandler{h.out, h.level, h.attrs, h.group + name + "."}
}

// writeAttr writes "  key value", each member of a group by itself.
func writeAttr(b *strings.Builder, group string, a slog.Attr) {
	a.Value = a.Value.Resolve()
	if a.Equal(slog.Attr{}) {
		return
	}
	if a.Value.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, member := range a.Value.Group() {
			writeAttr(b, group, member)
		}
		return
	}
	text := a.Value.String()
	if text == "" || strings.Contains(text, "  ") || strings.ContainsFunc(text, func(r rune) bool {
		return !strconv.IsPrint(r)
	}) {
		text = strconv.Quote(text)
	}
	fmt.Fprintf(b, "  %s%s %s", group, a.Key, text)
}
