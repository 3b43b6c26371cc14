// SPDX-License-Identifier: Apache-2.0

package tensorboard_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/tensorboard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// message is a decoded protobuf message: the values of each field in order.
type message map[protowire.Number][]any

func decode(t *testing.T, b []byte) message {
	m := message{}
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		require.NoError(t, protowire.ParseError(n))
		b = b[n:]
		var v any
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			v, n = protowire.ConsumeFixed32(b)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(b)
		default:
			v, n = protowire.ConsumeBytes(b)
		}
		require.NoError(t, protowire.ParseError(n))
		m[field] = append(m[field], v)
		b = b[n:]
	}
	return m
}

// events reads an event file, checking the checksums.
func events(t *testing.T, path string) (out []message) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	masked := func(data []byte) uint32 {
		crc := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
		return crc>>15 + crc<<17 + 0xa282ead8
	}
	for len(b) > 0 {
		n := binary.LittleEndian.Uint64(b)
		require.Equal(t, masked(b[:8]), binary.LittleEndian.Uint32(b[8:]))
		data := b[12 : 12+n]
		require.Equal(t, masked(data), binary.LittleEndian.Uint32(b[12+n:]))
		out = append(out, decode(t, data))
		b = b[16+n:]
	}
	return out
}

func files(t *testing.T, dir string) []string {
	list, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	require.NoError(t, err)
	slices.Sort(list)
	return list
}

// shown returns a file's scalars and texts by tag and step.
func shown(t *testing.T, path string) (scalars map[string]map[uint64]float32, texts map[string]string) {
	scalars, texts = map[string]map[uint64]float32{}, map[string]string{}
	all := events(t, path)
	require.Equal(t, []any{[]byte("brain.Event:2")}, all[0][3])
	for _, e := range all {
		wall := math.Float64frombits(e[1][0].(uint64))
		require.InDelta(t, float64(time.Now().Unix()), wall, 600)
		if len(e[5]) == 0 {
			continue
		}
		for _, b := range decode(t, e[5][0].([]byte))[1] {
			v := decode(t, b.([]byte))
			tag := string(v[1][0].([]byte))
			if len(v[2]) > 0 {
				if scalars[tag] == nil {
					scalars[tag] = map[uint64]float32{}
				}
				scalars[tag][e[2][0].(uint64)] = math.Float32frombits(v[2][0].(uint32))
				continue
			}
			tensor := decode(t, v[8][0].([]byte))
			if strings.HasPrefix(tag, "_hparams_/") {
				require.Equal(t, []any{uint64(1)}, tensor[1], "a tensor of floats")
				require.Equal(t, []byte{0x12, 0x00}, tensor[2][0], "of shape [0]")
				continue
			}
			require.Equal(t, []any{uint64(7)}, tensor[1], "a tensor of strings")
			require.Equal(t, []byte{0x12, 0x02, 0x08, 0x01}, tensor[2][0], "of shape [1]")
			plugin := decode(t, decode(t, v[9][0].([]byte))[1][0].([]byte))
			require.Equal(t, []byte("text"), plugin[1][0])
			texts[tag] = string(tensor[8][0].([]byte))
		}
	}
	return scalars, texts
}

// plugin returns the content that the hparams plugin reads, by tag: a field of HParamsPluginData.
func plugin(t *testing.T, path string) map[string]message {
	out := map[string]message{}
	for _, e := range events(t, path) {
		if len(e[5]) == 0 {
			continue
		}
		for _, b := range decode(t, e[5][0].([]byte))[1] {
			v := decode(t, b.([]byte))
			if tag := string(v[1][0].([]byte)); strings.HasPrefix(tag, "_hparams_/") {
				data := decode(t, decode(t, v[9][0].([]byte))[1][0].([]byte))
				require.Equal(t, "hparams", string(data[1][0].([]byte)))
				out[tag] = decode(t, data[2][0].([]byte))
			}
		}
	}
	return out
}

// TestHParams decodes what TensorBoard's HPARAMS tab is made of.
func TestHParams(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tb")
	t.Setenv(tensorboard.LoggingDirVariable, dir)
	a := args.Default(t.TempDir())
	a.LearningRate, a.EvalStrategy, a.MetricForBestModel = 3e-3, args.StrategyEpoch, "accuracy"
	h := handler(t, a)
	e := &callbacks.Event{Args: a, State: &callbacks.State{}, Control: &callbacks.Control{}}
	for _, end := range []func(){
		func() { require.NoError(t, h.Fire(callbacks.TrainEnd, e)) },
		func() {
			e.Control.StopReason.Kind = callbacks.StopInterrupted
			require.NoError(t, h.Fire(callbacks.TrainEnd, e))
		},
		func() { require.NoError(t, h.Close()) },
	} {
		require.NoError(t, h.Fire(callbacks.TrainBegin, e))
		end()
	}
	list := files(t, dir)
	require.Len(t, list, 3)
	for i, status := range []uint64{1, 2, 2} {
		end := decode(t, plugin(t, list[i])["_hparams_/session_end_info"][4][0].([]byte))
		require.Equal(t, []any{status}, end[1])
	}
	got := plugin(t, list[0])
	experiment, start := decode(t, got["_hparams_/experiment"][2][0].([]byte)),
		decode(t, got["_hparams_/session_start_info"][3][0].([]byte))
	var names, metrics, differ []string
	types := map[string]any{}
	for _, b := range experiment[4] {
		info := decode(t, b.([]byte))
		names = append(names, string(info[1][0].([]byte)))
		types[names[len(names)-1]] = info[4][0]
		if info[7][0].(uint64) == 1 {
			differ = append(differ, names[len(names)-1])
		}
	}
	for _, b := range experiment[5] {
		metrics = append(metrics, string(decode(t, decode(t, b.([]byte))[1][0].([]byte))[2][0].([]byte)))
	}
	require.Equal(t, []string{"train/loss", "eval/loss", "eval/accuracy", "train/train_loss", "train/train_runtime"},
		metrics)
	require.Equal(t, []string{"eval_strategy", "learning_rate", "metric_for_best_model", "report_to"}, differ,
		"what is set")
	values := map[string]message{}
	for _, b := range start[1] {
		entry := decode(t, b.([]byte))
		values[string(entry[1][0].([]byte))] = decode(t, entry[2][0].([]byte))
	}
	require.Len(t, values, len(names))
	require.Greater(t, len(values), 50)
	for name, want := range map[string]message{
		"learning_rate": {2: {math.Float64bits(3e-3)}}, "eval_on_start": {4: {uint64(0)}},
		"eval_strategy": {3: {[]byte("epoch")}}, "save_total_limit": {3: {[]byte("none")}},
		"report_to": {3: {[]byte(`["tensorboard"]`)}},
	} {
		require.Equal(t, want, values[name], name)
	}
	require.Equal(t, []any{uint64(3), uint64(2), uint64(1)},
		[]any{types["learning_rate"], types["eval_on_start"], types["report_to"]})
	require.Equal(t, a.OutputDir, string(start[2][0].([]byte)))
	require.InDelta(t, float64(time.Now().Unix()), math.Float64frombits(start[5][0].(uint64)), 600)
}

type configured struct{}

func (configured) Config() any { return map[string]int{"n_layer": 2} }

// handler makes the reporter as a trainer does.
func handler(t *testing.T, a *args.TrainingArguments) *callbacks.Handler {
	a.ReportTo = []string{"tensorboard"}
	list, err := callbacks.NewReporters(a)
	require.NoError(t, err)
	return callbacks.NewHandler(slog.New(slog.DiscardHandler), 0, list...)
}

func TestRun(t *testing.T) {
	t.Setenv(tensorboard.LoggingDirVariable, "")
	a := args.Default(t.TempDir())
	h := handler(t, a)
	e := &callbacks.Event{Args: a, State: &callbacks.State{}, Control: &callbacks.Control{}, Model: configured{}}
	require.NoError(t, h.Fire(callbacks.TrainBegin, e))
	for _, r := range []callbacks.Record{
		{"loss": 2.5, "learning_rate": 3e-4, "epoch": 0.5, "step": int64(10)},
		{"eval_loss": math.NaN(), "eval_note": "short", "step": int64(10)},
		{"test_accuracy": 0.25, "train_runtime": 2.0, "memory_rss": int64(3 << 20), "train_mem_peak": 1.5 * (1 << 20)},
	} {
		e.State.GlobalStep, e.Record = e.State.GlobalStep+10, r
		require.NoError(t, h.Fire(callbacks.Log, e))
		require.NoError(t, h.Fire(callbacks.Evaluate, e))
	}
	require.NoError(t, h.Fire(callbacks.TrainEnd, e))

	dirs, err := filepath.Glob(filepath.Join(a.OutputDir, "runs", "*_*"))
	require.NoError(t, err)
	require.Len(t, dirs, 1)
	list := files(t, dirs[0])
	require.Len(t, list, 1)
	scalars, texts := shown(t, list[0])
	require.True(t, math.IsNaN(float64(scalars["eval/loss"][20])))
	delete(scalars, "eval/loss")
	require.Equal(t, map[string]map[uint64]float32{
		"train/loss": {10: 2.5}, "train/learning_rate": {10: 3e-4}, "train/epoch": {10: 0.5},
		"test/accuracy": {30: 0.25}, "train/train_runtime": {30: 2},
		"memory/rss_mib": {30: 3}, "memory/train_peak_mib": {30: 1.5},
	}, scalars)
	arguments, err := a.JSON()
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"args/text_summary":         "```json\n" + string(bytes.TrimSuffix(arguments, []byte("\n"))) + "\n```",
		"model_config/text_summary": "```json\n{\n  \"n_layer\": 2\n}\n```",
		"eval/note/text_summary":    "short",
	}, texts)
}

func TestLoggingDirAndSeveralFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tb")
	t.Setenv(tensorboard.LoggingDirVariable, dir)
	a := args.Default(t.TempDir())
	h := handler(t, a)
	e := &callbacks.Event{Args: a, State: &callbacks.State{GlobalStep: 3}, Control: &callbacks.Control{},
		Record: callbacks.Record{"eval_loss": 1.0}}
	for range 2 { // evaluations without training
		require.NoError(t, h.Fire(callbacks.Log, e))
		require.NoError(t, h.Fire(callbacks.Evaluate, e))
	}
	list := files(t, dir)
	require.Len(t, list, 2)
	for _, path := range list {
		scalars, _ := shown(t, path)
		require.Equal(t, map[string]map[uint64]float32{"eval/loss": {3: 1}}, scalars)
	}
	require.NoError(t, h.Fire(callbacks.TrainBegin, e)) // a run that breaks off
	require.NoError(t, h.Close())
	require.Len(t, files(t, dir), 3)
}

// A run whose events cannot be written continues, and the failure is told.
func TestUnwritable(t *testing.T) {
	var told bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&told, nil)))
	defer slog.SetDefault(old)
	taken := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(taken, nil, 0o666))
	t.Setenv(tensorboard.LoggingDirVariable, filepath.Join(taken, "runs"))
	a := args.Default(t.TempDir())
	h := handler(t, a)
	e := &callbacks.Event{Args: a, State: &callbacks.State{}, Control: &callbacks.Control{},
		Record: callbacks.Record{"loss": 1.0}}
	require.NoError(t, h.Fire(callbacks.TrainBegin, e))
	require.NoError(t, h.Fire(callbacks.Log, e))
	require.NoError(t, h.Fire(callbacks.TrainEnd, e))
	require.Contains(t, told.String(), "reporter=tensorboard failed=4 dropped=0")
}

func TestFlushMakesEventsReadable(t *testing.T) {
	w, err := tensorboard.NewWriter(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, w.AddScalars(time.Now(), 7, []string{"a", "b"}, []float64{1, 2}))
	require.Empty(t, events(t, w.Path()))
	require.NoError(t, w.Flush())
	require.Len(t, events(t, w.Path()), 2)
	require.NoError(t, w.Close())
	require.NoError(t, w.AddText(time.Now(), 8, "late", "text"), "buffered")
	require.ErrorContains(t, w.Flush(), "tensorboard: writing "+w.Path())
	_, err = tensorboard.NewWriter(filepath.Join(w.Path(), "below-a-file"))
	require.ErrorContains(t, err, "tensorboard: ")
}
