// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/screen"
)

// sixSteps is a run with logs, evaluations and checkpoints under a display.
func sixSteps(show callbacks.Callback, change ...func(*loop)) *loop {
	a := args.Default("out")
	every := 3.0
	a.EvalStrategy, a.EvalSteps, a.LoggingSteps, a.SaveSteps, a.MaxSteps = args.StrategySteps, &every, 2, 3, 6
	l := &loop{args: a, microBatches: 4, predictions: 5, info: &callbacks.RunInfo{
		Device: "cpu", Kernels: "avx512", Threads: 2, Ranks: 1, Precision: "float32", Parameters: 1_070_000,
		Trainable: 1_070_000, Samples: 54_765, Steps: 800,
		BatchSize: 8, TotalBatch: 8,
	}}
	for _, c := range change {
		c(l)
	}
	l.handler = callbacks.NewHandler(quiet, 0, &callbacks.Flow{}, &callbacks.Speed{}, show)
	return l
}

const printed = `training on cpu (avx512, 2 threads), 1 rank, float32: 1.07M parameters, 54,765 samples, 800 steps of 8
step 2  epoch 0.50  loss 2.5000  grad_norm 0.7000  learning_rate 3.00e-04
step 3  epoch 0.75  eval_loss 1.0000
saved out/checkpoint-3
step 4  epoch 1.00  loss 2.5000  grad_norm 0.7000  learning_rate 3.00e-04
step 6  epoch 1.50  loss 2.5000  grad_norm 0.7000  learning_rate 3.00e-04
step 6  epoch 1.50  eval_loss 1.0000
saved out/checkpoint-6
step 6  epoch 1.50  train_loss 1.5000  train_runtime 2
`

// withoutSpeed takes out what a clock makes.
var withoutSpeed = regexp.MustCompile(`  train_\w+_per_second \d+|   *\S+ tokens/s`)

func TestPrinter(t *testing.T) {
	var out bytes.Buffer
	sixSteps(&callbacks.Printer{W: &out}).run(t)
	require.Contains(t, out.String(), "train_tokens_per_second ")
	require.Equal(t, printed, withoutSpeed.ReplaceAllString(out.String(), ""))
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestDisplaysThatCannotWriteDoNotStopTheRun(t *testing.T) {
	sixSteps(&callbacks.Printer{W: full{}}).run(t)
	sixSteps(&callbacks.Progress{W: full{}}).run(t)
}

const shown = `training on cpu (avx512, 2 threads), 1 rank, float32:
  1.07M parameters, 54,765 samples, 800 steps of 8
step 2/6  epoch 0.50  loss 2.5000  grad_norm 0.7000  lr 3.00e-04
eval  step 3  eval_loss 1.0000
saved out/checkpoint-3
step 4/6  epoch 1.00  loss 2.5000  grad_norm 0.7000  lr 3.00e-04
step 6/6  epoch 1.50  loss 2.5000  grad_norm 0.7000  lr 3.00e-04
eval  step 6  eval_loss 1.0000
saved out/checkpoint-6
train  step 6/6  epoch 1.50  train_loss 1.5000  2.0s`

// watch calls f after each event that the display before it has shown.
type watch struct {
	callbacks.Base
	f func(e *callbacks.Event)
}

func (w watch) OnTrainBegin(e *callbacks.Event) error     { w.f(e); return nil }
func (w watch) OnStepEnd(e *callbacks.Event) error        { w.f(e); return nil }
func (w watch) OnLog(e *callbacks.Event) error            { w.f(e); return nil }
func (w watch) OnPredictionStep(e *callbacks.Event) error { w.f(e); return nil }
func (w watch) OnEvaluate(e *callbacks.Event) error       { w.f(e); return nil }
func (w watch) OnSave(e *callbacks.Event) error           { w.f(e); return nil }

// TestProgress looks at the screen after every event: there is one bar, in the last line, and nothing else below the
// records.
func TestProgress(t *testing.T) {
	for _, width := range []int{101, 100, 70, 50} {
		s := screen.New(width, 30)
		p := &callbacks.Progress{W: s}
		callbacks.SetWidth(p, func() int { return s.Width() })
		l := sixSteps(p)
		bars := map[string]bool{}
		l.handler.Add(watch{f: func(*callbacks.Event) {
			lines := s.Lines()
			for i, line := range lines {
				require.Equal(t, i == len(lines)-1, strings.Contains(line, "% |"), "%s", s.Text())
			}
			bars[strings.Fields(lines[len(lines)-1])[0]] = true
		}})
		l.run(t)
		require.Empty(t, s.Broken())
		require.Contains(t, bars, "evaluating")
		require.Contains(t, bars, "0%")
		if width >= 100 {
			require.Equal(t, shown, withoutSpeed.ReplaceAllString(s.Text(), ""))
		}
		require.Contains(t, s.Text(), "saved out/checkpoint-6\ntrain  step 6/6")
		require.NotContains(t, s.Text(), "|")
	}
}

func TestProgressWithoutABar(t *testing.T) {
	s := screen.New(100, 30)
	sixSteps(&callbacks.Progress{W: s, NoBar: true}).run(t)
	require.Equal(t, shown, withoutSpeed.ReplaceAllString(s.Text(), ""))
}

// TestResize makes the terminal narrower and wider under the bar, which may then be broken in two.
func TestResize(t *testing.T) {
	s := screen.New(100, 30)
	p := &callbacks.Progress{W: s}
	callbacks.SetWidth(p, func() int { return s.Width() })
	l := sixSteps(p)
	events := 0
	l.handler.Add(watch{f: func(*callbacks.Event) {
		events++
		require.Equal(t, 1, strings.Count(s.Text(), "% |"), "%s", s.Text())
		s.Resize([]int{100, 55, 80, 40}[events%4])
	}})
	l.run(t)
	require.Empty(t, s.Broken())
	require.NotContains(t, s.Text(), "|")
	require.Contains(t, s.Text(), "train  step 6/6")
}

// TestBrokenOff ends runs in the middle of steps and evaluations.
func TestBrokenOff(t *testing.T) {
	for _, at := range []int{1, 3, 5, 8} {
		s := screen.New(100, 30)
		p := &callbacks.Progress{W: s}
		l := sixSteps(p)
		n := 0
		l.handler.Add(watch{f: func(*callbacks.Event) {
			if n++; n == at {
				panic("broken off")
			}
		}})
		require.Panics(t, func() { l.run(panics{}) })
		require.Contains(t, s.Text(), "% |")
		require.NoError(t, l.handler.Close())
		require.NotContains(t, s.Text(), "|")
	}
}

// panics is a test that stops where it fails.
type panics struct{}

func (panics) Errorf(string, ...any) {}
func (panics) FailNow()              { panic("failed") }

// TestWritingAboveTheBar has a program write and log while a bar is shown.
func TestWritingAboveTheBar(t *testing.T) {
	s := screen.New(100, 30)
	p := &callbacks.Progress{W: s}
	l := sixSteps(p)
	logger := slog.New(slog.NewTextHandler(s, nil)) // to the same terminal, not through it
	var terminal *callbacks.Terminal
	l.handler.Add(watch{f: func(e *callbacks.Event) {
		if e.Kind == callbacks.TrainBegin {
			terminal = callbacks.TerminalOfProgress(p)
			logger = slog.New(terminal.Handler(logger.Handler())).With("rank", 0)
		}
		_, err := terminal.Write([]byte("one line\nand the beginning "))
		require.NoError(t, err)
		_, err = terminal.Write([]byte("of another\n"))
		require.NoError(t, err)
		logger.Warn("careful")
		require.Equal(t, 1, strings.Count(s.Text(), "% |"), "%s", s.Text())
	}})
	l.run(t)
	_, err := terminal.Write([]byte("after the run"))
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(s.Text(), "\nafter the run"))
	require.NotContains(t, s.Text(), "|")
	n := strings.Count(s.Text(), "one line\nand the beginning of another\ntime=")
	require.Greater(t, n, 10)
	require.Equal(t, n, strings.Count(s.Text(), "level=WARN msg=careful rank=0\n"))
}

// TestPrintingInCallbacks has a program's callbacks print to the terminal without knowing of the bar.
func TestPrintingInCallbacks(t *testing.T) {
	s := screen.New(100, 30)
	p := &callbacks.Progress{W: s}
	l := sixSteps(p)
	prints := 0
	program := watch{f: func(e *callbacks.Event) {
		if e.Kind != callbacks.PredictionStep {
			prints++
			fmt.Fprintf(s, "printed at %s\nand\n", e.Kind)
		}
	}}
	list := append([]callbacks.Callback{&callbacks.Flow{}}, p.HideBar(program)...)
	l.handler = callbacks.NewHandler(quiet, 0, append(list, p, watch{f: func(e *callbacks.Event) {
		require.Equal(t, 1, strings.Count(s.Text(), "% |"), "%s", s.Text())
	}})...)
	l.run(t)
	require.NotContains(t, s.Text(), "|")
	require.Equal(t, prints, strings.Count(s.Text(), "printed at "))
	require.Equal(t, prints, strings.Count(s.Text(), "\nand\n"))

	failing := watch{f: func(e *callbacks.Event) { panic("broken off") }}
	p = &callbacks.Progress{W: s}
	l = sixSteps(p)
	l.handler = callbacks.NewHandler(quiet, 0, append(p.HideBar(failing), p)...)
	require.Panics(t, func() { l.run(panics{}) })
	require.NoError(t, l.handler.Close())
	l = sixSteps(p)
	l.handler.Add(watch{f: func(*callbacks.Event) {
		require.Contains(t, s.Text(), "% |", "the bar is there in the next run")
	}})
	l.run(t)
}

// silent is a callback that prints nothing.
type silent struct{ callbacks.Base }

func (silent) Silent() {}

// TestSilentCallbacks: the bar makes room for callbacks only if one of them may print.
func TestSilentCallbacks(t *testing.T) {
	p := &callbacks.Progress{W: screen.New(100, 30)}
	require.Equal(t, []callbacks.Callback{silent{}, &callbacks.EarlyStopping{}},
		p.HideBar(silent{}, &callbacks.EarlyStopping{}))
	require.Len(t, p.HideBar(silent{}, watch{}), 4)
	require.Empty(t, p.HideBar())
}

func TestLines(t *testing.T) {
	long := callbacks.Record{
		"step": int64(12_345), "epoch": 12.3456, "loss": 10.12345, "grad_norm": 123.4567, "learning_rate": 2.987e-4,
		"train_samples_per_second": 151.234, "train_tokens_per_second": 19_345.6, "train_steps_per_second": 18.9,
		"memory_rss": int64(1 << 30), "total_flos": 1e15,
	}
	with := func(r callbacks.Record) callbacks.Record {
		out := maps.Clone(long)
		maps.Copy(out, r)
		return out
	}
	for _, c := range []struct {
		name  string
		rec   callbacks.Record
		width int
		want  string
	}{
		{"usual", long, 100, "step 12345/50000  epoch 12.35  loss 10.1235  grad_norm 123.4567  lr 2.99e-04  19.3k " +
			"tokens/s"},
		{"narrow", long, 80, "step 12345/50000  epoch 12.35  loss 10.1235  grad_norm 123.4567  lr 2.99e-04"},
		{"narrower", long, 60, "step 12345/50000  loss 10.1235  lr 2.99e-04"},
		{"very narrow", long, 28, "step 12345/50000  loss 10.1…"},
		{"a metric more", with(callbacks.Record{"nonfinite_steps": int64(3), "note": "a\nb"}), 100,
			"step 12345/50000  epoch 12.35  loss 10.1235  grad_norm 123.4567  lr 2.99e-04  19.3k tokens/s\n  " +
				"nonfinite_steps 3  note a b"},
		{"short, with a metric", callbacks.Record{"step": int64(5), "loss": 0.000123, "accuracy": 0.98765,
			"train_samples_per_second": 400_271.0}, 100,
			"step     5/50000  loss 1.23e-04   400k samples/s  accuracy 0.9877"},
		{"not finite", callbacks.Record{"step": int64(5), "loss": math.NaN(), "grad_norm": math.Inf(1)}, 100,
			"step     5/50000  loss NaN  grad_norm +Inf"},
		{"evaluation", callbacks.Record{"step": int64(200), "epoch": 0.03, "eval_loss": 4.8911,
			"eval_nats_per_byte": 2.00452, "eval_perplexity": 133.1,
			"eval_runtime": 0.8843, "eval_samples_per_second": 1490.5, "eval_steps_per_second": 186.59}, 100,
			"eval  step 200  eval_loss 4.8911  nats_per_byte 2.0045  perplexity 133.1  0.9s"},
		{"narrow evaluation", callbacks.Record{"step": int64(200), "eval_loss": 4.8911, "eval_nats_per_byte": 2.00452,
			"eval_perplexity": 133.1,
			"eval_runtime":    0.8843}, 60, "eval  step 200  eval_loss 4.8911  nats_per_byte 2.0045  0.9s\n  " +
			"perplexity 133.1"},
		{"one of several sets", callbacks.Record{"step": int64(200), "eval_other_loss": 4.8911,
			"eval_other_accuracy": 1.0, "eval_other_runtime": 75.3}, 100,
			"eval_other  step 200  eval_other_loss 4.8911  accuracy 1  1m15s"},
		{"end", callbacks.Record{"step": int64(376), "epoch": 5.625, "train_loss": 3.21, "train_runtime": 7321.0,
			"train_tokens_per_second": 1e6, "nonfinite_steps": 2.0,
			"train_mem_peak": 1.5 * (1 << 20)}, 100,
			"train  step   376/50000  epoch 5.62  train_loss 3.2100  1M tokens/s  2h02m\n  nonfinite_steps 2  " +
				"train_mem_peak 1.5 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := screen.New(c.width, 30)
			p := &callbacks.Progress{W: s}
			callbacks.SetWidth(p, func() int { return c.width + 1 })
			require.NoError(t, p.OnLog(&callbacks.Event{Record: c.rec, State: &callbacks.State{MaxSteps: 50_000}}))
			require.Equal(t, c.want, s.Text())
			require.Empty(t, s.Broken())
		})
	}
}

func TestRunInfo(t *testing.T) {
	info := callbacks.RunInfo{
		Device: "cpu", Kernels: "avx2", Threads: 1, Ranks: 4, Precision: "float32", Parameters: 124_439_808,
		Trainable: 124_439_808, Samples: 1,
		Steps: 1, BatchSize: 8, TotalBatch: 8,
	}
	require.Equal(t, "training on cpu (avx2, 1 thread), 4 ranks, float32: 124M parameters, 1 sample, 1 step of 8",
		info.String())
	info.Resumed = "out/checkpoint-1200"
	info.Trainable, info.FromStep, info.Steps, info.TotalBatch, info.Samples = 1536, 1200, 12_000, 1024, 1_234_567
	require.Equal(t, "1.54k of 124M parameters trainable, 1,234,567 samples, 12,000 steps of 1,024 (batches of 8) "+
		"from step 1,200 (out/checkpoint-1200)", info.Work())
	require.Equal(t, "training on gpu, 1 rank, bfloat16",
		callbacks.RunInfo{Device: "gpu", Kernels: "amx", Ranks: 1, Precision: "bfloat16"}.Machine())
}

// TestRemainingTime shows the share and the remaining time of what ends the run first, its steps or max_train_seconds,
// also of a run that continues where another ended. A step takes a second, the clock of a bubble does not wait.
func TestRemainingTime(t *testing.T) {
	for _, c := range []struct {
		limit, used float64 // max_train_seconds, and those of the run before
		first       int64   // steps before
		want        string
	}{
		{want: " 10% |██                  |  10/100  loss 0.0000  eta 1m30s"},
		{limit: 25, want: " 40% |████████            | step 10  loss 0.0000  eta 15s"},
		{limit: 1000, want: " 10% |██                  |  10/100  loss 0.0000  eta 1m30s"},
		{first: 40, want: " 50% |██████████          |  50/100  loss 0.0000  eta 50s"},
		{limit: 100, used: 60, first: 20, want: " 70% |██████████████      | step 30  loss 0.0000  eta 30s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := screen.New(100, 30)
			p := &callbacks.Progress{W: s}
			e := &callbacks.Event{Args: args.Default(""), State: &callbacks.State{MaxSteps: 100, GlobalStep: c.first},
				Step: callbacks.StepStats{Samples: 4}, Run: &callbacks.RunInfo{Seconds: c.used}}
			e.Args.MaxTrainSeconds = c.limit
			require.NoError(t, p.OnTrainBegin(e))
			for range 10 {
				time.Sleep(time.Second)
				e.State.GlobalStep++
				require.NoError(t, p.OnStepEnd(e))
			}
			lines := s.Lines()
			require.Equal(t, " "+c.want+"  4 samples/s  lr 0.00e+00", lines[len(lines)-1])
			require.NoError(t, p.Close())
			require.NotContains(t, s.Text(), "|")
		})
	}
}

// stop asks for the end at a step.
type stop struct {
	callbacks.Base
	ask func(e *callbacks.Event)
}

func (s stop) OnStepEnd(e *callbacks.Event) error {
	if e.State.GlobalStep >= 2 {
		s.ask(e)
	}
	return nil
}

// TestStopReasons looks at the last lines of runs that end early.
func TestStopReasons(t *testing.T) {
	for _, c := range []struct {
		name string
		ask  func(*callbacks.Event)
		want string
	}{
		{"flag", func(e *callbacks.Event) { e.Control.ShouldTrainingStop = true },
			"stopped after 2 of 6 steps: asked for by stop"},
		{"reason", func(e *callbacks.Event) {
			e.Control.StopTraining("it is late")
			e.Control.StopTraining("again")
		}, "stopped after 2 of 6 steps: stop: it is late"},
		{"epochs", func(e *callbacks.Event) {
			e.Control.ShouldEpochStop = true
			e.State.MaxSteps = 8
		}, "stopped after 6 of 8 steps: stop: ended an epoch early"},
		{"interrupt", func(e *callbacks.Event) {
			e.Control.ShouldTrainingStop, e.Control.StopReason = true,
				callbacks.StopReason{Kind: callbacks.StopInterrupted, Detail: "interrupt signal received"}
		}, "resume from out/checkpoint-2"},
		{"the last step", func(e *callbacks.Event) {
			if e.State.GlobalStep == 6 {
				e.Control.StopTraining("it is late")
			}
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, out := screen.New(100, 30), &bytes.Buffer{}
			for _, show := range []callbacks.Callback{&callbacks.Progress{W: s}, &callbacks.Printer{W: out}} {
				l := sixSteps(show, func(l *loop) { l.checkpoint = "out/checkpoint-2" })
				l.handler = callbacks.NewHandler(quiet, 0, &callbacks.Flow{}, stop{ask: c.ask}, show)
				l.run(t)
				require.Equal(t, c.want != "", l.control.StopReason.Early())
			}
			for _, text := range []string{s.Text(), strings.TrimSpace(out.String())} {
				if c.want == "" {
					require.NotContains(t, text, "stopped")
					continue
				}
				require.True(t, strings.HasSuffix(text, "\n"+c.want), "%s", text)
				require.Equal(t, strings.Count(c.want, "stopped"), strings.Count(text, "stopped"), "%s", text)
			}
		})
	}
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
		require.Equal(t, []any{2.0, 16.0, 2000.0},
			[]any{r["train_steps_per_second"], r["train_samples_per_second"], r["train_tokens_per_second"]})
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
	require.Equal(t, map[string]float64{"train_runtime": 3.1235, "train_samples_per_second": 32.016,
		"train_steps_per_second": 3.202},
		callbacks.SpeedMetrics("train", 3123456*time.Microsecond, 100, 10, 0))
	require.Equal(t, map[string]float64{"eval_runtime": 0}, callbacks.SpeedMetrics("eval", 0, 100, 10, 5))
}
