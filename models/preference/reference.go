// SPDX-License-Identifier: Apache-2.0

package preference

import (
	"fmt"
	"sync"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Reference is the model that a trained one is compared with. It returns the model and a context in which to run it for
// the reference's log-probabilities; m is what is trained, of this rank. DPO runs it without dropout and without
// gradients.
type Reference func(c *nn.Ctx, m models.Model) (*nn.Ctx, models.Model, error)

// WithoutAdapter is the model that is trained without its adapter, which needs no more memory.
func WithoutAdapter(a *lora.Adapter) Reference {
	return func(c *nn.Ctx, m models.Model) (*nn.Ctx, models.Model, error) {
		without, err := a.Without(c)
		return without, m, err
	}
}

// WithAdapters is the model that is trained with other adapters than those that are: the frozen copy of one that is
// trained further, for example.
func WithAdapters(names ...string) Reference {
	return func(c *nn.Ctx, m models.Model) (*nn.Ctx, models.Model, error) {
		return c.WithAdapters(names...), m, nil
	}
}

// Frozen is another model, which must not be trained meanwhile: nn.Clone of the one that is, for example, from before
// its training. The ranks of a process share it, with a copy for each device.
func Frozen(reference models.Model) Reference {
	var mu sync.Mutex
	copies := map[*tensor.Device]models.Model{}
	return func(c *nn.Ctx, _ models.Model) (*nn.Ctx, models.Model, error) {
		mu.Lock()
		defer mu.Unlock()
		dev := c.Device()
		if copies[dev] == nil {
			own := reference
			if at := nn.NamedParameters(reference)[0].Device(); at != dev {
				var err error
				if own, err = nn.Clone(reference, dev); err != nil {
					return nil, nil, fmt.Errorf("preference: the reference model: %w", err)
				}
			}
			copies[dev] = own
		}
		return nn.NewCtx(c.Ctx, nil, false), copies[dev], nil
	}
}

// LogProbs is a trainer.StepFunc that computes the log-probabilities of both answers by a reference (nil: by the model
// itself), [B,2], as logits. A trainer whose Predict runs it before the training gives what batches have as
// chat.ReferenceLogProbs: the training then needs no reference.
func LogProbs(r Reference) func(*nn.Ctx, models.Model, *data.Batch) (models.Output, float64, error) {
	return func(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
		texts, err := textsOf(c, b)
		if err != nil {
			return models.Output{}, 0, err
		}
		logits, err := r.logProbs(c, m, texts)
		return models.Output{Logits: logits}, 0, err
	}
}

// logProbs are those of the texts by the reference, in the shape [B,2].
func (r Reference) logProbs(c *nn.Ctx, m models.Model, texts *data.Batch) (*tensor.Tensor, error) {
	free := c.With(c.NoGrad())
	free.Training = false
	if r != nil {
		var err error
		if free, m, err = r(free, m); err != nil {
			return nil, err
		}
	}
	out, err := free.TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
		sums, err := answersOf(c, m, texts)
		return []*tensor.Tensor{sums}, err
	})
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// textsOf is a batch with the two texts of each pair in separate rows, one after the other.
func textsOf(c *nn.Ctx, b *data.Batch) (*data.Batch, error) {
	if c.Divided() {
		return nil, fmt.Errorf("preference: the tokens of a text are divided among ranks (cp_size): an answer is a " +
			"whole, so want cp_size 1")
	}
	rows := *b
	rows.Size, rows.Count, rows.Indices = 2*b.Size, 2*b.Count, nil
	rows.Tensors = map[string]*tensor.Tensor{}
	for _, name := range []string{data.InputIDs, data.ShiftLabels, data.AttentionMask} {
		t := b.Tensors[name]
		if t == nil && name == data.AttentionMask {
			continue
		}
		if t = b.Required(name); t.Dim() != 3 || t.Size(0) != b.Size || t.Size(1) != 2 {
			return nil, fmt.Errorf("preference: %s has shape %v: want [%d 2 T], as chat.CollatePairs makes it", name,
				t.Shape(), b.Size)
		}
		rows.Tensors[name] = tensor.Reshape(c.Ctx, t, 2*b.Size, -1)
	}
	return &rows, nil
}

// answersOf are the log-probabilities of the answers of texts, in the shape [B,2].
func answersOf(c *nn.Ctx, m models.Model, texts *data.Batch) (*tensor.Tensor, error) {
	logs := m.Forward(c.WithLogProbs(), texts).LogProbs
	if logs == nil {
		return nil, fmt.Errorf("preference: %T gives no log-probabilities: want a language model that computes its "+
			"loss by models.CausalLM", m)
	}
	return tensor.Reshape(c.Ctx, tensor.Sum(c.Ctx, logs, []int{1}, false), -1, 2), nil
}
