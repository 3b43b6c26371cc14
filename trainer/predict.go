// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Prediction is the model's output for one sample.
type Prediction struct {
	Index  int64     // of the sample in the dataset
	Shape  []int     // of the logits of this sample
	Logits []float32 // row-major

	// Labels are those of the sample, row-major, in the shape LabelShape: HuggingFace's label_ids. For a language model
	// they are the shifted labels, each at the place of the logits that predict it, if its batches have those
	// (data.CausalLM); labels that the model itself shifts are at the places of their tokens, whose logits predict the
	// next token. They are nil if the batch has none, or none with a row for each sample.
	Labels     []float64
	LabelShape []int

	// Inputs are what the model got of the sample, row-major, in the shape InputShape, where include_for_metrics has
	// inputs: its input_ids, or pixel_values, or inputs.
	Inputs     []float64
	InputShape []int
	// Loss is the mean loss of the batch that the sample was in, where include_for_metrics has loss and the batch has
	// one; NaN if the batch has no loss terms.
	Loss *float64

	// Under predict_with_generate there are tokens instead of logits. Prompt are those of the sample before the first
	// label that counts, all of them if it has no labels, and without padding. Generated are those that the model
	// continues it with; never nil.
	Prompt    []int
	Generated []int
}

// PredictionOutput is the result of Predict, with samples in the dataset's order.
type PredictionOutput struct {
	Predictions []Prediction // empty under prediction_loss_only
	Metrics     map[string]float64
}

// Predict runs the model over src. If its batches have labels, the predictions have them too, and the metrics include
// test_loss, unless all labels are tensor.IgnoreIndex. An empty set has neither predictions nor metrics of them, as in
// transformers, and the log has a warning. During a run Predict is an error.
func (t *Trainer) Predict(src data.Source) (*PredictionOutput, error) {
	return t.PredictContext(context.Background(), src)
}

// PredictContext is Predict with a context that can end it.
func (t *Trainer) PredictContext(ctx context.Context, src data.Source) (*PredictionOutput, error) {
	return t.predict(ctx, evalSet{src: src})
}

// PredictIterable is Predict for data without a length. The predictions are numbered in their order.
func (t *Trainer) PredictIterable(src data.IterableSource) (*PredictionOutput, error) {
	return t.PredictIterableContext(context.Background(), src)
}

// PredictIterableContext is PredictIterable with a context that can end it.
func (t *Trainer) PredictIterableContext(ctx context.Context, src data.IterableSource) (*PredictionOutput, error) {
	return t.predict(ctx, evalSet{stream: src})
}

func (t *Trainer) predict(ctx context.Context, set evalSet) (*PredictionOutput, error) {
	if t.err != nil {
		return nil, t.err
	}
	if err := t.idle("Predict", predictInstead); err != nil {
		return nil, err
	}
	if set.src == nil && set.stream == nil {
		return nil, errors.New("trainer: Predict has no data: want a source")
	}
	return onEvery(ctx, t, func(rank *Trainer) (*PredictionOutput, error) { return rank.predictRank(ctx, set) })
}

// predictRank is this rank's part of a prediction; the result is the same on every rank.
func (t *Trainer) predictRank(ctx context.Context, set evalSet) (*PredictionOutput, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	out := &PredictionOutput{}
	var err error
	out.Metrics, out.Predictions, err = t.predictionLoop(ctx, set, "test_", true)
	if err != nil {
		return nil, errors.Join(err, t.callbacks.Close())
	}
	e := t.event()
	e.Metrics = out.Metrics
	return out, t.callbacks.Fire(callbacks.Predict, e)
}

// predictions copies the logits and labels of a batch, sample by sample.
func predictions(c *nn.Ctx, logits *tensor.Tensor, b *data.Batch) ([]Prediction, error) {
	if s := logits.Shape(); len(s) == 0 || s[0] != b.Size {
		return nil, fmt.Errorf("trainer: the logits have shape %v: want dim 0 to be the %d samples of the batch", s,
			b.Size)
	}
	flat := tensor.ToSlice[float32](c.Ctx, tensor.Cast(c.Ctx, logits, tensor.Float32))
	n := len(flat) / max(b.Size, 1)
	out := labelled(c, b)
	for i := range out {
		out[i].Shape, out[i].Logits = logits.Shape()[1:], flat[i*n:(i+1)*n:(i+1)*n]
	}
	return out, nil
}

// labelled are the samples of a batch with their labels, if they have any.
func labelled(c *nn.Ctx, b *data.Batch) []Prediction {
	out := make([]Prediction, b.Size)
	for i := range out {
		out[i].Index = b.Indices[i]
	}
	if labels := labelsOf(b); labels != nil && len(labels.Shape()) > 0 && labels.Shape()[0] == b.Size {
		flat := tensor.ToSlice[float64](c.Ctx, tensor.Cast(c.Ctx, labels, tensor.Float64))
		n := len(flat) / max(b.Size, 1)
		for i := range out {
			out[i].Labels, out[i].LabelShape = flat[i*n:(i+1)*n:(i+1)*n], labels.Shape()[1:]
		}
	}
	return out
}

// include adds to predictions of a batch what include_for_metrics names.
func (t *Trainer) include(c *nn.Ctx, list []Prediction, b *data.Batch, pass *evaluation) error {
	if len(list) == 0 {
		return nil
	}
	if loss, ok := pass.lossOf(b); ok && slices.Contains(t.args.IncludeForMetrics, args.MetricLoss) {
		for i := range list {
			list[i].Loss = new(loss.Mean())
		}
	}
	if !slices.Contains(t.args.IncludeForMetrics, args.MetricInputs) {
		return nil
	}
	x := cmp.Or(b.Tensors[data.InputIDs], b.Tensors[data.PixelValues], b.Tensors[data.Inputs])
	if x == nil || len(x.Shape()) == 0 || x.Shape()[0] != b.Size {
		return fmt.Errorf("trainer: include_for_metrics inputs: the batch has %s: want %s, %s or %s with a row for "+
			"each sample", b.Names(), data.InputIDs, data.PixelValues, data.Inputs)
	}
	flat := tensor.ToSlice[float64](c.Ctx, tensor.Cast(c.Ctx, x, tensor.Float64))
	n := len(flat) / max(b.Size, 1)
	for i := range list {
		list[i].Inputs, list[i].InputShape = flat[i*n:(i+1)*n:(i+1)*n], x.Shape()[1:]
	}
	return nil
}

// labelsOf is what the batch has of labels, shift_labels for a language model; nil if it has none.
func labelsOf(b *data.Batch) *tensor.Tensor {
	return cmp.Or(b.Tensors[data.Labels], b.Tensors[data.ShiftLabels])
}

// predictionLoop runs the model over a set, every sample once, without gradients. The
// batches are distributed to the ranks in turn; the loss is added in their order. The predictions are those of all
// ranks if the caller predicts or a function computes metrics from them.
func (t *Trainer) predictionLoop(ctx context.Context, set evalSet, prefix string, predicts bool) (map[string]float64,
	[]Prediction, error) {
	begin := time.Now()
	if !predicts && set.stream == nil && set.src.Len() == 0 {
		return nil, nil, set.empty()
	}
	pass, err := t.newEvaluation(ctx, set)
	if err != nil {
		return nil, nil, err
	}
	defer pass.Close()
	pass.predicts = predicts
	for _, m := range t.activeMetrics() {
		blaming(metricOf(m), m.Reset)
	}
	if err := t.predictBatches(ctx, pass); err != nil {
		return nil, nil, err
	}
	if pass.samples == 0 {
		if !predicts {
			return nil, nil, set.empty()
		}
		if t.acc.IsMain() {
			t.log.Warn("the set to predict is empty: there are no predictions and no metrics")
		}
		return callbacks.SpeedMetrics(strings.TrimSuffix(prefix, "_"), time.Since(begin), 0, 0, 0), nil, nil
	}
	if t.generates(pass) {
		if err := t.generate(ctx, pass); err != nil {
			return nil, nil, err
		}
	}
	ctx = context.WithoutCancel(ctx)
	loss, labelled, err := pass.loss(ctx, t.acc.LossRanks())
	if err != nil {
		return nil, nil, err
	}
	if err := t.mergeMetrics(ctx); err != nil {
		return nil, nil, err
	}
	var all []Prediction
	if t.keepsPredictions(pass) {
		if all, err = t.gatherPredictions(ctx, pass.predictions); err != nil {
			return nil, nil, err
		}
	}
	figures, err := t.computeMetrics(ctx, EvalPrediction{all, loss})
	if err != nil {
		return nil, nil, err
	}
	labelled = labelled && (loss.Count > 0 || !predicts) // samples to predict may have labels that are all -100
	return t.evalMetrics(prefix, loss, labelled, figures, time.Since(begin), pass), all, nil
}

// keepsPredictions reports whether something needs the predictions of all batches.
func (t *Trainer) keepsPredictions(pass *evaluation) bool {
	return (pass.predicts || t.compute != nil) && !t.args.PredictionLossOnly
}

// predictBatches runs this rank's batches. If ctx ends on one rank, or one cannot read its data, all stop.
func (t *Trainer) predictBatches(ctx context.Context, pass *evaluation) error {
	var interrupted, unread bool
	var dataErr error
	total := pass.MicroBatches()
	for n := int64(0); ; {
		list, err := pass.take(t.acc.EvaluatesTogether())
		if err != nil && err != io.EOF { // not a source's error about the end of a file
			if interrupted = ctx.Err() != nil && errors.Is(err, context.Cause(ctx)); !interrupted {
				unread, dataErr = true, err
			}
		}
		if err := t.acc.ComputingRanks().Agree(context.WithoutCancel(ctx), &interrupted, &unread); err != nil {
			return err
		}
		ended := len(list) == 0 || interrupted || unread
		if !ended {
			err = t.predictionStep(ctx, list, pass)
		}
		for _, b := range list {
			b.Free()
		}
		switch {
		case ended:
			return t.endBatches(context.WithoutCancel(ctx), interrupted, unread, dataErr, causeOf(ctx))
		case err != nil:
			return err
		}
		for range list {
			n++
			e := t.event()
			e.Batch, e.Batches = n*int64(t.acc.DataRanks().WorldSize()), total
			if total > 0 {
				e.Batch = min(e.Batch, total)
			}
			if err := t.callbacks.Fire(callbacks.PredictionStep, e); err != nil {
				return err
			}
		}
	}
}

// endBatches is how an evaluation ended on all ranks.
func (t *Trainer) endBatches(ctx context.Context, interrupted, unread bool, dataErr, cause error) error {
	err := t.acc.Agree(ctx, &interrupted, &unread)
	switch {
	case err != nil:
		return err
	case unread:
		err = t.acc.ShareDataError(ctx, dataErr)
	case interrupted:
		err = cause
	default:
		return nil
	}
	return fmt.Errorf("trainer: evaluation after step %d: %w", t.state.GlobalStep, err)
}

// predictionStep runs batches and enters their losses, if they have any.
func (t *Trainer) predictionStep(ctx context.Context, list []*data.Batch, pass *evaluation) error {
	if t.acc.Repeats() {
		return nil
	}
	logits := (pass.predicts || t.keepsPredictions(pass)) && !t.generates(pass)
	lossOnly := !logits && t.loss == nil && t.stepFunc == nil &&
		(len(t.metrics) == 0 || t.args.PredictionLossOnly)
	if t.acc.DividesTokens() {
		return t.predictTokens(context.WithoutCancel(ctx), list, pass, lossOnly)
	}
	refused := false
	err := t.acc.Evaluate(context.WithoutCancel(ctx), list, func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
		if lossOnly {
			c = c.WithLossOnly()
		}
		out, count, err := t.output(c, b)
		switch {
		case err != nil:
			err = fmt.Errorf("trainer: evaluation: %w", err)
		case out.Hidden == nil && b.MicroBatch >= 0: // one that repeats another rank's is run for the others alone
			err = t.take(c, out, count, b, pass)
		}
		refused = err != nil
		return accelerate.Output{Hidden: out.Hidden}, err
	})
	if err != nil && !refused {
		return fmt.Errorf("trainer: evaluation after step %d, rank %d: %w", t.state.GlobalStep, t.acc.Rank(), err)
	}
	return err
}

// predictTokens is predictionStep for batches whose tokens are divided: chunks have losses, and the first of the ranks
// that share them has what a batch comes to.
func (t *Trainer) predictTokens(ctx context.Context, list []*data.Batch, pass *evaluation, lossOnly bool) error {
	err := t.acc.EvaluateTokens(ctx, list, 0, func(c *nn.Ctx, chunk *data.Batch) (o cp.Output,
		hidden []*tensor.Tensor, err error) {
		if lossOnly {
			c = c.WithLossOnly()
		}
		out, count, err := t.output(c, chunk)
		if err != nil || out.Hidden != nil {
			return o, out.Hidden, err
		}
		if !t.args.PredictionLossOnly {
			o.Logits = out.Logits
		}
		if t.hasLoss(out, chunk, pass) {
			o.Loss, o.Count, err = t.lossFrom(c, out, count, chunk)
		}
		return o, nil, err
	}, func(c *nn.Ctx, b *data.Batch, all cp.Result) error {
		if t.acc.ContextRanks().Rank() > 0 || b.MicroBatch < 0 {
			return nil
		}
		out := models.Output{Logits: all.Logits}
		if all.Labelled {
			out.Loss = tensor.Scalar(c.Ctx, tensor.Float32, all.Loss)
			pass.setLoss(b, all.Loss, all.Count)
		}
		return t.takeOutput(c, out, b, pass)
	})
	if err != nil {
		return fmt.Errorf("trainer: evaluation after step %d, rank %d: %w", t.state.GlobalStep, t.acc.Rank(), err)
	}
	return nil
}

// hasLoss reports whether an output has a loss, or the user's function computes one.
func (t *Trainer) hasLoss(out models.Output, b *data.Batch, pass *evaluation) bool {
	return out.Loss != nil || t.loss != nil && (!pass.predicts || labelsOf(b) != nil)
}

// take enters the loss of an output and its predictions, and gives it to metrics.
func (t *Trainer) take(c *nn.Ctx, out models.Output, count float64, b *data.Batch, pass *evaluation) error {
	if t.hasLoss(out, b, pass) {
		sum, count, err := t.lossFrom(c, out, count, b)
		if err != nil {
			return fmt.Errorf("trainer: evaluation: %w", err)
		}
		sums, err := t.sumsOf(out)
		if err != nil {
			return fmt.Errorf("trainer: evaluation: %w", err)
		}
		figures := make([]float64, len(sums))
		for i, s := range sums {
			figures[i] = tensor.Item(c.Ctx, s)
		}
		pass.setLoss(b, tensor.Item(c.Ctx, sum), count, figures...)
	}
	return t.takeOutput(c, out, b, pass)
}

// takeOutput enters the predictions of an output, and gives it to metrics.
func (t *Trainer) takeOutput(c *nn.Ctx, out models.Output, b *data.Batch, pass *evaluation) error {
	if t.args.PredictionLossOnly {
		return nil
	}
	if out.Logits != nil && (t.logits != nil || t.keepsPredictions(pass) || len(t.metrics) > 0) {
		out.Logits = widened(c, out.Logits)
		if t.logits != nil {
			logits := out.Logits
			blaming(passedTo("WithLogitsForMetrics"), func() { out.Logits = t.logits(c, logits, b) })
			if out.Logits == nil {
				return fmt.Errorf("trainer: %s returned no logits", passedTo("WithLogitsForMetrics"))
			}
		}
	}
	if err := t.keep(c, out, b, pass); err != nil {
		return err
	}
	for _, m := range t.metrics {
		var err error
		if blaming(metricOf(m), func() { err = m.Update(c, out, b) }); err != nil {
			return fmt.Errorf("trainer: %s: %w", metricOf(m), err)
		}
	}
	return nil
}

// widened are logits of a half type as float32: functions of a program need not know of half types.
func widened(c *nn.Ctx, logits *tensor.Tensor) *tensor.Tensor {
	if dt := logits.DType(); dt != tensor.BFloat16 && dt != tensor.Float16 {
		return logits
	}
	return tensor.Cast(c.Ctx, logits, tensor.Float32)
}

// keep copies what the pass needs of a batch and its output.
func (t *Trainer) keep(c *nn.Ctx, out models.Output, b *data.Batch, pass *evaluation) (err error) {
	var list []Prediction
	switch {
	case t.generates(pass):
		list, err = prompts(c, b)
	case t.keepsPredictions(pass) && out.Logits != nil:
		list, err = predictions(c, out.Logits, b)
	}
	if err == nil {
		err = t.include(c, list, b, pass)
	}
	pass.predictions = append(pass.predictions, list...)
	return err
}
