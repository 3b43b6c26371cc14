package callbacks_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

// display runs six steps with logs, evaluations and checkpoints under a display.
func display(t *testing.T, show callbacks.Callback) {
	a := args.Default("out")
	every := 3.0
	a.EvalStrategy, a.EvalSteps, a.LoggingSteps, a.SaveSteps, a.MaxSteps = args.StrategySteps, &every, 2, 3, 6
	l := loop{args: a, microBatches: 4, predictions: 5, handler: callbacks.NewHandler(quiet, 0, &callbacks.Flow{}, show)}
	l.run(t)
}

const printed = `step 2  epoch 0.5  loss 2.5  grad_norm 0.7  learning_rate 0.0003
step 3  epoch 0.75  eval_loss 1
saved out/checkpoint
step 4  epoch 1  loss 2.5  grad_norm 0.7  learning_rate 0.0003
step 6  epoch 1.5  loss 2.5  grad_norm 0.7  learning_rate 0.0003
step 6  epoch 1.5  eval_loss 1
saved out/checkpoint
step 6  epoch 1.5  train_loss 1.5  train_runtime 2
`

func TestPrinter(t *testing.T) {
	var out bytes.Buffer
	display(t, &callbacks.Printer{W: &out})
	require.Equal(t, printed, out.String())
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestDisplaysThatCannotWriteDoNotStopTheRun(t *testing.T) {
	display(t, &callbacks.Printer{W: full{}})
	display(t, &callbacks.Progress{W: full{}})
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	display(t, &callbacks.Progress{W: &out})
	text := out.String()
	for _, want := range []string{"6/6", "100%", "loss 2.5000  lr 3.00e-04", "tokens/s", "evaluating"} {
		require.Contains(t, text, want)
	}
	// What stays on the screen: of each line what was written after its last erasure.
	var stays []string
	for line := range strings.SplitSeq(text, "\n") {
		if i := strings.LastIndex(line, "\x1b[2K\r"); i >= 0 {
			line = line[i+len("\x1b[2K\r"):]
		}
		if i := strings.LastIndex(line, "\r"); i >= 0 {
			line = line[i+1:]
		}
		stays = append(stays, line)
	}
	screen := strings.Join(stays, "\n")
	for want := range strings.SplitSeq(strings.TrimSpace(printed), "\n") {
		require.Contains(t, screen, want)
	}
	require.True(t, strings.HasSuffix(text, "\n"))
}

func TestProgressShowsRemainingTime(t *testing.T) {
	var out bytes.Buffer
	p := &callbacks.Progress{W: &out}
	e := &callbacks.Event{State: &callbacks.State{GlobalStep: 0, MaxSteps: 100}, Step: callbacks.StepStats{Samples: 4}}
	require.NoError(t, p.OnTrainBegin(e))
	e.State.GlobalStep = 1
	require.NoError(t, p.OnStepEnd(e))
	require.NoError(t, p.Close())
	require.Contains(t, out.String(), " left")
	require.Contains(t, out.String(), "samples/s")
}

func TestDisplayOfAFileIsAPrinter(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer f.Close()
	require.IsType(t, &callbacks.Printer{}, callbacks.Display(args.Default(""), f))
}

func TestSpeed(t *testing.T) {
	speed := &callbacks.Speed{}
	a := args.Default("out")
	a.LoggingSteps, a.MaxSteps = 2, 4
	l := loop{args: a, microBatches: 4, handler: callbacks.NewHandler(quiet, 0, &callbacks.Flow{}, speed)}
	now := time.Unix(0, 0)
	callbacks.SetClock(speed, func() time.Time { now = now.Add(500 * time.Millisecond); return now })
	l.run(t)
	for _, r := range l.state.LogHistory[:2] {
		require.Equal(t, []any{2.0, 16.0, 2000.0}, []any{r["train_steps_per_second"], r["train_samples_per_second"], r["train_tokens_per_second"]})
	}
	require.NotContains(t, l.state.LogHistory[2], "train_steps_per_second", "the final record has the trainer's own")
}

func TestMemory(t *testing.T) {
	a := args.Default("out")
	a.LoggingSteps, a.MaxSteps = 1, 1
	l := loop{args: a, microBatches: 1, handler: callbacks.NewHandler(quiet, 0, &callbacks.Flow{}, &callbacks.Memory{})}
	l.run(t)
	r := l.state.LogHistory[0]
	heap, ok := r.Number("memory_heap")
	require.True(t, ok && heap > 0)
	if peak, ok := r.Number("memory_rss_peak"); ok {
		require.Greater(t, peak, float64(1<<20))
	}
}

func TestSpeedMetrics(t *testing.T) {
	require.Equal(t, map[string]float64{"train_runtime": 3.1235, "train_samples_per_second": 32.016, "train_steps_per_second": 3.202},
		callbacks.SpeedMetrics("train", 3123456*time.Microsecond, 100, 10, 0))
	require.Equal(t, map[string]float64{"eval_runtime": 0}, callbacks.SpeedMetrics("eval", 0, 100, 10, 5))
}
