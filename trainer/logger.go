// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"log/slog"

	"github.com/lockstep-ml/lockstep/accelerate"
)

// rankLogger is the logger of a rank. Rank 0 logs at log_level, and so does the first rank of another host unless
// log_on_each_node is off; the others log at log_level_replica, since rank 0 says most already.
func (t *Trainer) rankLogger(acc *accelerate.Accelerator) *slog.Logger {
	if acc.IsMain() {
		return t.levelLogger(t.args.SlogLevel())
	}
	level, set := t.args.SlogLevelReplica()
	if t.args.LogOnEachNode && acc.IsLocalMain() {
		level, set = t.args.SlogLevel()
	}
	return t.levelLogger(level, set).With("rank", acc.Rank())
}

// jobLog is the logger of what holds on all ranks: rank 0 logs it.
func (t *Trainer) jobLog() *slog.Logger {
	if t.acc.IsMain() {
		return t.log
	}
	return slog.New(slog.DiscardHandler)
}

// levelLogger is the trainer's logger at a level, if one is set.
func (t *Trainer) levelLogger(level slog.Level, set bool) *slog.Logger {
	if !set {
		return t.log
	}
	return slog.New(levelHandler{t.log.Handler(), level, !t.given})
}

// levelHandler passes records of a minimum level.
type levelHandler struct {
	slog.Handler
	level slog.Level
	alone bool // the handler's own level does not count
}

// Enabled implements slog.Handler.
func (h levelHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level && (h.alone || h.Handler.Enabled(ctx, l))
}

// WithAttrs implements slog.Handler.
func (h levelHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return levelHandler{h.Handler.WithAttrs(a), h.level, h.alone}
}

// WithGroup implements slog.Handler.
func (h levelHandler) WithGroup(name string) slog.Handler {
	return levelHandler{h.Handler.WithGroup(name), h.level, h.alone}
}
