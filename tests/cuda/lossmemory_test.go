// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	backend "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	driver "github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// A device's library sums the head's gradient in pieces of rows, which bits depend on. They follow from the size of its
// memory, not from what is free of it; a run that continues elsewhere keeps them, unless they are too large there; and
// ranks whose devices differ have the same.
func TestPiecesOfTheLoss(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's
	}
	// pieces trains to a step, and saves; they are the products that write the head's gradient in a step.
	pieces := func(dir string, steps int, machines ...*null) (all [][]driver.Product) {
		a := args.Default(dir)
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.MaxSteps, a.BF16 = 16, 16*len(machines), steps, true
		a.NumReplicas, a.SaveStrategy, a.SaveSteps = len(machines), args.StrategySteps, 1
		if len(machines) > 1 {
			a.DDPBackend = args.BackendTCP // they have no NCCL
		}
		a.SkipMemoryMetrics, a.Device = true, "cpu"
		if steps > 1 {
			a.ResumeFromCheckpoint, a.GlobalTrainBatchSize = "last", 0
		}
		var devices []*tensor.Device
		for _, n := range machines {
			b, err := backend.Open(n, 0)
			require.NoError(t, err)
			b.SetGraphs(backend.Graphs{Off: true})
			devices = append(devices, joint.Device[*tensor.Device](b))
			defer func() { require.NoError(t, b.Close()) }()
		}
		list := make(data.Slice[[]int32], 16*4*len(machines))
		for i := range list {
			list[i] = make([]int32, 1024)
		}
		cfg := gpt2.DefaultConfig()
		cfg.NLayer, cfg.NEmbd, cfg.NHead = 1, 16, 1
		m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
		require.NoError(t, err)
		_, err = trainer.New(m, a, append(devicesOf(devices), trainer.WithDisplay(nil),
			trainer.WithLogger(slog.New(slog.DiscardHandler)),
			trainer.WithTrainData(data.NewSource(list, data.CausalLM(0))))...).Train()
		require.NoError(t, err)
		for _, n := range machines {
			var found []driver.Product
			for _, p := range n.products {
				if p.D.Type == driver.R32F && p.D.Cols == 50304 {
					found = append(found, p)
				}
			}
			all = append(all, found)
		}
		return all
	}
	sizes := func(products []driver.Product) (rows []int) {
		for _, p := range products {
			rows = append(rows, p.A.Cols)
		}
		return rows
	}
	dir := t.TempDir()
	large := pieces(dir, 1, &null{})[0]
	require.Equal(t, []int{6656, 6656, 3072}, sizes(large))
	require.Equal(t, large, pieces(t.TempDir(), 1, &null{used: 75 << 30})[0], "less is free")
	small := pieces(t.TempDir(), 1, &null{memory: 40 << 30})[0]
	require.Equal(t, []int{3328, 3328, 3328, 3328, 3072}, sizes(small))

	require.Equal(t, large, pieces(dir, 2, &null{memory: 40 << 30})[0], "goes on with less memory")
	require.Equal(t, large, pieces(dir, 3, &null{memory: 141 << 30})[0], "and then with more")
	require.Len(t, pieces(dir, 4, &null{memory: 16 << 30})[0], 13, "they are too large there")

	for _, rank := range pieces(t.TempDir(), 1, &null{}, &null{memory: 40 << 30}) {
		require.Equal(t, small, rank)
	}
}
