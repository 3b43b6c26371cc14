// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// resumable is a run of a line with everything that a checkpoint can hold, and its checkpoint of step 1 of 2.
func resumable(t testing.TB) (parts map[string][]byte, order []string) {
	disk := vfs.NewMem()
	a := lineArgs(func(a *args.TrainingArguments) {
		a.SaveStrategy, a.SaveSteps, a.MaxSteps, a.LoggingSteps = args.StrategySteps, 1, 1, 1
		a.EvalStrategy = args.StrategySteps
	}, watched)
	_, err := newTrainer(disk, newMLP(t, 1, 1), a, resumableOptions()...).Train()
	require.NoError(t, err)
	ck, err := (&checkpoint.Store{Dir: out, FS: disk, Log: quiet}).Open(ctx, "checkpoint-1")
	require.NoError(t, err)
	parts = map[string][]byte{}
	for _, f := range ck.Files {
		parts[f.Name], err = ck.ReadPart(f.Name)
		require.NoError(t, err)
		order = append(order, f.Name)
	}
	return parts, order
}

// watched are arguments of a run that ends with the best model.
func watched(a *args.TrainingArguments) { a.MetricForBestModel, a.LoadBestModelAtEnd = "loss", true }

// resumableOptions are the data of the run, and a callback that reads what a resume gives it.
func resumableOptions() []trainer.Option {
	src := source(points(64))
	return []trainer.Option{trainer.WithTrainData(src), trainer.WithEvalData(src),
		trainer.WithCallbacks(&callbacks.EarlyStopping{Patience: 2})}
}

// resumeWith resumes from that checkpoint with one file replaced and the hashes computed again, as anybody can do. It
// resumes for a step, or at the end of the run, where the best model is loaded and nothing comes before.
func resumeWith(t testing.TB, parts map[string][]byte, order []string, name string, text []byte,
	atEnd bool) (*callbacks.State, error) {
	disk := vfs.NewMem()
	content := checkpoint.Content{RunID: "run"}
	for _, n := range order {
		data := parts[n]
		if n == name {
			data = text
		}
		content.Parts = append(content.Parts, checkpoint.BytesPart(n, data))
	}
	_, err := (&checkpoint.Store{Dir: out, FS: disk, Log: quiet}).Save(ctx, 1, content)
	require.NoError(t, err)
	a := lineArgs(func(a *args.TrainingArguments) {
		a.ResumeFromCheckpoint, a.MaxSteps = "last", 2
		a.SaveStrategy, a.SaveSteps, a.EvalStrategy, a.EvalSteps = args.StrategySteps, 9, args.StrategySteps, new(9.0)
		if atEnd {
			a.MaxSteps = 1
		}
	}, watched)
	tr := newTrainer(disk, newMLP(t, 1, 1), a, resumableOptions()...)
	_, err = tr.Train()
	return tr.State(), err
}

// FuzzResume: whatever a file of a checkpoint says, the run is refused without a panic or goes on to its end.
func FuzzResume(f *testing.F) {
	parts, order := resumable(f)
	for i, name := range order {
		f.Add(uint8(i), parts[name])
		f.Add(uint8(i+len(order)), parts[name])
	}
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		name, atEnd := order[int(which)%len(order)], int(which)/len(order)%2 == 1
		requireNoPanic(t, parts, order, name, text, atEnd)
	})
}

// requireNoPanic requires that a resume is refused, without a panic, or goes on to its end.
func requireNoPanic(t testing.TB, parts map[string][]byte, order []string, name string, text []byte, atEnd bool) {
	state, err := resumeWith(t, parts, order, name, text, atEnd)
	if fault := (*tensor.PanicError)(nil); errors.As(err, &fault) {
		require.NoError(t, err, "%s: %s: %s", name, text, fault.Stack)
	}
	if err == nil {
		require.GreaterOrEqual(t, state.GlobalStep, int64(0))
	}
}

// Numbers of a checkpoint that no run writes are refused, before memory is taken for them.
func TestResumeRefusesImpossibleNumbers(t *testing.T) {
	parts, order := resumable(t)
	for _, c := range []struct{ file, key, value, want string }{
		{"progress.json", "leaves", "1000000000000", "progress.json: leaves = 1000000000000: want 0 to 1048576"},
		{"progress.json", "leaves", "-8", "leaves = -8"},
		{"progress.json", "epoch", "-1", "epoch = -1"},
		{"progress.json", "epoch", "9223372036854775807", "epoch = 9223372036854775807: want 0 to"},
		{"progress.json", "epoch", "999", "progress.json: epoch = 999, but the data are in epoch 0: want a " +
			"difference of at most"},
		{"progress.json", "samples", "-1", "samples = -1"},
		{"progress.json", "samples", "9", "samples = 9: want at most 8, of 1 steps with 1 micro-batches of 8"},
		{"progress.json", "tokens", "9223372036854775807", "tokens = 9223372036854775807"},
		{"progress.json", "nonfinite_steps", "-1", "nonfinite_steps = -1"},
		{"progress.json", "loss", `{"sum": 1, "count": -1, "steps": 1}`, "loss.count = -1"},
		{"progress.json", "train_seconds", "-1", "train_seconds = -1"},
		{"sampler.json", "position", "9223372036854775807", "is not in epoch 0"},
		{"optimizer.json", "steps", `{"layers.0.weight": 9223372036854775807, "layers.0.bias": 1}`,
			"the step count of layers.0.weight is 9223372036854775807"},
		{"optimizer.json", "steps", `{"layers.0.weight": 1, "layers.0.bias": 2}`,
			"optimizer.json: the step count of layers.0.bias is 2: want at most the checkpoint's step, 1"},
		{"training_args.json", "per_device_train_batch_size", "1000000000000000000",
			"per_device_train_batch_size is 1000000000000000000: want at most"},
		{"training_args.json", "deterministic_ranks", "1000000000000", "deterministic_ranks is 1000000000000"},
		{"trainer_state.json", "global_step", "9223372036854775807",
			"global_step = 9223372036854775807, but the checkpoint is of step 1"},
		{"trainer_state.json", "best_metric", "null", "trainer_state.json: callbacks: reading the trainer's " +
			"state: best_metric is null beside best_global_step or best_model_checkpoint: want a number"},
		{"trainer_state.json", "best_global_step", "-1", "best_global_step is -1: want 0 or more"},
		{"trainer_state.json", "log_history", "[null]", "log_history[0] is null: want a record"},
		{"trainer_state.json", "stateful_callbacks", `{"EarlyStoppingCallback": null}`,
			"saved state of EarlyStoppingCallback: early_stopping_patience_counter is <nil>: want a whole number"},
	} {
		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(parts[c.file], &fields))
		require.Contains(t, fields, c.key)
		fields[c.key] = json.RawMessage(c.value)
		text, err := json.Marshal(fields)
		require.NoError(t, err)
		_, err = resumeWith(t, parts, order, c.file, text, true)
		require.ErrorContains(t, err, c.want, "%s: %s", c.file, c.key)
	}
}

// A batch size that is no size is named itself, not the product that a resume makes of it.
func TestResumeRefusesBatchSizes(t *testing.T) {
	parts, order := resumable(t)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(parts["training_args.json"], &fields))
	fields["global_train_batch_size"] = 8
	for _, size := range []int64{-4, math.MaxInt64} {
		fields["per_device_train_batch_size"] = size
		text, err := json.Marshal(fields)
		require.NoError(t, err)
		_, err = resumeWith(t, parts, order, "training_args.json", text, false)
		require.ErrorContains(t, err,
			fmt.Sprintf("training_args.json: arguments: per_device_train_batch_size is %d: want", size))
	}
}

func TestResumeRefusesFilesThatAreNull(t *testing.T) {
	parts, order := resumable(t)
	for _, name := range []string{"progress.json", "sampler.json", "rng_state.json", "optimizer.json",
		"scheduler.json"} {
		_, err := resumeWith(t, parts, order, name, []byte("null\n"), false)
		require.ErrorContains(t, err, name+" is null: want a value")
	}
}

// nulled calls f with what value is with a null in each place, at any depth.
func nulled(value any, f func(whole any)) {
	f(nil)
	switch v := value.(type) {
	case map[string]any:
		for key, old := range v {
			nulled(old, func(whole any) {
				v[key] = whole
				f(v)
				v[key] = old
			})
		}
	case []any:
		for i, old := range v {
			nulled(old, func(whole any) {
				v[i] = whole
				f(v)
				v[i] = old
			})
		}
	}
}

// A checkpoint with a null in any place is refused without a panic, or resumed.
func TestResumeWithNulls(t *testing.T) {
	parts, order := resumable(t)
	for _, name := range order {
		if !strings.HasSuffix(name, ".json") {
			continue
		}
		var value any
		require.NoError(t, json.Unmarshal(parts[name], &value))
		nulled(value, func(whole any) {
			text, err := json.Marshal(whole)
			require.NoError(t, err)
			for _, atEnd := range []bool{false, true} {
				requireNoPanic(t, parts, order, name, text, atEnd)
			}
		})
	}
}
