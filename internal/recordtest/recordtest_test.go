// SPDX-License-Identifier: Apache-2.0

package recordtest_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/recordtest"
)

// Lines are read as a Printer, a log and the programs write them.
func TestRecords(t *testing.T) {
	var log bytes.Buffer
	slog.New(callbacks.NewLogHandler(&log, slog.LevelInfo)).Warn("a rank is slow", "rank", 1, "cause", "no answer: 3 s")
	text := "step 5  loss 0.25  grad_norm 1e-3\neval       eval_loss 0.5  eval_accuracy 0.75\n" + log.String() +
		"[1] step 6  loss 0.2\n"
	require.Equal(t, []recordtest.Record{{"step": "5", "loss": "0.25", "grad_norm": "1e-3"}, {"loss": "0.2"}},
		recordtest.Having(text, "loss"))
	require.Equal(t, []recordtest.Record{{"rank": "1", "cause": "no answer: 3 s"}}, recordtest.Having(text, "cause"))
	require.Equal(t, recordtest.Record{"eval_accuracy": "0.75"}, recordtest.Last(t, text, "eval_accuracy"))
	require.Equal(t, 0.2, recordtest.Last(t, text, "loss").Number(t, "loss"))
	require.Empty(t, recordtest.Having(text, "loss", "eval_loss"))
}
