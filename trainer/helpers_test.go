// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// quiet is a logger for runs whose messages nobody reads.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// out is the output folder of runs on a file system in memory.
const out = "out"

var ctx = context.Background()

// point is a sample of the line y = 2x + 3.
type point struct {
	Inputs [1]float32
	Labels float32
}

// points are n samples of y = 2x + 3 + noise(0.1), the field's regression fixture.
func points(n int) data.Slice[point] {
	normal := rand.New(rand.NewPCG(7, 1))
	list := make(data.Slice[point], n)
	for i := range list {
		x := normal.NormFloat64()
		list[i] = point{[1]float32{float32(x)}, float32(2*x + 3 + 0.1*normal.NormFloat64())}
	}
	return list
}

func source(list data.Slice[point]) data.Source { return data.NewSource(list, data.Stack[point]) }

// newMLP is a multilayer perceptron of the given widths; [1, 1] is a line.
func newMLP(t testing.TB, sizes ...int) *mlp.Model {
	m, err := mlp.New(nn.NewInit(tensor.CPU(), 1), mlp.Config{Sizes: sizes, Activation: "tanh"})
	require.NoError(t, err)
	return m
}

// text is a sample of a language model.
type text struct{ InputIDs, Labels []int32 }

const vocabulary = 13

// texts are n random sequences of 6 tokens.
func texts(n int) data.Source { return data.NewSource(equalTexts(n), data.Stack[text]) }

// equalTexts are the samples of texts.
func equalTexts(n int) data.Slice[text] {
	r := rand.New(rand.NewPCG(8, 1))
	list := make(data.Slice[text], n)
	for i := range list {
		ids := make([]int32, 6)
		for j := range ids {
			ids[j] = r.Int32N(vocabulary)
		}
		list[i] = text{ids, ids}
	}
	return list
}

// newGPT2 is a GPT-2 of two tiny layers with the given dropout.
func newGPT2(t testing.TB, dropout float64) *gpt2.Model { return newGPT2As(t, dropout, tensor.Float32) }

// newGPT2As is newGPT2 with parameters of a dtype.
func newGPT2As(t testing.TB, dropout float64, dt tensor.DType) *gpt2.Model {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, 8, 8, 2, 2
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = dropout, dropout, dropout
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1).As(dt), cfg)
	require.NoError(t, err)
	return m
}

// lineArgs are 24 steps on 64 points: batch 8, 3 epochs.
func lineArgs(set ...func(*args.TrainingArguments)) *args.TrainingArguments {
	a := args.Default(out)
	a.LearningRate = 0.3
	a.LoggingSteps = 4
	a.SaveStrategy = args.StrategyNo
	for _, f := range set {
		f(a)
	}
	return a
}

// newTrainer is a trainer that shows nothing and keeps its checkpoints on fsys.
func newTrainer(fsys vfs.FS, m models.Model, a *args.TrainingArguments, opts ...trainer.Option) *trainer.Trainer {
	silent := []trainer.Option{trainer.WithDisplay(nil), trainer.WithLogger(quiet), trainer.WithFileSystem(fsys)}
	return trainer.New(m, a, append(silent, opts...)...)
}

// weights are the bits of all parameters by name.
func weights(m models.Model) map[string][]byte {
	bits := map[string][]byte{}
	for _, p := range nn.NamedParameters(m) {
		bits[p.Name] = tensor.ReadBytes(tensor.NewCtx(p.Device()).NoGrad(), p.Tensor)
	}
	return bits
}

// exactParts are the parts of a checkpoint that two equal runs must share byte for byte.
var exactParts = []string{"model.safetensors", "optimizer.safetensors", "optimizer.json", "scheduler.json",
	"rng_state.json", "sampler.json"}

// contents is all that a checkpoint says of the run, apart from times and memory.
func contents(t *testing.T, fsys vfs.FS, step int64) map[string]any {
	t.Helper()
	ck, err := (&checkpoint.Store{Dir: out, FS: fsys, Log: quiet}).Open(ctx, fmt.Sprintf("checkpoint-%d", step))
	require.NoError(t, err)
	all := map[string]any{}
	for _, name := range exactParts {
		text, err := ck.ReadPart(name)
		require.NoError(t, err)
		all[name] = string(text)
	}
	var progress map[string]any
	require.NoError(t, ck.ReadJSON("progress.json", &progress))
	delete(progress, "train_seconds")
	all["progress.json"] = progress
	text, err := ck.ReadPart("trainer_state.json")
	require.NoError(t, err)
	all["trainer_state.json"] = timeless(t, text)
	return all
}

// timeless is a trainer state without what differs between equal runs.
func timeless(t *testing.T, text []byte) *callbacks.State {
	s, err := callbacks.StateFromJSON(text)
	require.NoError(t, err)
	s.LogHistory = steady(s.LogHistory)
	return s
}

// steady are log records without times and memory, their numbers float64.
func steady(history []callbacks.Record) []callbacks.Record {
	var list []callbacks.Record
	for _, rec := range history {
		rec = maps.Clone(rec)
		maps.DeleteFunc(rec, func(key string, _ any) bool {
			return strings.HasSuffix(key, "_runtime") || strings.HasSuffix(key, "_per_second") ||
				strings.HasPrefix(key, "memory_")
		})
		for key := range rec {
			if v, ok := rec.Number(key); ok {
				rec[key] = v
			}
		}
		list = append(list, rec)
	}
	return list
}

// every calls f at every event.
type every struct {
	f func(e *callbacks.Event) error
}

func (c *every) OnInitEnd(e *callbacks.Event) error          { return c.f(e) }
func (c *every) OnTrainBegin(e *callbacks.Event) error       { return c.f(e) }
func (c *every) OnEpochBegin(e *callbacks.Event) error       { return c.f(e) }
func (c *every) OnStepBegin(e *callbacks.Event) error        { return c.f(e) }
func (c *every) OnSubstepEnd(e *callbacks.Event) error       { return c.f(e) }
func (c *every) OnPreOptimizerStep(e *callbacks.Event) error { return c.f(e) }
func (c *every) OnOptimizerStep(e *callbacks.Event) error    { return c.f(e) }
func (c *every) OnStepEnd(e *callbacks.Event) error          { return c.f(e) }
func (c *every) OnLog(e *callbacks.Event) error              { return c.f(e) }
func (c *every) OnPredictionStep(e *callbacks.Event) error   { return c.f(e) }
func (c *every) OnEvaluate(e *callbacks.Event) error         { return c.f(e) }
func (c *every) OnSave(e *callbacks.Event) error             { return c.f(e) }
func (c *every) OnEpochEnd(e *callbacks.Event) error         { return c.f(e) }
func (c *every) OnTrainEnd(e *callbacks.Event) error         { return c.f(e) }
func (c *every) OnPredict(e *callbacks.Event) error          { return c.f(e) }

// on is a callback that calls f at every event of a kind.
func on(kind callbacks.Kind, f func(e *callbacks.Event) error) trainer.Option {
	return trainer.WithCallbacks(&every{func(e *callbacks.Event) error {
		if e.Kind == kind {
			return f(e)
		}
		return nil
	}})
}

// messages is a logger and what it has logged.
type messages struct{ syncbuffer.Buffer }

func (m *messages) logger() *slog.Logger { return slog.New(slog.NewTextHandler(m, nil)) }

// requireOneError checks that err is there, is one line that says each of the words, and
// tells no stack.
func requireOneError(t *testing.T, err error, words ...string) {
	t.Helper()
	require.Error(t, err)
	for _, w := range words {
		require.ErrorContains(t, err, w)
	}
	require.NotContains(t, err.Error(), "goroutine ")
	require.NotContains(t, err.Error(), "\n")
	require.LessOrEqual(t, strings.Count(err.Error(), "trainer: "), 1, "a prefix once: %v", err)
	require.LessOrEqual(t, strings.Count(err.Error(), "resume from "), 1, "%v", err)
}

func checkpointPath(step int64) string {
	return filepath.Join(out, fmt.Sprintf("checkpoint-%d", step))
}
