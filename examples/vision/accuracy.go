package main

import (
	"encoding/binary"
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// accuracy is the share of images whose largest logit is that of their class, over any
// number of ranks.
type accuracy struct{ right, all int64 }

// Reset begins an evaluation.
func (m *accuracy) Reset() { *m = accuracy{} }

// Update takes in a batch.
func (m *accuracy) Update(c *nn.Ctx, out models.Output, b *data.Batch) error {
	guesses := tensor.ToSlice[int64](c.Ctx, tensor.ArgMax(c.Ctx, out.Logits, 1, false))
	for i, label := range tensor.ToSlice[int64](c.Ctx, b.Tensors[data.Labels]) {
		if guesses[i] == label {
			m.right++
		}
		m.all++
	}
	return nil
}

// Compute returns the share.
func (m *accuracy) Compute(trainer.EvalLoss) map[string]float64 {
	return map[string]float64{"accuracy": float64(m.right) / float64(max(m.all, 1))}
}

// ForRank makes the metric of another rank.
func (m *accuracy) ForRank() trainer.Metric { return &accuracy{} }

// ExportPart returns the two counts.
func (m *accuracy) ExportPart() ([]byte, error) {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(m.right)), uint64(m.all)), nil
}

// MergeParts adds the counts of all ranks.
func (m *accuracy) MergeParts(parts [][]byte) error {
	m.Reset()
	for rank, p := range parts {
		if len(p) != 16 {
			return fmt.Errorf("rank %d sent %d bytes, want two counts", rank, len(p))
		}
		m.right += int64(binary.LittleEndian.Uint64(p))
		m.all += int64(binary.LittleEndian.Uint64(p[8:]))
	}
	return nil
}
