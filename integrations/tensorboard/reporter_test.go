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

// shown gives a file's scalars and texts by tag and step.
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
			require.Equal(t, []any{uint64(7)}, tensor[1], "a tensor of strings")
			require.Equal(t, []byte{0x12, 0x02, 0x08, 0x01}, tensor[2][0], "of shape [1]")
			plugin := decode(t, decode(t, v[9][0].([]byte))[1][0].([]byte))
			require.Equal(t, []byte("text"), plugin[1][0])
			texts[tag] = string(tensor[8][0].([]byte))
		}
	}
	return scalars, texts
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
		{"test_accuracy": 0.25, "train_runtime": 2.0},
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
		"train/loss": {10: 2.5}, "train/learning_rate": {10: 3e-4}, "train/epoch": {10: 0.5}, "test/accuracy": {30: 0.25}, "train/train_runtime": {30: 2},
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
	e := &callbacks.Event{Args: a, State: &callbacks.State{GlobalStep: 3}, Control: &callbacks.Control{}, Record: callbacks.Record{"eval_loss": 1.0}}
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

// A run whose events cannot be written goes on, and the failure is told.
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
	e := &callbacks.Event{Args: a, State: &callbacks.State{}, Control: &callbacks.Control{}, Record: callbacks.Record{"loss": 1.0}}
	require.NoError(t, h.Fire(callbacks.TrainBegin, e))
	require.NoError(t, h.Fire(callbacks.Log, e))
	require.NoError(t, h.Fire(callbacks.TrainEnd, e))
	require.Contains(t, told.String(), "reporter=tensorboard failed=2 dropped=0")
}

func TestTag(t *testing.T) {
	for key, want := range map[string]string{"eval_loss": "eval/loss", "test_a_b": "test/a_b", "loss": "train/loss", "train_runtime": "train/train_runtime", "evals": "train/evals"} {
		require.Equal(t, want, tensorboard.Tag(key))
	}
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
