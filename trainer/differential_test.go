// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// The goldens of this test are runs of transformers' Trainer with random arguments: see testdata/differential.py.

// randomFlag is what the user's callback of a random run asks for.
type randomFlag struct {
	event string
	step  int64
	flag  string
}

// UnmarshalJSON reads [event, step, flag].
func (f *randomFlag) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&f.event, &f.step, &f.flag})
}

// randomCase is a run, or a resume, with what transformers made of it.
type randomCase struct {
	Name          string         `json:"name"`
	Args          map[string]any `json:"args"`
	TrainSize     int            `json:"train_size"`
	EvalSize      int            `json:"eval_size"`
	EvalSets      int            `json:"eval_sets"`
	Ranks         int            `json:"ranks"`
	Same          bool           `json:"same"` // every training sample is the first
	Model         string         `json:"model"`
	RaggedEval    bool           `json:"ragged_eval"`
	Loss          string         `json:"loss"`
	Metric        bool           `json:"metric"`
	Flags         []randomFlag   `json:"flags"`
	EarlyStopping *struct {
		Patience  int     `json:"early_stopping_patience"`
		Threshold float64 `json:"early_stopping_threshold"`
	} `json:"early_stopping"`
	Calls  []string `json:"calls"`
	Resume *struct {
		From  int64          `json:"from"`
		Args  map[string]any `json:"args"`
		Flags []randomFlag   `json:"flags"`
	} `json:"resume"`
	outcome
}

// outcome is what came of a run.
type outcome struct {
	Error       string                     `json:"error"`
	Events      string                     `json:"events"`
	Steps       [][2]int64                 `json:"steps"`
	LogHistory  []callbacks.Record         `json:"log_history"`
	State       map[string]any             `json:"state"`
	Checkpoints map[string]savedCheckpoint `json:"checkpoints"`
	Returned    []map[string]any           `json:"returned"`
	A           float64                    `json:"a"`
	B           float64                    `json:"b"`
	Weights     []any                      `json:"weights"`

	losses []stepLoss // here, in order
}

// stepLoss is the loss terms of one optimizer step, micro-batch by micro-batch.
type stepLoss struct {
	step   int64
	sums   []float64
	counts []int
}

// savedCheckpoint is what a checkpoint holds.
type savedCheckpoint struct {
	A             float64        `json:"a"`
	B             float64        `json:"b"`
	Weights       []any          `json:"weights"`
	Records       int            `json:"records"`
	State         map[string]any `json:"state"`
	Control       map[string]any `json:"control"`
	EarlyStopping map[string]any `json:"early_stopping"`
}

type randomGoldens struct {
	Model struct{ A, B float32 } `json:"model"`
	Train columns                `json:"train"`
	Eval  columns                `json:"eval"`

	Models map[string]json.RawMessage  `json:"models"` // instead of Model, Train and Eval
	Sets   map[string][]languageSample `json:"sets"`

	Events map[string]string `json:"events"`
	Cases  []*randomCase     `json:"cases"`
}

// stateKeys are the keys of trainer_state.json that are compared.
var stateKeys = []string{"global_step", "epoch", "max_steps", "num_train_epochs", "logging_steps", "eval_steps",
	"save_steps",
	"train_batch_size", "best_metric", "best_global_step", "best_model_checkpoint"}

// flagRecorder notes every event and sets the flags that a run asks for.
type flagRecorder struct {
	recorder
	flags  []randomFlag
	mu     sync.Mutex
	losses []stepLoss // the last one is of the step under way
}

// loss is the model's own, noted. Ranks note theirs in turn.
func (r *flagRecorder) loss(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := b.Size
	if c.Training && len(r.losses) > 0 {
		s := &r.losses[len(r.losses)-1]
		s.sums, s.counts = append(s.sums, float64(tensor.ToSlice[float32](c.Ctx, out.Loss)[0])), append(s.counts, n)
	}
	return out.Loss, float64(n)
}

func (r *flagRecorder) see(e *callbacks.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	set := map[string]*bool{
		"should_training_stop": &e.Control.ShouldTrainingStop, "should_epoch_stop": &e.Control.ShouldEpochStop,
		"should_save": &e.Control.ShouldSave, "should_evaluate": &e.Control.ShouldEvaluate,
		"should_log": &e.Control.ShouldLog,
	}
	switch e.Kind {
	case callbacks.StepBegin:
		r.losses = append(r.losses, stepLoss{})
	case callbacks.StepEnd:
		s := &r.losses[len(r.losses)-1]
		if s.step = e.State.GlobalStep; s.sums == nil { // a language model
			s.sums, s.counts = []float64{e.Step.Loss}, []int{1}
		}
	}
	for _, f := range r.flags {
		if f.event == string(e.Kind) && f.step == e.State.GlobalStep {
			*set[f.flag] = true
		}
	}
	return r.note(e)
}

// absoluteError is the metric "mae".
type absoluteError struct {
	sum float64
	n   int
}

func (m *absoluteError) Reset() { *m = absoluteError{} }

func (m *absoluteError) Update(c *nn.Ctx, out models.Output, b *data.Batch) error {
	labels := tensor.ToSlice[float32](c.Ctx, b.Tensors[data.Labels])
	for i, y := range tensor.ToSlice[float32](c.Ctx, out.Logits) {
		m.sum, m.n = m.sum+math.Abs(float64(y-labels[i])), m.n+1
	}
	return nil
}

func (m *absoluteError) Compute(trainer.EvalLoss) map[string]float64 {
	return map[string]float64{"mae": m.sum / float64(m.n)}
}

// meanAbsoluteError is the metric "mae" of the predictions of all ranks.
func meanAbsoluteError(p trainer.EvalPrediction) (map[string]float64, error) {
	labels, values, err := p.Values()
	sum := 0.0
	for i, y := range values {
		sum += math.Abs(y - labels[i])
	}
	return map[string]float64{"mae": sum / float64(len(values))}, err
}

// longPoint is a sample with a length.
type longPoint struct {
	goldenPoint
	Length int `json:"length"`
}

// same are n samples that are all the first one, and of different lengths.
func (c columns) same(n int) data.Source {
	var rows data.Slice[longPoint]
	for i := range n {
		rows = append(rows, longPoint{goldenPoint{c.X[0], c.Y[0]}, i%7 + 1})
	}
	return data.NewSource(rows, func(c *tensor.Ctx, samples []longPoint) (*data.Batch, error) {
		var points []goldenPoint
		for _, s := range samples {
			points = append(points, s.goldenPoint)
		}
		return data.Stack(c, points)
	})
}

// trainer builds the trainer of a case, or of the run before a resume.
func (g *randomGoldens) trainer(c *randomCase, given map[string]any, disk vfs.FS, m models.Model, rec *flagRecorder,
	resume int64) (*trainer.Trainer, error) {
	settings := maps.Clone(given)
	settings["output_dir"] = out
	if resume > 0 {
		settings["resume_from_checkpoint"] = checkpointPath(resume)
	}
	if c.Ranks > 1 {
		settings["num_replicas"], settings["data_sharding"] = c.Ranks, string(args.ShardingHuggingFace)
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	a := args.Default(out)
	if err := args.UnmarshalJSON(text, a); err != nil {
		return nil, err
	}
	var opts []trainer.Option
	if c.Model != "" {
		opts = g.languageOptions(c)
	} else {
		opts = g.lineOptions(c, rec)
	}
	opts = append(opts, trainer.WithCallbacks(&every{rec.see}))
	if es := c.EarlyStopping; es != nil {
		opts = append(opts,
			trainer.WithCallbacks(&callbacks.EarlyStopping{Patience: es.Patience, Threshold: es.Threshold}))
	}
	tr := newTrainer(disk, m, a, opts...)
	return tr, tr.Err()
}

// lineOptions are a run's data, loss and metrics, where the model is a line.
func (g *randomGoldens) lineOptions(c *randomCase, rec *flagRecorder) []trainer.Option {
	train := g.Train.rows(0, c.TrainSize)
	if c.Same {
		train = g.Train.same(c.TrainSize)
	}
	opts := []trainer.Option{trainer.WithTrainData(train), trainer.WithLoss(rec.loss)}
	if c.EvalSets == 2 {
		half := c.EvalSize / 2
		opts = append(opts, trainer.WithNamedEvalData("first", g.Eval.rows(0, half)),
			trainer.WithNamedEvalData("second", g.Eval.rows(half, c.EvalSize)))
	} else {
		opts = append(opts, trainer.WithEvalData(g.Eval.rows(0, c.EvalSize)))
	}
	if c.Metric && c.Ranks > 1 {
		opts = append(opts, trainer.WithComputeMetrics(meanAbsoluteError))
	} else if c.Metric {
		opts = append(opts, trainer.WithMetrics(&absoluteError{}))
	}
	return opts
}

// run runs a case here.
func (g *randomGoldens) run(c *randomCase) (o outcome, err error) {
	disk, m := vfs.NewMem(), g.newModel(c)
	var from int64
	if c.Resume != nil {
		from = c.Resume.From
		before := &flagRecorder{flags: c.Resume.Flags}
		first, err := g.trainer(c, c.Resume.Args, disk, g.newModel(c), before, 0)
		if err != nil {
			return o, err
		}
		if _, err := first.Train(); err != nil {
			return o, err
		}
		for _, s := range before.losses {
			if s.step <= from {
				o.losses = append(o.losses, s)
			}
		}
	}
	rec := &flagRecorder{flags: c.Flags}
	tr, err := g.trainer(c, c.Args, disk, m, rec, from)
	if err != nil {
		return o, err
	}
	for _, call := range c.Calls {
		back, err := g.call(c, tr, call)
		if err != nil {
			return o, err
		}
		o.Returned = append(o.Returned, back)
	}
	letters := map[string]string{}
	for letter, name := range g.Events {
		letters[name] = letter
	}
	for i, name := range rec.events {
		o.Events += letters[name]
		if n := len(o.Steps); n == 0 || o.Steps[n-1][0] != rec.steps[i] {
			o.Steps = append(o.Steps, [2]int64{rec.steps[i], 0})
		}
		o.Steps[len(o.Steps)-1][1]++
	}
	o.losses = append(o.losses, rec.losses...)
	s := tr.State()
	o.LogHistory = s.LogHistory
	if o.State, err = stateMap(s); err != nil {
		return o, err
	}
	o.A, o.B, o.Weights = readModel(m)
	o.Checkpoints, err = g.readCheckpoints(c, disk)
	return o, err
}

// newModel is a model as it is before a run.
func (g *randomGoldens) newModel(c *randomCase) models.Model {
	if c.Model != "" {
		return g.newLanguageModel(c.Model)
	}
	return newLine(g.Model.A, g.Model.B)
}

// readModel gives the parameters of a line, or figures of those of a language model.
func readModel(m models.Model) (a, b float64, figures []any) {
	if l, ok := m.(*line); ok {
		a, b = l.read()
		return a, b, nil
	}
	return 0, 0, weightFigures(m)
}

func (g *randomGoldens) call(c *randomCase, tr *trainer.Trainer, name string) (map[string]any, error) {
	switch name {
	case "train":
		res, err := tr.Train()
		if err != nil {
			return nil, err
		}
		return map[string]any{"global_step": float64(res.GlobalStep), "training_loss": res.TrainingLoss}, nil
	case "evaluate":
		m, err := tr.Evaluate()
		return map[string]any{"metrics": anyMap(m)}, err
	}
	if c.Model != "" {
		return g.predictLanguage(tr)
	}
	p, err := tr.Predict(g.Eval.rows(0, 11))
	if err != nil {
		return nil, err
	}
	var rows []any
	for _, one := range p.Predictions {
		rows = append(rows, float64(one.Logits[0]))
	}
	var labels []any
	for _, one := range p.Predictions {
		labels = append(labels, one.Labels[0])
	}
	back := map[string]any{"metrics": anyMap(p.Metrics), "predictions": nil, "labels": nil}
	if rows != nil {
		back["predictions"], back["labels"] = rows, labels
	}
	return back, nil
}

func anyMap(m map[string]float64) map[string]any {
	all := map[string]any{}
	for k, v := range m {
		all[k] = v
	}
	return all
}

// stateMap is the part of a state that is compared, as JSON has it.
func stateMap(s *callbacks.State) (map[string]any, error) {
	text, err := s.JSON()
	if err != nil {
		return nil, err
	}
	all, part := map[string]any{}, map[string]any{}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	for _, key := range stateKeys {
		part[key] = all[key]
	}
	if n := all["num_input_tokens_seen"]; n != 0.0 {
		part["num_input_tokens_seen"] = n
	}
	if best, ok := part["best_model_checkpoint"].(string); ok {
		part["best_model_checkpoint"] = filepath.Base(best)
	}
	return part, nil
}

// read gives the parameters as float64.
func (m *line) read() (a, b float64) {
	c := tensor.NewCtx(tensor.CPU())
	return float64(tensor.ToSlice[float32](c, m.A.Tensor)[0]), float64(tensor.ToSlice[float32](c, m.B.Tensor)[0])
}

func (g *randomGoldens) readCheckpoints(c *randomCase, disk vfs.FS) (map[string]savedCheckpoint, error) {
	store := &checkpoint.Store{Dir: out, FS: disk, Log: quiet}
	infos, err := store.List()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all := map[string]savedCheckpoint{}
	for _, info := range infos {
		ck, err := store.Open(ctx, info.Name())
		if err != nil {
			return nil, err
		}
		set, err := ck.OpenTensors(models.WeightsBase)
		if err != nil {
			return nil, err
		}
		m := g.newModel(c)
		err = models.ReadWeights(set, m)
		set.Close()
		if err != nil {
			return nil, err
		}
		text, err := ck.ReadPart("trainer_state.json")
		if err != nil {
			return nil, err
		}
		s, err := callbacks.StateFromJSON(text)
		if err != nil {
			return nil, err
		}
		one := savedCheckpoint{Records: len(s.LogHistory)}
		one.A, one.B, one.Weights = readModel(m)
		if one.State, err = stateMap(s); err != nil {
			return nil, err
		}
		one.Control = s.StatefulCallbacks["TrainerControl"].(map[string]any)["args"].(map[string]any)
		one.EarlyStopping, _ = s.StatefulCallbacks["EarlyStoppingCallback"].(map[string]any)
		all[strings.TrimPrefix(info.Name(), "checkpoint-")] = one
	}
	return all, nil
}

// mismatch is a place where two outcomes differ.
type mismatch struct {
	place     string // error, events, steps, log, record, state, checkpoints, checkpoint, returned, weights
	key       string // in it
	index     int    // of a record or a call; the step of a checkpoint
	want, got any
}

func (m mismatch) String() string {
	return fmt.Sprintf("%s %d %s: want %v, got %v", m.place, m.index, m.key, m.want, m.got)
}

// differ collects mismatches.
type differ struct {
	list      []mismatch
	tolerance func(key string) float64
}

func (d *differ) add(place string, index int, key string, want, got any) {
	d.list = append(d.list, mismatch{place, key, index, want, got})
}

// value compares numbers, texts, lists and maps.
func (d *differ) value(place string, index int, key string, want, got any) {
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		for k, v := range w {
			other, ok := g[k]
			if !ok {
				other = "nothing"
			}
			d.value(place, index, strings.TrimPrefix(key+"."+k, "."), v, other)
		}
		for k, v := range g {
			if _, ok := w[k]; !ok {
				d.add(place, index, strings.TrimPrefix(key+"."+k, "."), "nothing", v)
			}
		}
		return
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			d.add(place, index, key, want, got)
			return
		}
		for i := range w {
			d.value(place, index, key, w[i], g[i])
		}
		return
	}
	w, okW := toFloat(want)
	g, okG := toFloat(got)
	switch {
	case okW && okG:
		timed := strings.HasSuffix(key, "_runtime") || strings.HasSuffix(key, "_per_second")
		if !timed && math.Abs(w-g) > d.tolerance(key)*(1+math.Abs(w)) {
			d.add(place, index, key, want, got)
		}
	case want != got:
		d.add(place, index, key, want, got)
	}
}

func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	case int:
		return float64(v), true
	}
	return 0, false
}

// kinds are the records by step and what they tell of, in their order.
func kinds(history []callbacks.Record) []string {
	var list []string
	for _, rec := range history {
		kind := "loss"
		for key := range rec {
			if rec["loss"] != nil { // which has train_runtime under include_num_input_tokens_seen
				break
			}
			if name, ok := strings.CutSuffix(key, "_runtime"); ok {
				kind = name
			}
		}
		step, _ := rec.Number("step")
		list = append(list, fmt.Sprintf("%s@%g", kind, step))
	}
	return list
}

// tolerance is that of a run's numbers, relative to 1 + |number|. Language models have sums whose order is not
// PyTorch's, the figures of weights sum over all of them, and Adafactor divides by roots of small means.
func (c *randomCase) tolerance(key string) float64 {
	switch {
	case c.Model == "":
		return 5e-5
	case c.half() && key == "figures":
		return 5e-2
	case c.half():
		return 3e-2
	case c.Args["optim"] == "adafactor":
		return 1e-3
	}
	return 2e-4
}

// compare lists where the outcomes differ.
func compare(want, got outcome, tolerance func(key string) float64) []mismatch {
	d := &differ{tolerance: tolerance}
	if want.Events != got.Events {
		d.add("events", 0, "", want.Events, got.Events)
	} else if !slices.Equal(want.Steps, got.Steps) {
		d.add("steps", 0, "", want.Steps, got.Steps)
	}
	if w, g := kinds(want.LogHistory), kinds(got.LogHistory); !slices.Equal(w, g) {
		d.add("log", 0, "", w, g)
	} else {
		for i, rec := range want.LogHistory {
			d.value("record", i, "", map[string]any(rec), map[string]any(got.LogHistory[i]))
		}
	}
	d.value("state", 0, "", want.State, got.State)
	w, g := slices.Sorted(maps.Keys(want.Checkpoints)), slices.Sorted(maps.Keys(got.Checkpoints))
	if !slices.Equal(w, g) {
		d.add("checkpoints", 0, "", w, g)
	}
	for _, step := range w {
		if other, ok := got.Checkpoints[step]; ok {
			d.checkpoint(step, want.Checkpoints[step], other)
		}
	}
	for i, back := range want.Returned {
		d.value("returned", i, "", back, got.Returned[i])
	}
	d.value("weights", 0, "a", want.A, got.A)
	d.value("weights", 0, "b", want.B, got.B)
	d.value("weights", 0, "figures", want.Weights, got.Weights)
	return d.list
}

func (d *differ) checkpoint(name string, want, got savedCheckpoint) {
	step, _ := strconv.Atoi(name)
	d.value("checkpoint", step, "a", want.A, got.A)
	d.value("checkpoint", step, "b", want.B, got.B)
	d.value("checkpoint", step, "figures", want.Weights, got.Weights)
	d.value("checkpoint", step, "records", want.Records, got.Records)
	d.value("checkpoint", step, "", want.State, got.State)
	d.value("checkpoint", step, "control", want.Control, got.Control)
	d.value("checkpoint", step, "early_stopping", want.EarlyStopping, got.EarlyStopping)
}

func readRandomGoldens(t *testing.T, name string, cases int) *randomGoldens {
	f, err := os.Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	g := &randomGoldens{}
	require.NoError(t, json.NewDecoder(z).Decode(g))
	require.Len(t, g.Cases, cases)
	return g
}

// TestRandomRunsOfTransformers repeats 400 runs and 100 resumes of transformers' Trainer with random arguments, and
// compares events, records, state, checkpoints, weights and what the methods return. Where they differ, one of the
// known differences must explain it; and each of those must be found.
func TestRandomRunsOfTransformers(t *testing.T) {
	found := readRandomGoldens(t, "differential.json.gz", 500).compareAll(t)
	for _, d := range differences {
		require.True(t, found[d.row] || t.Failed() || testing.Short(),
			"no run shows the difference %q: is it still one?", d.row)
	}
}

// TestMetricSchedulesOfTransformers does so with 60 runs and 20 resumes of testdata/metric_schedules.py, whose learning
// rates follow a metric.
func TestMetricSchedulesOfTransformers(t *testing.T) {
	readRandomGoldens(t, "metric_schedules.json.gz", 80).compareAll(t)
}

// TestRandomRunsOfTransformersOnRanks does so with the 100 runs of testdata/differential_ranks.py: half of them on two
// ranks, half in bfloat16, and two in five with group_by_length.
func TestRandomRunsOfTransformersOnRanks(t *testing.T) {
	found := readRandomGoldens(t, "differential_ranks.json.gz", 100).compareAll(t)
	for _, d := range rankDifferences {
		require.True(t, found[d.row] || t.Failed() || testing.Short(),
			"no run shows the difference %q: is it still one?", d.row)
	}
}

// compareAll runs all cases and returns the rows of the differences that it found.
func (g *randomGoldens) compareAll(t *testing.T) map[string]bool {
	var mu sync.Mutex
	found := map[string]bool{}
	t.Run("cases", func(t *testing.T) {
		for i, c := range g.Cases {
			if testing.Short() && i%8 != 0 {
				continue // a short run is the race detector's
			}
			if i%2 == 1 {
				c.Args["loss_average"] = string(args.LossAverageSteps)
			}
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				got, err := g.run(c)
				var list []mismatch
				switch {
				case c.Error != "" && err != nil:
				case c.Error != "" || err != nil:
					list = []mismatch{{place: "error", want: c.Error, got: fmt.Sprint(err)}}
				default:
					list = compare(c.outcome, got, c.tolerance)
				}
				for _, m := range list {
					name := explain(c, got, m)
					if name == "" {
						t.Error(m)
					}
					mu.Lock()
					found[name] = true
					mu.Unlock()
				}
			})
		}
	})
	return found
}

// Ranks that evaluate first train as those that do not: transformers leaves them without DDP.
func TestEvaluationBeforeTrainingChangesNothing(t *testing.T) {
	trained := func(evaluate bool) map[string][]byte {
		a := rankArgs(2)
		a.MaxSteps, a.EvalStrategy = 3, args.StrategyNo
		m := newGPT2(t, 0.1)
		tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(7)))
		if evaluate {
			_, err := tr.Evaluate()
			require.NoError(t, err)
		}
		_, err := tr.Train()
		require.NoError(t, err)
		return weights(m)
	}
	require.Equal(t, trained(false), trained(true))
}
