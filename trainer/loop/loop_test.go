// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	_ "github.com/lockstep-ml/lockstep/integrations/jsonl"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/loop"
)

type point struct{ Inputs, Labels [3]float32 }

func points() data.Source {
	list := make(data.Slice[point], 37)
	for i := range list {
		x := float32(i%11) / 7
		list[i] = point{[3]float32{x, 1 - x, x * x}, [3]float32{x, 2 * x, 3}}
	}
	return data.NewSource(list, data.Stack[point])
}

func adamW(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
	return optim.DefaultAdamW().New(c, []*optim.Group{{LR: 0.05, Params: params}}), nil
}

// arguments cut steps of four micro-batches.
func arguments(dir string, ranks int) *args.TrainingArguments {
	a := args.Default(dir)
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas = 2, 8, ranks
	return a
}

// outcome is what a loop left on rank 0.
type outcome struct {
	weights map[string]string
	losses  []float64 // registered: of all steps, those before a resume included
	began   int64
}

// train trains up to a step, and saves every third.
func train(t *testing.T, a *args.TrainingArguments, until int64) (out outcome, err error) {
	err = accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		model, err := mlp.New(nn.NewInit(acc.Device(), 7), mlp.Config{Sizes: []int{3, 5, 3}})
		if err != nil {
			return err
		}
		if err := acc.Prepare(t.Context(), model, adamW, model.Layers[0]); err != nil {
			return err
		}
		windows, err := acc.Windows(t.Context(), points(), samplers.NewRandom(37, 3), 0)
		if err != nil {
			return err
		}
		defer windows.Close()
		state := &loop.State{Accelerator: acc, Args: a, Model: model, Windows: windows}
		defer state.Close()
		var losses []float64
		if err := state.Register("losses", &losses); err != nil {
			return err
		}
		step, err := state.Load(t.Context())
		if err != nil {
			return err
		}
		began := step
		windows.Limit(until - step)
		for w, err := range windows.All() {
			if err != nil {
				return err
			}
			loss, err := acc.Accumulate(t.Context(), w.Batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
				return model.Forward(c, b).Loss
			})
			if err != nil {
				return err
			}
			if err := acc.ClipGradValue(t.Context(), 0.01); err != nil {
				return err
			}
			if err := acc.Step(t.Context()); err != nil {
				return err
			}
			step, losses = step+1, append(losses, loss.Mean())
			if step%3 == 0 {
				if _, err := state.Save(t.Context(), step); err != nil {
					return err
				}
			}
		}
		return acc.Summon(false, func() error {
			w := map[string]string{}
			for _, p := range nn.NamedParameters(model) {
				w[p.Name] = string(tensor.ReadBytes(acc.Ctx(), p.Tensor))
			}
			if acc.IsMain() {
				out = outcome{w, losses, began}
			}
			return nil
		})
	})
	return out, err
}

// A loop that resumes on any number of ranks ends with the bits of one that never stopped; sharded too.
func TestResume(t *testing.T) {
	want, err := train(t, arguments(t.TempDir(), 1), 8)
	require.NoError(t, err)
	require.Len(t, want.losses, 8)
	half := arguments(t.TempDir(), 1)
	half.FP16 = true
	scaled, err := train(t, half, 8)
	require.NoError(t, err)
	require.NotEqual(t, want.weights, scaled.weights)
	for _, strategy := range []string{"", "full_shard", "fp16"} {
		want := want
		if strategy == "fp16" {
			want = scaled
		}
		for _, ranks := range [][2]int{{1, 1}, {1, 2}, {2, 1}, {2, 2}} {
			dir := t.TempDir()
			set := func(ranks int) *args.TrainingArguments {
				a := arguments(dir, ranks)
				if a.FP16 = strategy == "fp16"; ranks > 1 && !a.FP16 {
					a.FSDP = strings.Fields(strategy)
				}
				return a
			}
			first, err := train(t, set(ranks[0]), 4)
			require.NoError(t, err)
			require.Zero(t, first.began)
			a := set(ranks[1])
			a.ResumeFromCheckpoint = "last"
			got, err := train(t, a, 8)
			require.NoError(t, err)
			require.EqualValues(t, 3, got.began)
			require.Equal(t, want.losses, got.losses, "%v %s", ranks, strategy)
			require.Equal(t, want.weights, got.weights, "%v %s", ranks, strategy)
		}
	}
}

// What cannot be resumed is refused.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	_, err := train(t, arguments(dir, 1), 3)
	require.NoError(t, err)
	_, err = train(t, arguments(dir, 2), 3)
	require.ErrorContains(t, err, "holds checkpoints of another run (checkpoint-3): want resume_from_checkpoint last")

	resume := arguments(dir, 2)
	resume.GlobalTrainBatchSize, resume.ResumeFromCheckpoint = 4, "last"
	_, err = train(t, resume, 4)
	require.ErrorContains(t, err, "a step of the saved run has 4 micro-batches, a step of this run 2")

	a := arguments(dir, 1)
	a.ResumeFromCheckpoint = filepath.Join(dir, "checkpoint-3")
	with(t, a, func(acc *accelerate.Accelerator, state *loop.State) {
		_, err := state.Load(t.Context())
		require.ErrorContains(t, err, "registered.json: it has the values [losses], but [] are registered: want the "+
			"same")
		v := 1
		require.EqualError(t, state.Register("v", v), `loop: Register "v" got a int: want a non-nil pointer`)
		require.Error(t, state.Register("v", nil))
		require.NoError(t, state.Register("v", &v))
		require.EqualError(t, state.Register("v", &v), `loop: "v" is registered already: want a name for each value`)
	})
	with(t, arguments(t.TempDir(), 1), func(_ *accelerate.Accelerator, state *loop.State) {
		best, hidden, mean := math.Inf(-1), struct{ sum, count float64 }{1, 2}, 0.0
		require.EqualError(t, state.Register("best", &best), `loop: registered "best", a *float64: json: unsupported `+
			"value: -Inf: want a value that JSON can represent, without NaN and infinities")
		require.ErrorContains(t, state.Register("hidden", &hidden), `loop: Register "hidden": the JSON of a`)
		require.ErrorContains(t, state.Register("random", rand.NewPCG(1, 2)), "want exported fields, or MarshalJSON")
		require.NoError(t, state.Register("nothing", &struct{}{}))
		require.NoError(t, state.Register("mean", &mean))
		_, err := state.Load(t.Context())
		require.NoError(t, err)
		mean = math.NaN()
		_, err = state.Save(t.Context(), 1)
		require.ErrorContains(t, err, `loop: registered "mean", a *float64: json: unsupported value: NaN`)
		mean = 1
		_, err = state.Save(t.Context(), 1)
		require.NoError(t, err)
	})
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	_, err = (&loop.State{Accelerator: acc, Args: a}).Load(t.Context())
	require.ErrorContains(t, err, "the accelerator has no optimizer")
}

// with calls f with the state of a prepared model on one rank.
func with(t *testing.T, a *args.TrainingArguments, f func(acc *accelerate.Accelerator, state *loop.State)) {
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	model, err := mlp.New(nn.NewInit(acc.Device(), 7), mlp.Config{Sizes: []int{3, 5, 3}})
	require.NoError(t, err)
	require.NoError(t, acc.Prepare(t.Context(), model, adamW))
	state := &loop.State{Accelerator: acc, Args: a, Model: model}
	_, err = state.Save(t.Context(), 1)
	require.ErrorContains(t, err, "before Load")
	require.ErrorContains(t, state.SaveModel(""), "before Load")
	defer state.Close()
	f(acc, state)
}

// Trackers get records from rank 0 alone, and a resumed loop goes on with them.
func TestTrackers(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		a := arguments(t.TempDir(), ranks)
		a.ReportTo = []string{"jsonl"}
		for _, steps := range [][2]int64{{0, 2}, {2, 4}} {
			err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
				trackers, err := loop.NewTrackers(acc, a, nil)
				if err != nil {
					return err
				}
				saved, err := trackers.MarshalJSON()
				if err := errors.Join(err, trackers.UnmarshalJSON(saved), trackers.Begin(steps[0])); err != nil {
					return err
				}
				for step := steps[0] + 1; step <= steps[1]; step++ {
					if err := trackers.Log(step, callbacks.Record{"loss": 0.5}); err != nil {
						return err
					}
				}
				return trackers.End(nil)
			})
			require.NoError(t, err)
		}
		text, err := os.ReadFile(filepath.Join(a.OutputDir, "log.jsonl"))
		require.NoError(t, err)
		require.Equal(t, `{"loss":0.5,"step":1}
{"loss":0.5,"step":2}
{"loss":0.5,"step":3}
{"loss":0.5,"step":4}
`, string(text))
	}
}

// kept notes what happens to it.
type kept struct {
	callbacks.Base
	did []string
}

func (k *kept) OnTrainBegin(*callbacks.Event) error { k.did = append(k.did, "begin"); return nil }

func (k *kept) OnLog(e *callbacks.Event) error {
	k.did = append(k.did, fmt.Sprint("log ", e.Record["step"]))
	return nil
}

func (k *kept) OnTrainEnd(e *callbacks.Event) error {
	k.did = append(k.did, "end "+string(e.Control.StopReason.Kind))
	return nil
}

func (k *kept) Close() error { k.did = append(k.did, "close"); return nil }

// How a loop ends is how its trackers note the run. They keep to themselves what they are given, and what comes before
// Begin or after End is an error.
func TestTrackersEnd(t *testing.T) {
	var k *kept
	callbacks.RegisterReporter("kept", func(*args.TrainingArguments) (callbacks.Callback, error) {
		k = &kept{}
		return k, nil
	})
	boom := errors.New("boom")
	stopped := fmt.Errorf("%w after step 1", accelerate.ErrInterrupted)
	for end, cause := range map[string]error{"end ,close": nil, "end interrupted,close": stopped, "close": boom} {
		a := arguments(t.TempDir(), 1)
		a.ReportTo = []string{"kept"}
		acc, err := accelerate.New(a)
		require.NoError(t, err)
		trackers, err := loop.NewTrackers(acc, a, nil)
		require.NoError(t, err)
		require.ErrorContains(t, trackers.Log(1, nil), "was called before Begin or after End")
		require.NoError(t, trackers.End(nil))
		require.NoError(t, trackers.Begin(0))
		require.ErrorContains(t, trackers.Begin(0), "want End before the next Begin")
		require.NoError(t, trackers.Log(1, nil))
		r := callbacks.Record{"loss": 1.0, "step": 7}
		require.NoError(t, trackers.Log(2, r))
		require.Equal(t, callbacks.Record{"loss": 1.0, "step": 7}, r)
		require.ErrorIs(t, trackers.End(cause), cause)
		require.ErrorIs(t, trackers.End(cause), cause)
		require.ErrorContains(t, trackers.Log(3, r), "was called before Begin or after End")
		require.Equal(t, "begin,log 1,log 2,"+end, strings.Join(k.did, ","))
	}
}

// prepared calls f on so many ranks with a state whose windows and registered map are new.
func prepared(t *testing.T, a *args.TrainingArguments, f func(l *handmade) error) error {
	return accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		model, err := mlp.New(nn.NewInit(acc.Device(), 7), mlp.Config{Sizes: []int{3, 5, 3}})
		if err != nil {
			return err
		}
		if err := acc.Prepare(t.Context(), model, adamW); err != nil {
			return err
		}
		windows, err := acc.Windows(t.Context(), points(), samplers.NewRandom(37, 3), 0)
		if err != nil {
			return err
		}
		defer windows.Close()
		windows.Limit(100)
		l := &handmade{acc, model, &loop.State{Accelerator: acc, Args: a, Model: model, Windows: windows}}
		defer l.state.Close()
		return f(l)
	})
}

type handmade struct {
	*accelerate.Accelerator
	model *mlp.Model
	state *loop.State
}

// accumulate runs the passes of the next step.
func (l *handmade) accumulate(t *testing.T) error {
	w, err := l.state.Windows.Next()
	if err != nil {
		return err
	}
	defer w.Free()
	_, err = l.Accumulate(t.Context(), w.Batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
		return l.model.Forward(c, b).Loss
	})
	return err
}

func (l *handmade) steps(t *testing.T, n int) error {
	for range n {
		if err := errors.Join(l.accumulate(t), l.Step(t.Context())); err != nil {
			return err
		}
	}
	return nil
}

func (l *handmade) weights() map[string]string {
	w := map[string]string{}
	for _, p := range nn.NamedParameters(l.model) {
		w[p.Name] = string(tensor.ReadBytes(l.Ctx(), p.Tensor))
	}
	return w
}

// A checkpoint within a window, which would leave out its step, is an error on all ranks, and so is one whose values
// rank 0 cannot write; the loop may go on after both.
func TestSaveThatIsRefused(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		require.NoError(t, prepared(t, arguments(t.TempDir(), ranks), func(l *handmade) error {
			mean := 1.0
			require.NoError(t, l.state.Register("mean", &mean))
			_, err := l.state.Load(t.Context())
			require.NoError(t, err)
			require.NoError(t, l.accumulate(t))
			require.True(t, l.StepPending())
			_, err = l.state.Save(t.Context(), 1)
			require.ErrorContains(t, err, "loop: Save 1 within a window, before a step has used its gradients: want "+
				"it after Step, or after ZeroGrad")
			require.NoError(t, l.Step(t.Context()))
			if mean = 2; l.IsMain() {
				mean = math.NaN()
			}
			_, err = l.state.Save(t.Context(), 1)
			require.ErrorContains(t, err, `registered "mean", a *float64: json: unsupported value: NaN`)
			mean = 3
			_, err = l.state.Save(t.Context(), 1)
			require.NoError(t, err)
			require.NoError(t, l.accumulate(t))
			l.ZeroGrad()
			_, err = l.state.Save(t.Context(), 2)
			return err
		}))
	}
}

// Load may be called again, within a window too: it goes back to a checkpoint, as accelerate's load_state does.
func TestLoadAgain(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		a := arguments(t.TempDir(), ranks)
		require.NoError(t, prepared(t, a, func(l *handmade) error {
			best := map[string]int{"step": 0}
			require.NoError(t, l.state.Register("best", &best))
			for range 2 {
				_, err := l.state.Load(t.Context())
				require.NoError(t, err)
			}
			require.NoError(t, l.steps(t, 2))
			best["step"] = 2
			path, err := l.state.Save(t.Context(), 2)
			require.NoError(t, err)
			require.Equal(t, l.IsMain(), path != "")
			require.NoError(t, l.steps(t, 1))
			want := l.weights()
			require.NoError(t, l.steps(t, 2))
			require.NotEqual(t, want, l.weights())
			require.NoError(t, l.accumulate(t))
			best["later"] = 1

			resumed := a.Clone()
			resumed.ResumeFromCheckpoint = "last"
			l.state.Args = resumed
			step, err := l.state.Load(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 2, step)
			require.Equal(t, map[string]int{"step": 2}, best)
			require.False(t, l.StepPending())
			require.NoError(t, l.steps(t, 1))
			require.Equal(t, want, l.weights())
			_, err = l.state.Save(t.Context(), 3)
			return err
		}))
	}
}

// What is registered too late, or not on all ranks, is an error before anything is read.
func TestRegisteredOnAllRanksBeforeLoad(t *testing.T) {
	var first, second error
	err := prepared(t, arguments(t.TempDir(), 2), func(l *handmade) error {
		v := 1
		require.NoError(t, l.state.Register([]string{"a", "b"}[l.Rank()], &v))
		_, err := l.state.Load(t.Context())
		if l.IsMain() {
			first = err
		} else {
			second = err
		}
		return err
	})
	require.ErrorContains(t, err, "loop: rank 0 registered [a], and rank 1 [b]: want the same on all ranks")
	require.EqualError(t, first, second.Error())
	require.NoError(t, prepared(t, arguments(t.TempDir(), 1), func(l *handmade) error {
		_, err := l.state.Load(t.Context())
		v := 1
		require.EqualError(t, l.state.Register("late", &v),
			`loop: Register "late" after Load, which reads the registered values: want it before`)
		return err
	}))
	_, err = (&loop.State{}).Load(t.Context())
	require.ErrorContains(t, err, "without an Accelerator")
	require.ErrorContains(t, prepared(t, arguments(t.TempDir(), 1), func(l *handmade) error {
		l.state.Args = nil
		_, err := l.state.Load(t.Context())
		return err
	}), "a State without Args or Model")
}
