// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
)

// StepFunc computes the output of a batch in place of model.Forward, as HuggingFace's compute_loss does, which
// training_step and prediction_step call. out.Loss is the SUM of the batch's loss terms, and count their number or the
// sum of their weights: see LossFunc, whose check applies too. model is this rank's; only its parameters are trained.
// The trainer does the rest: backward, the exchange of gradients, the optimizer.
//
// Evaluation and Predict call it too, with c.Training false, and so does the check of the first batch, up to three
// times before step 1; there out.Loss may be nil, and metrics get out. A step that needs only the model's loss calls
// model.Forward(c.WithLossOnly(), b), which takes less memory.
type StepFunc func(c *nn.Ctx, model models.Model, b *data.Batch) (out models.Output, count float64, err error)

// WithStep replaces how the output and the loss of a batch are computed. It excludes WithLoss.
func WithStep(f StepFunc) Option { return func(t *Trainer) { t.stepFunc = f } }

// DataloaderFunc makes the training data of a rank in the order of its optimizer steps, as HuggingFace's
// get_train_dataloader does. acc.Windows and acc.IterableWindows are what the trainer itself uses; feed.New
// takes a loader of the program's own. The trainer limits the windows to the steps of the run and keeps their place in
// checkpoints. A resume recognizes other data by the windows' fingerprint (feed.Windows.Fingerprint): those of the
// accelerator have that of their source, and a loader has one if it is a data.Fingerprinter.
type DataloaderFunc func(ctx context.Context, acc *accelerate.Accelerator) (*feed.Windows, error)

// WithTrainDataloader sets the training data by a function, in place of WithTrainData. Without a number of
// micro-batches (feed.Windows.MicroBatches) it requires max_steps. In each step all ranks must have the same number of
// samples (samplers.Window.Samples).
func WithTrainDataloader(f DataloaderFunc) Option { return func(t *Trainer) { t.dataloader = f } }

// LogFunc gets a record before callbacks and reporters do, and before it is part of the state's log history. It may
// add, change and delete keys, as an override of HuggingFace's log does. An error ends the run.
type LogFunc func(s *callbacks.State, r callbacks.Record) error

// WithLog passes each record to f first, on every rank.
func WithLog(f LogFunc) Option { return func(t *Trainer) { t.logFunc = f } }

// checkOverrides rejects options that replace the same thing.
func (t *Trainer) checkOverrides() error {
	switch {
	case t.stepFunc != nil && t.loss != nil:
		return errors.New("trainer: WithLoss and WithStep both compute the loss: want one of WithLoss and WithStep")
	case t.args.NeftuneNoiseAlpha != nil && !embedded(t.model):
		return fmt.Errorf("trainer: neftune_noise_alpha is %g, but %T has no token embeddings (models.Embedded): "+
			"want no neftune_noise_alpha", *t.args.NeftuneNoiseAlpha, t.model)
	case t.args.LabelSmoothingFactor != 0 && (t.stepFunc != nil || t.loss != nil):
		return errors.New("trainer: label_smoothing_factor has no effect on WithLoss and WithStep: want 0, and " +
			"nn.CrossEntropyOptions in the function")
	case t.dataloader != nil && (t.train != nil || t.stream != nil):
		return errors.New("trainer: a training set and a dataloader function are given: want one of WithTrainData, " +
			"WithIterableTrainData and WithTrainDataloader")
	case t.dataloader != nil && t.sampler != nil:
		return errors.New("trainer: WithSampler has no effect on WithTrainDataloader: want the sampler inside " +
			"the function")
	case t.dataloader != nil && t.args.TrainSamplingStrategy == args.SamplingGroupByLength:
		return errors.New("trainer: train_sampling_strategy group_by_length has no effect on WithTrainDataloader: " +
			"want random, and the order in the function")
	}
	return errors.Join(t.checkGeneration(), t.checkIterable())
}

// embedded reports whether a model has embeddings of tokens.
func embedded(m models.Model) bool {
	_, ok := m.(models.Embedded)
	return ok
}

// withNoise returns a context with the noise of neftune_noise_alpha. The draws of a sample follow from its position in
// the training stream, on any rank and after a resume.
func (t *Trainer) withNoise(c *nn.Ctx, b *data.Batch) *nn.Ctx {
	key := rng.Key(t.args.Seed, "neftune", 0)
	return c.WithEmbeddingNoise(&nn.EmbeddingNoise{Of: t.model.(models.Embedded).InputEmbeddings(),
		Alpha: *t.args.NeftuneNoiseAlpha,
		Key:   func(sample int) uint64 { return rng.Derive(key, "sample", uint64(b.Position)+uint64(sample)) }})
}

// output is what the model, or the step function, makes of a batch.
func (t *Trainer) output(c *nn.Ctx, b *data.Batch) (out models.Output, count float64, err error) {
	if b.Tensors[data.SegmentIDs] == nil {
		return t.forward(c, b)
	}
	segments := &nn.Segments{}
	if out, count, err = t.forward(c.WithSegments(segments), b); err == nil && !segments.Used {
		err = fmt.Errorf("the batch has %s, so its rows hold several texts, but %T does not separate them: want a "+
			"model that computes attention with models.AttentionMask, or a batch without", data.SegmentIDs, t.model)
	}
	return out, count, err
}

func (t *Trainer) forward(c *nn.Ctx, b *data.Batch) (out models.Output, count float64, err error) {
	if t.args.NeftuneNoiseAlpha != nil && c.Training {
		c = t.withNoise(c, b)
	}
	if t.args.LabelSmoothingFactor != 0 {
		smoothing := &nn.Smoothing{Factor: t.args.LabelSmoothingFactor}
		out = t.model.Forward(c.WithLabelSmoothing(smoothing), b)
		if out.Loss != nil && !smoothing.Used {
			err = fmt.Errorf("label_smoothing_factor is %g, but the loss of %T is not a cross entropy of package nn: "+
				"want 0", smoothing.Factor, t.model)
		}
		return out, b.Count, err
	}
	if t.stepFunc != nil {
		blaming(passedTo("WithStep"), func() { out, count, err = t.stepFunc(c, t.model, b) })
		if err != nil {
			err = fmt.Errorf("%s: %w", passedTo("WithStep"), err)
		}
		return out, count, err
	}
	return t.model.Forward(c, b), b.Count, nil
}
