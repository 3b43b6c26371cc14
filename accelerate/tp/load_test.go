// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A rank that loads a saved model reads its parts alone: it never has memory for a whole matrix that is divided. Join
// takes the parts' memory back.
func TestLoadedParts(t *testing.T) {
	dir, cfg := t.TempDir(), gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 4099, 8, 64, 2, 4
	saved, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	config, err := models.ConfigJSON(saved)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, models.ConfigFile), config, 0o600))
	require.NoError(t, models.SaveWeights(saved, filepath.Join(dir, "model.safetensors")))

	const ranks = 4
	load := func(parts bool) (peak, part int64) {
		peaks, own, prints := make([]int64, ranks), make([]int64, ranks), make([][]tp.Prints, ranks)
		require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
			dev := tensor.NewCPU(1)
			defer dev.Close()
			c := tensor.NewCtx(dev)
			m, err := models.LoadPretrained(dev, dir, models.Deferred())
			if err != nil {
				return err
			}
			if !parts {
				nn.Walk(m).EachParameter(func(_ string, p *nn.Parameter) { p.DeferPart(nil) })
			}
			plan, err := tp.ParsePlan(m.(models.TensorParallel).TPPlan())
			if err != nil {
				return err
			}
			d, err := tp.Divide(c, m, tp.Config{Group: g, Plan: plan, Parts: ranks, Compare: parts})
			if err != nil {
				return err
			}
			for _, p := range d.Tree().Parameters() {
				own[g.Rank()] += int64(p.Bytes())
			}
			peaks[g.Rank()], prints[g.Rank()] = dev.MemStats().Peak, d.Fingerprints()
			if err := d.Join(context.Background(), c); err != nil {
				return err
			}
			whole := int64(0)
			for _, p := range nn.NamedParameters(m) {
				whole += int64(p.Bytes())
			}
			require.LessOrEqual(t, dev.MemStats().InUse, whole, "the parts are gone")
			read := tensor.NewCtx(tensor.CPU())
			for i, p := range nn.NamedParameters(m) {
				want := nn.NamedParameters(saved)[i]
				require.Equal(t, tensor.ReadBytes(read, want.Tensor), tensor.ReadBytes(c, p.Tensor), p.Name)
			}
			return nil
		}))
		if parts {
			require.Empty(t, tp.Differing(prints, []int{0, 1, 2, 3}, ranks))
			prints[2][1].Own = "other"
			require.Regexp(t, `^transformer\.h\.0\.attn\.c_attn\.\w+ of ranks 1 and 2$`,
				tp.Differing(prints, []int{0, 1, 2, 3}, ranks))
		}
		return peaks[1], own[1]
	}
	peak, part := load(true)
	require.Less(t, float64(peak), 1.1*float64(part))
	whole, _ := load(false)
	require.Greater(t, float64(whole), 1.5*float64(part), "a control: each matrix is read whole, then divided")
}
