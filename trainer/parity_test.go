// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// The goldens of this test are runs of transformers' Trainer: see testdata/events.py.

type goldenPoint struct {
	Inputs float32
	Labels float32
}

type goldenRun struct {
	Name          string           `json:"name"`
	Args          map[string]any   `json:"args"`
	Calls         []string         `json:"calls"`
	TrainSize     int              `json:"train_size"`
	Callback      map[string][]int `json:"callback"`
	EarlyStopping *struct {
		Patience  int     `json:"early_stopping_patience"`
		Threshold float64 `json:"early_stopping_threshold"`
	} `json:"early_stopping"`
	Resume              int64              `json:"resume"`
	Events              []string           `json:"events"`
	Steps               []int64            `json:"steps"`
	LogHistory          []callbacks.Record `json:"log_history"`
	GlobalStep          int64              `json:"global_step"`
	Epoch               float64            `json:"epoch"`
	MaxSteps            int64              `json:"max_steps"`
	NumTrainEpochs      int64              `json:"num_train_epochs"`
	BestMetric          *float64           `json:"best_metric"`
	BestGlobalStep      *int64             `json:"best_global_step"`
	BestModelCheckpoint *string            `json:"best_model_checkpoint"`
	Checkpoints         []string           `json:"checkpoints"`
	A                   float32            `json:"a"`
	B                   float32            `json:"b"`
}

// line is y = a·x + b with the squared error.
type line struct {
	A *nn.Parameter `nn:"a"`
	B *nn.Parameter `nn:"b"`
}

func newLine(a, b float32) *line {
	c := tensor.NewCtx(tensor.CPU())
	return &line{A: nn.NewParameter(tensor.FromSlice(c, []float32{a})),
		B: nn.NewParameter(tensor.FromSlice(c, []float32{b}))}
}

func (m *line) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	out := nn.Unit(c, m, func(c *nn.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		y := tensor.Add(c.Ctx, tensor.Mul(c.Ctx, m.A.Tensor, in[0]), m.B.Tensor)
		return []*tensor.Tensor{y, nn.MSESum(c, y, b.Tensors[data.Labels])}
	}, b.Tensors[data.Inputs])
	return models.Output{Logits: out[0], Loss: out[1]}
}

func (m *line) values(t *testing.T) (a, b float32) {
	c := tensor.NewCtx(tensor.CPU())
	return tensor.ToSlice[float32](c, m.A.Tensor)[0], tensor.ToSlice[float32](c, m.B.Tensor)[0]
}

// recorder notes every event and sets the flags that a run asks for.
type recorder struct {
	events []string
	steps  []int64
	wanted map[string][]int
}

func (r *recorder) note(e *callbacks.Event) error {
	r.events, r.steps = append(r.events, string(e.Kind)), append(r.steps, e.State.GlobalStep)
	if e.Kind == callbacks.StepEnd {
		flags := map[string]*bool{
			"should_training_stop": &e.Control.ShouldTrainingStop, "should_epoch_stop": &e.Control.ShouldEpochStop,
			"should_save": &e.Control.ShouldSave, "should_evaluate": &e.Control.ShouldEvaluate,
			"should_log": &e.Control.ShouldLog,
		}
		for name, at := range r.wanted {
			if slices.Contains(at, int(e.State.GlobalStep)) {
				*flags[name] = true
			}
		}
	}
	return nil
}

// columns are samples, x and y apart.
type columns struct{ X, Y []float32 }

// rows are the samples from number from to number to.
func (c columns) rows(from, to int) data.Source {
	var rows data.Slice[goldenPoint]
	for i := from; i < to; i++ {
		rows = append(rows, goldenPoint{c.X[i], c.Y[i]})
	}
	return data.NewSource(rows, data.Stack[goldenPoint])
}

type goldens struct {
	Model struct{ A, B float32 } `json:"model"`
	Train columns                `json:"train"`
	Eval  columns                `json:"eval"`
	Runs  []goldenRun            `json:"runs"`
}

// trainer builds the trainer of a golden run on disk.
func (g *goldens) trainer(t *testing.T, run goldenRun, disk vfs.FS, m *line, rec *recorder,
	resume int64) *trainer.Trainer {
	settings := maps.Clone(run.Args)
	settings["output_dir"] = out
	if resume > 0 {
		settings["resume_from_checkpoint"] = checkpointPath(resume)
	}
	text, err := json.Marshal(settings)
	require.NoError(t, err)
	a := args.Default(out)
	require.NoError(t, args.UnmarshalJSON(text, a))
	size := len(g.Train.X)
	if run.TrainSize > 0 {
		size = run.TrainSize
	}
	opts := []trainer.Option{trainer.WithTrainData(g.Train.rows(0, size)), trainer.WithCallbacks(&every{rec.note})}
	if strings.Contains(a.MetricForBestModel, "first_loss") {
		opts = append(opts, trainer.WithNamedEvalData("first", g.Eval.rows(0, 12)),
			trainer.WithNamedEvalData("second", g.Eval.rows(12, 20)))
	} else {
		opts = append(opts, trainer.WithEvalData(g.Eval.rows(0, 20)))
	}
	if es := run.EarlyStopping; es != nil {
		opts = append(opts,
			trainer.WithCallbacks(&callbacks.EarlyStopping{Patience: es.Patience, Threshold: es.Threshold}))
	}
	return newTrainer(disk, m, a, opts...)
}

// Where Lockstep departs from transformers on purpose, by the name of the run.
const (
	// transformers lets dataloader_drop_last leave out evaluation samples, too.
	evalDropsLast = "ragged_drop_last"
	// transformers' second train() goes on with the first one's optimizer and used-up schedule;
	// here each Train is a run of its own.
	trainTwice = "train_twice"
	// transformers deletes the newest checkpoint at the end if the limit is 1 and another is
	// the best; here the one that a resume needs stays.
	limitOne = "load_best_limit1"
)

// resumedAtEpochEnd are runs that go on from a checkpoint of an epoch's last step: the end
// of that epoch is still to come, and transformers never fires it.
var resumedAtEpochEnd = []string{"resume8_gas1", "resume16_gas1", "resume4_gas2", "resume3_gas3"}

// withEpochEnd inserts the epoch_end that transformers leaves out.
func (r goldenRun) withEpochEnd() (events []string, steps []int64) {
	at := slices.Index(r.Events, string(callbacks.TrainBegin)) + 1
	return slices.Insert(slices.Clone(r.Events), at, string(callbacks.EpochEnd)),
		slices.Insert(slices.Clone(r.Steps), at, r.Resume)
}

func withoutPredictionSteps(events []string, steps []int64) (e []string, s []int64) {
	for i, name := range events {
		if name != string(callbacks.PredictionStep) {
			e, s = append(e, name), append(s, steps[i])
		}
	}
	return e, s
}

// departs tells which values of a record are computed otherwise on purpose.
func (r goldenRun) departs(key string) bool {
	switch key {
	case "loss":
		// Means of means; and transformers' first record after a resume forgets the steps
		// between the last record and the checkpoint.
		return r.ragged() || r.Resume > 0 || r.Name == trainTwice
	case "train_loss":
		// After a resume transformers divides the losses since then by all steps.
		return r.ragged() || r.Resume > 0 || r.Name == trainTwice
	case "grad_norm", "learning_rate":
		return r.Name == trainTwice
	case "eval_loss":
		return r.Name == evalDropsLast
	case "train_samples_per_second", "train_steps_per_second":
		return r.Resume > 0 // a resume after the last step does nothing, at no speed
	case "eval_model_preparation_time":
		return true // the time to move a model to its device: there is none
	}
	return false
}

// TestRunsOfTransformers repeats 164 runs of transformers' Trainer: the events in their
// order, the step at each, records, counters, checkpoints and final parameters.
func TestRunsOfTransformers(t *testing.T) {
	text, err := os.ReadFile("testdata/events.json")
	require.NoError(t, err)
	var g goldens
	require.NoError(t, json.Unmarshal(text, &g))
	require.NotEmpty(t, g.Runs)
	for _, run := range g.Runs {
		t.Run(run.Name, func(t *testing.T) {
			t.Parallel()
			g.check(t, run)
		})
	}
}

func (g *goldens) check(t *testing.T, run goldenRun) {
	disk := vfs.NewMem()
	if run.Resume > 0 {
		whole := run
		whole.Callback = nil
		_, err := g.trainer(t, whole, disk, newLine(g.Model.A, g.Model.B), &recorder{}, 0).Train()
		require.NoError(t, err)
	}
	m, rec := newLine(g.Model.A, g.Model.B), &recorder{wanted: run.Callback}
	tr := g.trainer(t, run, disk, m, rec, run.Resume)
	require.NoError(t, tr.Err())
	for _, call := range run.Calls {
		var err error
		switch call {
		case "train":
			_, err = tr.Train()
		case "evaluate":
			_, err = tr.Evaluate()
		case "predict":
			_, err = tr.Predict(g.Eval.rows(0, 11))
		}
		require.NoError(t, err)
	}
	if run.Name == evalDropsLast {
		run.Events, run.Steps = withoutPredictionSteps(run.Events, run.Steps)
		rec.events, rec.steps = withoutPredictionSteps(rec.events, rec.steps)
	}
	if slices.Contains(resumedAtEpochEnd, run.Name) {
		run.Events, run.Steps = run.withEpochEnd()
	}
	require.Equal(t, run.Events, rec.events)
	require.Equal(t, run.Steps, rec.steps)
	g.checkState(t, run, tr.State())
	if run.Name != trainTwice {
		a, b := m.values(t)
		require.InDelta(t, run.A, a, 2e-5)
		require.InDelta(t, run.B, b, 2e-5)
	}
	requireCheckpoints(t, run, disk)
}

func (g *goldens) checkState(t *testing.T, run goldenRun, s *callbacks.State) {
	require.Equal(t, run.GlobalStep, s.GlobalStep)
	require.InDelta(t, run.Epoch, s.Epoch, 1e-9)
	if slices.Contains(run.Calls, "train") {
		require.Equal(t, run.MaxSteps, s.MaxSteps)
		require.Equal(t, run.NumTrainEpochs, s.NumTrainEpochs)
	}
	require.Equal(t, run.BestGlobalStep, s.BestGlobalStep)
	if run.BestMetric != nil {
		require.InDelta(t, *run.BestMetric, *s.BestMetric, 1e-5*(1+*run.BestMetric))
	}
	if run.BestModelCheckpoint != nil {
		require.NotNil(t, s.BestModelCheckpoint)
		require.Equal(t, filepath.Base(*run.BestModelCheckpoint), filepath.Base(*s.BestModelCheckpoint))
	} else {
		require.Nil(t, s.BestModelCheckpoint)
	}
	require.Len(t, s.LogHistory, len(run.LogHistory))
	for i, want := range run.LogHistory {
		requireRecord(t, run, want, s.LogHistory[i])
	}
}

// ragged tells runs whose micro-batches differ in size: there transformers logs means of
// means, and Lockstep the mean over all samples. Its epoch after an early end of an epoch
// is compared elsewhere.
func (r goldenRun) ragged() bool {
	return r.TrainSize > 0 || r.Args["gradient_accumulation_steps"] == 3.0
}

func requireRecord(t *testing.T, run goldenRun, want, got callbacks.Record) {
	for _, key := range want["keys"].([]any) {
		if !run.departs(key.(string)) {
			require.Contains(t, got, key)
		}
	}
	for key, w := range want {
		wf, ok := w.(float64)
		if !ok || run.departs(key) {
			continue
		}
		gf, ok := got.Number(key)
		require.True(t, ok, key)
		require.InDelta(t, wf, gf, 2e-5*(1+max(wf, -wf)), key)
	}
}

// requireCheckpoints compares the folders that are left; each must verify.
func requireCheckpoints(t *testing.T, run goldenRun, disk vfs.FS) {
	store := &checkpoint.Store{Dir: out, FS: disk, Log: quiet}
	infos, err := store.List()
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
	names := []string{}
	for _, info := range infos {
		names = append(names, info.Name())
		_, err := store.Open(ctx, info.Name())
		require.NoError(t, err)
	}
	if run.Name == limitOne {
		run.Checkpoints = append(run.Checkpoints, fmt.Sprintf("checkpoint-%d", run.GlobalStep))
	}
	require.ElementsMatch(t, run.Checkpoints, names)
}
