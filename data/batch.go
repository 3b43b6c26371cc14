// SPDX-License-Identifier: Apache-2.0

// Package data turns samples into batches of tensors. Use it to give a trainer its training and evaluation
// data: put the samples into a [Slice], or implement [Dataset] for samples elsewhere; choose a [Collator], such
// as [Stack] for structs of numbers or [CausalLM] for token sequences; and join the two with [NewSource].
//
// A language model is trained on blocks of one long sequence of tokens: [JoinDocuments] makes it in memory,
// [OpenTokenFile] reads one from disk, and [TrainBlocks] and [EvalBlocks] cut it. Your own training loop reads a
// [Source] with a [Loader], which prepares batches ahead on several goroutines.
//
// A dataset that can only be read in order, such as a file larger than memory, is an [Iterable]; [NewIterableSource]
// joins it with a collator.
//
// Other packages read files: data/text (running text), data/tabular (CSV and other tables) and data/images (IDX).
// Package data/tokenizers turns text into tokens, and package samplers decides the order of the samples. Package data
// is independent of ranks, and never repeats or invents a sample to fill a batch.
package data

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names under which batches carry their tensors, as transformers spells them.
const (
	InputIDs      = "input_ids"      // token ids [B,T], int32 or int64
	AttentionMask = "attention_mask" // [B,T], 1 where a token is real, 0 where it is padding
	SegmentIDs    = "segment_ids"    // [B,T]: a token sees only tokens with its number, so that texts can share a row
	Labels        = "labels"         // the targets; a language model shifts them by one
	PositionIDs   = "position_ids"   // positions of the tokens [B,T]; without it they are 0, 1 and so on
	ShiftLabels   = "shift_labels"   // a language model's labels [B,T], shifted: at t that of the token at t+1
	Inputs        = "inputs"         // features of models that do not read tokens
	PixelValues   = "pixel_values"   // images [B,C,H,W]
)

// Batch is one micro-batch. It lives outside every memory scope, until Free.
type Batch struct {
	Tensors map[string]*tensor.Tensor
	// Count is the number of loss terms. The sum of the counts of a step's micro-batches is the divisor of its loss.
	// For a causal language model it is the number of labels, after the shift, that are not ignored. It need not be a
	// whole number: terms that have weights count as much as these are.
	Count float64
	// Size is the number of samples.
	Size int
	// Position is the place of the first sample in the training stream, counted over
	// epochs; what dropout draws depends on it.
	Position int64
	// Indices are the samples' indices in the dataset.
	Indices []int64
	// MicroBatch is the number of the batch in its optimizer step, over all ranks; −1 if it repeats another rank's
	// batch and counts nowhere.
	MicroBatch int
	// Last says that the loader has no batch after this one.
	Last bool
}

// Required returns the tensor of a name that the model requires; Tensors has nil for a missing name. It panics with the
// names that the batch has.
func (b *Batch) Required(name string) *tensor.Tensor {
	t := b.Tensors[name]
	if t == nil {
		panic(&tensor.Error{Op: "data.Batch", Msg: fmt.Sprintf("the batch has no %s: it has %s", name, b.Names())})
	}
	return t
}

// Explain adds what the batch has to do with the error of a computation on it. To the error of a nil operand, which was
// looked up by a wrong name, it adds the names of the batch's tensors. For a label or a token id that is out of range
// it returns an *IndexError. Other errors are returned unchanged.
func (b *Batch) Explain(err error) error {
	var bad *backend.IndexError
	switch {
	case errors.Is(err, tensor.ErrNilOperand):
		return fmt.Errorf("%w; the batch has %s", err, b.Names())
	case errors.As(err, &bad):
		for _, name := range slices.Sorted(maps.Keys(b.Tensors)) {
			if found := b.findIndex(name, *bad); found != nil {
				return found
			}
		}
	}
	return err
}

// Names lists the names of the batch's tensors for messages, sorted; "nothing" if it has none.
func (b *Batch) Names() string {
	if len(b.Tensors) == 0 {
		return "nothing"
	}
	return strings.Join(slices.Sorted(maps.Keys(b.Tensors)), ", ")
}

// Free frees the memory of all tensors.
func (b *Batch) Free() {
	for _, t := range b.Tensors {
		t.Free()
	}
}
