// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/callbacks"
)

// Messages have the form of records: key, a blank, value, two blanks between pairs.
func TestLogHandler(t *testing.T) {
	var b strings.Builder
	log := slog.New(callbacks.NewLogHandler(&b, slog.LevelInfo))
	log.Debug("nobody asked")
	log.With("rank", 1).WithGroup("job").Warn("a rank failed; all are started again", "cause", "exit code 3", "in",
		time.Second, slog.Group("host", "name", "a", "empty", ""), "error", errors.New("two\nlines"))
	text := b.String()
	_, err := time.Parse(time.DateTime, text[:len(time.DateTime)])
	require.NoError(t, err)
	require.Equal(t, " WARN a rank failed; all are started again  rank 1  job.cause exit code 3  job.in 1s  "+
		`job.host.name a  job.host.empty ""  job.error "two\nlines"`+"\n", text[len(time.DateTime):])
}

// The handler keeps slog's rules.
func TestLogHandlerIsAHandler(t *testing.T) {
	var b strings.Builder
	slogtest.Run(t, func(*testing.T) slog.Handler {
		b.Reset()
		return callbacks.NewLogHandler(&b, slog.LevelDebug)
	}, func(*testing.T) map[string]any {
		line, out := strings.TrimSpace(b.String()), map[string]any{}
		if _, err := time.Parse(time.DateTime, line[:min(len(line), len(time.DateTime))]); err == nil {
			out[slog.TimeKey], line = true, line[len(time.DateTime)+1:]
		}
		head, pairs, _ := strings.Cut(line, "  ")
		level, message, _ := strings.Cut(head, " ")
		out[slog.LevelKey], out[slog.MessageKey] = level, message
		for pair := range strings.SplitSeq(pairs, "  ") {
			key, value, ok := strings.Cut(pair, " ")
			if !ok {
				continue
			}
			group := out
			for path := strings.Split(key, "."); ; path = path[1:] {
				if len(path) == 1 {
					group[path[0]] = value
					break
				}
				if group[path[0]] == nil {
					group[path[0]] = map[string]any{}
				}
				group = group[path[0]].(map[string]any)
			}
		}
		return out
	})
}
