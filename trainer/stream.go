// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/samplers"
)

// WithIterableTrainData trains on data without a length, in their order: data.NewIterableSource joins a data.Iterable
// and a collator. It needs max_steps, as HuggingFace does; data that end before begin their next epoch. There is no
// sampler: train_sampling_strategy sequential and random are the same.
func WithIterableTrainData(src data.IterableSource) Option {
	return func(t *Trainer) { t.stream = src }
}

// WithIterableEvalData is WithEvalData for data without a length.
func WithIterableEvalData(src data.IterableSource) Option { return WithNamedIterableEvalData("", src) }

// WithNamedIterableEvalData is WithNamedEvalData for data without a length.
func WithNamedIterableEvalData(name string, src data.IterableSource) Option {
	return func(t *Trainer) { t.evals = append(t.evals, evalSet{name: name, stream: src}) }
}

// checked is src, whose token ids are checked where it reads them and the model has a vocabulary: kernels know neither
// the file nor the position of an id.
func (t *Trainer) checked(src data.Source) data.Source {
	if m, ok := t.model.(models.TokenReader); ok {
		return data.WithVocabulary(src, m.VocabSize())
	}
	return src
}

// checkIterable rejects what an iterable training set cannot have.
func (t *Trainer) checkIterable() error {
	switch {
	case t.stream == nil:
		return nil
	case t.train != nil:
		return errors.New("trainer: two training sets are given: want one of WithTrainData and WithIterableTrainData")
	case t.sampler != nil:
		return errors.New("trainer: WithSampler has no effect on an iterable training set, which is read in its " +
			"order: " +
			"want WithTrainData")
	case t.args.TrainSamplingStrategy == args.SamplingGroupByLength:
		return fmt.Errorf("trainer: train_sampling_strategy %s sorts samples by length, and an iterable training set "+
			"is read in its order: want another strategy, or WithTrainData", args.SamplingGroupByLength)
	case t.args.MaxSteps < 1:
		return fmt.Errorf("trainer: max_steps is %d: want at least 1, since an iterable training set has no length "+
			"to count steps from", t.args.MaxSteps)
	}
	return nil
}

// windowShape is what ranks that read one stream agree about in a window.
func windowShape(w samplers.Window) []float64 {
	last := 0.0
	if w.LastOfEpoch {
		last = 1
	}
	return []float64{float64(w.Samples), last}
}

// checkStreams makes it an error if the ranks read streams of different lengths: sums are those of windowShape over all
// ranks.
func (r *run) checkStreams(w samplers.Window, sums []float64) error {
	ranks := float64(r.acc.DataRanks().WorldSize())
	for i, own := range windowShape(w) {
		if sums[i] != own*ranks {
			return fmt.Errorf("trainer: step %d: the ranks read different numbers of samples in epoch %d of the "+
				"training data (rank %d has %d in this step): want the same data on all ranks",
				r.state.GlobalStep+1, w.Epoch, r.acc.Rank(), w.Samples)
		}
	}
	return nil
}
