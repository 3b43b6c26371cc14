// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Cut cuts a batch of sequences into this rank's chunks, in the order of Layout.Own. Every tensor must be [B,T] like
// input_ids, with one element per token. Labels are shifted before they are cut, as the label of a chunk's last token
// is in the next chunk, and positions are added if there are none. Where T does not divide, the last chunks end with
// padding, which no real token sees and whose labels do not count.
//
// The first chunk has the Count of the batch, and the others have 0, so that the chunks of all ranks together have it.
// The tensors belong to c's scope.
func Cut(c *tensor.Ctx, b *data.Batch, l Layout) ([]*data.Batch, error) {
	c = c.NoGrad()
	whole, err := tokenTensors(c, b)
	if err != nil {
		return nil, err
	}
	length := l.Length(whole[data.InputIDs].Size(1))
	chunks := make([]*data.Batch, 0, l.PerRank())
	for _, i := range l.Own() {
		chunk := *b
		chunk.Tensors = map[string]*tensor.Tensor{}
		if i != 0 {
			chunk.Count = 0
		}
		for name, t := range whole {
			chunk.Tensors[name] = cutTokens(c, name, t, i*length, (i+1)*length)
		}
		chunks = append(chunks, &chunk)
	}
	return chunks, nil
}

// tokenTensors are the tensors of a batch with labels shifted and with positions, each [B,T].
func tokenTensors(c *tensor.Ctx, b *data.Batch) (map[string]*tensor.Tensor, error) {
	ids := b.Tensors[data.InputIDs]
	if ids == nil || ids.Dim() != 2 {
		return nil, fmt.Errorf("cp: the batch has %s: want input_ids of shape [batch, tokens], whose tokens can be "+
			"divided among ranks", b.Names())
	}
	whole := maps.Clone(b.Tensors)
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(whole)) {
		if t := whole[name]; !slices.Equal(t.Shape(), ids.Shape()) {
			faults = append(faults, fmt.Sprintf("%s of shape %v", name, t.Shape()))
		}
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("cp: cannot divide the tokens of %s: want shape %v, that of input_ids (cp_size 1 has "+
			"no such limit)", strings.Join(faults, " and "), ids.Shape())
	}
	if labels := whole[data.Labels]; labels != nil {
		if whole[data.ShiftLabels] != nil {
			return nil, fmt.Errorf("cp: the batch has %s and %s: want one of them", data.Labels, data.ShiftLabels)
		}
		delete(whole, data.Labels)
		whole[data.ShiftLabels] = nn.NextTokens(nn.NewCtx(c, nil, false), labels)
	}
	if whole[data.PositionIDs] == nil {
		count := tensor.Arange(c, tensor.Int32, 0, 1, ids.Size(1))
		whole[data.PositionIDs] = tensor.Expand(c, count, ids.Shape()...)
	}
	return whole, nil
}

// cutTokens is the part [lo, hi) of t's tokens, with padding behind the last.
func cutTokens(c *tensor.Ctx, name string, t *tensor.Tensor, lo, hi int) *tensor.Tensor {
	tokens := t.Size(1)
	part := tensor.Contiguous(c, tensor.Slice(c, t, 1, min(lo, tokens), min(hi, tokens)))
	missing := hi - lo - part.Size(1)
	if missing == 0 {
		return part
	}
	fill := 0.0 // a token, position or mask that every model accepts
	if name == data.ShiftLabels {
		fill = tensor.IgnoreIndex
	}
	return tensor.Concat(c, 1, part, tensor.Full(c, t.DType(), fill, t.Size(0), missing))
}
