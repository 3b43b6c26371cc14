// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"log/slog"
	"time"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Logger is what this rank logs to.
func (t *Trainer) Logger() *slog.Logger { return t.log }

// WithFileSystem keeps checkpoints on another file system.
func WithFileSystem(fsys vfs.FS) Option { return func(t *Trainer) { t.fsys = fsys } }

// WithClock measures steps with another clock.
func WithClock(now func() time.Time) Option { return func(t *Trainer) { t.now = now } }

// PredictionOf is the prediction that a row of another rank holds.
var PredictionOf = predictionOf

// WithGroup makes the trainer a rank of a group.
var WithGroup = withGroup
