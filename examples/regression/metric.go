// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// fitMetric measures, over any number of ranks, the mean absolute error in units of the label and R², the share of the
// labels' variance that the model explains: 1 is perfect, 0 is what predicting the mean gives.
type fitMetric struct {
	std  float64    // of the label: what one unit of the network's output is
	sums [5]float64 // 1, y, y², (ŷ−y)² and |ŷ−y| over all samples
}

func (m *fitMetric) Reset() { m.sums = [5]float64{} }

func (m *fitMetric) Update(c *nn.Ctx, out models.Output, b *data.Batch) error {
	got := tensor.ToSlice[float32](c.Ctx, out.Logits)
	for i, want := range tensor.ToSlice[float32](c.Ctx, b.Required(data.Labels)) {
		y, d := float64(want), float64(got[i]-want)
		for j, x := range [...]float64{1, y, y * y, d * d, math.Abs(d)} {
			m.sums[j] += x
		}
	}
	return nil
}

// Compute returns the names without the prefix eval_, which the trainer adds.
func (m *fitMetric) Compute(trainer.EvalLoss) map[string]float64 {
	n, y, yy, residual, abs := m.sums[0], m.sums[1], m.sums[2], m.sums[3], m.sums[4]
	return map[string]float64{"mae": abs / n * m.std, "r2": 1 - residual/(yy-y*y/n)}
}

func (m *fitMetric) ForRank() trainer.Metric { return &fitMetric{std: m.std} }

func (m *fitMetric) ExportPart() ([]byte, error) {
	var part []byte
	for _, x := range m.sums {
		part = binary.LittleEndian.AppendUint64(part, math.Float64bits(x))
	}
	return part, nil
}

func (m *fitMetric) MergeParts(parts [][]byte) error {
	m.Reset()
	for rank, p := range parts {
		if len(p) != 8*len(m.sums) {
			return fmt.Errorf("rank %d sent %d bytes: want %d sums", rank, len(p), len(m.sums))
		}
		for j := range m.sums {
			m.sums[j] += math.Float64frombits(binary.LittleEndian.Uint64(p[8*j:]))
		}
	}
	return nil
}
