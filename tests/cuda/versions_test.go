// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Checkpoints record what ranks compute on and exchange with. A run that continues elsewhere says so once.
func TestVersionsInCheckpoints(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, for which TestBits is enough
	}
	dir := t.TempDir()
	const old, recent = "CUDA driver 12.8, cuBLASLt 12.8.4", "CUDA driver 13.0, cuBLASLt 13.1.0"
	// train trains a step more than the last checkpoint has, and returns what the log says of other versions.
	train := func(steps, ranks int, opts ...trainer.Option) (told []string) {
		a := args.Default(dir)
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas, a.MaxSteps = 2, 4, ranks, steps
		a.SaveStrategy, a.SaveSteps, a.SkipMemoryMetrics, a.Device = args.StrategySteps, 1, true, "cpu"
		if steps > 1 {
			a.ResumeFromCheckpoint = "last"
		}
		var log syncbuffer.Buffer
		tr := trainer.New(newGPT2(t, tensor.Float32), a, append(opts, trainer.WithDisplay(nil),
			trainer.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
			trainer.WithTrainData(texts(64)))...)
		_, err := tr.Train()
		require.NoError(t, err)
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "other devices or versions") {
				require.Contains(t, line, "level=WARN")
				told = append(told, line)
			}
		}
		return told
	}
	saved := func(step string) accelerate.Environment {
		text, err := os.ReadFile(filepath.Join(dir, "checkpoint-"+step, "progress.json"))
		require.NoError(t, err)
		var p struct {
			Environment accelerate.Environment `json:"environment"`
		}
		require.NoError(t, json.Unmarshal(text, &p))
		return p.Environment
	}
	on := func(version string, ranks int) []trainer.Option {
		_, devices := machine(t, ranks, fake.Options{Version: version})
		return devicesOf(devices)
	}
	device := func(version string) string { return "fake (compute capability 9.0, " + version + ")" }

	require.Empty(t, train(1, 1, on(old, 1)...))
	require.Equal(t, accelerate.Environment{Devices: []string{device(old)}}, saved("1"))
	require.Empty(t, train(2, 1, on(old, 1)...), "the same")
	require.Empty(t, train(3, 2, on(old, 2)...), "more ranks")
	require.Equal(t, accelerate.Environment{Devices: []string{device(old)}, Exchange: "NCCL fake"}, saved("3"))
	told := train(4, 2, on(recent, 2)...)
	require.Len(t, told, 1, "other versions, told by rank 0")
	require.Contains(t, told[0], `saved="`+device(old)+`; NCCL fake"`)
	require.Contains(t, told[0], `now="`+device(recent)+`; NCCL fake"`)
	require.Empty(t, train(5, 2, on(recent, 2)...), "they are the checkpoint's now")
	told = train(6, 1)
	require.Len(t, told, 1, "another kind of device")
	require.Contains(t, told[0], `now="cpu (`)
	require.Equal(t, []string{tensor.CPU().Versions()}, saved("6").Devices)
}
