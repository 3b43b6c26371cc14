// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/tensor"
)

// IndexError is the error of a computation on a batch with a number that the model cannot use as an index: a label
// without a class, or a token id beyond the vocabulary. See Batch.Explain.
type IndexError struct {
	Tensor string // its name in the batch, Labels for instance
	Value  int64
	Limit  int64 // 0 ≤ Value < Limit is wanted
	Sample int64 // the sample's index in the dataset
	Row    int   // the sample's row in its batch
	At     int   // the number's place among those of its sample
}

// Permanent says that a launcher need not start the run again: it would meet the same sample.
func (*IndexError) Permanent() bool { return true }

func (e *IndexError) Error() string {
	where := fmt.Sprintf("sample %d (row %d of its batch, element %d)", e.Sample, e.Row, e.At)
	if isLabels(e.Tensor) {
		return fmt.Sprintf("the label %d of %s is out of range: want 0 to %d for %d classes, or %d for no label",
			e.Value, where, e.Limit-1, e.Limit, tensor.IgnoreIndex)
	}
	return fmt.Sprintf("%s has %d in %s: want 0 to %d", e.Tensor, e.Value, where, e.Limit-1)
}

func isLabels(name string) bool { return name == Labels || name == ShiftLabels }

// findIndex looks for an index in a tensor of the batch: at the place where the op found it or, as losses may leave out
// some labels, at any place among labels.
func (b *Batch) findIndex(name string, bad backend.IndexError) *IndexError {
	t := b.Tensors[name]
	if dt := t.DType(); dt != tensor.Int32 && dt != tensor.Int64 || b.Size < 1 || t.Numel()%b.Size != 0 {
		return nil
	}
	var ids []int64
	if tensor.Try(func() {
		c := tensor.NewCtx(t.Device()).NoGrad()
		ids = tensor.ToSlice[int64](c, tensor.Cast(c, t, tensor.Int64))
	}) != nil {
		return nil
	}
	i := int(bad.Element)
	if isLabels(name) && bad.Op != backend.OpEmbedding {
		i = slices.Index(ids, bad.Index)
	}
	if i < 0 || i >= len(ids) || ids[i] != bad.Index {
		return nil
	}
	each := len(ids) / b.Size
	e := &IndexError{Tensor: name, Value: bad.Index, Limit: bad.Limit, Row: i / each, At: i % each, Sample: -1}
	if e.Row < len(b.Indices) {
		e.Sample = b.Indices[e.Row]
	}
	return e
}
