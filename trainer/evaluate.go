package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// EvalLoss is the loss of an evaluation: float64 sum and count over all batches in order.
type EvalLoss struct {
	Sum   float64
	Count int64
}

// Mean is the loss per term, whatever the batch size; NaN of nothing.
func (l EvalLoss) Mean() float64 { return l.Sum / float64(l.Count) }

// Metric computes figures over an evaluation, batch by batch, so that predictions need not
// be kept. Names in the result get the evaluation's prefix.
type Metric interface {
	// Reset begins an evaluation.
	Reset()
	// Update takes in a batch. It is not called under prediction_loss_only.
	Update(c *nn.Ctx, out models.Output, b *data.Batch) error
	// Compute returns the figures.
	Compute(loss EvalLoss) map[string]float64
}

// Evaluate runs the model over the evaluation sets and returns eval_loss, speed figures
// and metrics, which are logged too.
func (t *Trainer) Evaluate() (map[string]float64, error) {
	return t.EvaluateContext(context.Background())
}

// EvaluateContext is Evaluate until ctx ends.
func (t *Trainer) EvaluateContext(ctx context.Context) (map[string]float64, error) {
	if t.err != nil {
		return nil, t.err
	}
	if len(t.evals) == 0 {
		return nil, errors.New("trainer: there is no evaluation set: want WithEvalData")
	}
	all := map[string]float64{}
	for _, set := range t.evals {
		if set.src.Len() == 0 {
			return nil, fmt.Errorf("trainer: evaluation set %q is empty", set.name)
		}
		m, err := t.evaluateSet(ctx, set.src, set.prefix())
		if err != nil {
			return nil, err
		}
		for k, v := range m {
			all[k] = v
		}
	}
	return all, nil
}

// evaluateSet evaluates one set, logs the figures and tells the callbacks.
func (t *Trainer) evaluateSet(ctx context.Context, src data.Source, prefix string) (map[string]float64, error) {
	metrics, err := t.predictionLoop(ctx, src, prefix, nil)
	if err != nil {
		return nil, err
	}
	rec := callbacks.Record{}
	for k, v := range metrics {
		rec[k] = v
	}
	if err := t.record(rec); err != nil {
		return nil, err
	}
	e := t.event()
	e.Metrics = metrics
	return metrics, t.callbacks.Fire(callbacks.Evaluate, e)
}

// Prediction is the model's output for one sample.
type Prediction struct {
	Index  int64     // of the sample in the dataset
	Shape  []int     // of the logits of this sample
	Logits []float32 // row-major
}

// PredictionOutput is what Predict returns, samples in the dataset's order.
type PredictionOutput struct {
	Predictions []Prediction // empty under prediction_loss_only
	Metrics     map[string]float64
}

// Predict runs the model over src. If its batches have labels, the metrics have test_loss.
func (t *Trainer) Predict(src data.Source) (*PredictionOutput, error) {
	return t.PredictContext(context.Background(), src)
}

// PredictContext is Predict until ctx ends.
func (t *Trainer) PredictContext(ctx context.Context, src data.Source) (*PredictionOutput, error) {
	if t.err != nil {
		return nil, t.err
	}
	if src == nil {
		return nil, errors.New("trainer: Predict has no data: want a source")
	}
	out := &PredictionOutput{}
	var err error
	out.Metrics, err = t.predictionLoop(ctx, src, "test_", func(c *nn.Ctx, o models.Output, b *data.Batch) error {
		if t.args.PredictionLossOnly || o.Logits == nil {
			return nil
		}
		p, err := predictions(c, o.Logits, b)
		out.Predictions = append(out.Predictions, p...)
		return err
	})
	if err != nil {
		return nil, err
	}
	e := t.event()
	e.Metrics = out.Metrics
	return out, t.callbacks.Fire(callbacks.Predict, e)
}

// predictions copies the logits of a batch out, sample by sample.
func predictions(c *nn.Ctx, logits *tensor.Tensor, b *data.Batch) ([]Prediction, error) {
	if s := logits.Shape(); len(s) == 0 || s[0] != b.Size {
		return nil, fmt.Errorf("trainer: the logits have shape %v: want dim 0 to be the %d samples of the batch", s, b.Size)
	}
	flat := tensor.ToSlice[float32](c.Ctx, tensor.Cast(c.Ctx, logits, tensor.Float32))
	n := len(flat) / max(b.Size, 1)
	out := make([]Prediction, b.Size)
	for i := range out {
		out[i] = Prediction{Index: b.Indices[i], Shape: logits.Shape()[1:], Logits: flat[i*n : (i+1)*n : (i+1)*n]}
	}
	return out, nil
}

// eachFunc takes in a batch's output.
type eachFunc func(*nn.Ctx, models.Output, *data.Batch) error

// predictionLoop runs the model over src in order, every sample once, without gradients.
func (t *Trainer) predictionLoop(ctx context.Context, src data.Source, prefix string, each eachFunc) (map[string]float64, error) {
	begin := time.Now()
	batches, err := samplers.NewBatch(samplers.NewSequential(int64(src.Len())), t.args.PerDeviceEvalBatchSize, false)
	if err != nil {
		return nil, err
	}
	loader, err := data.NewLoader(ctx, t.acc.Ctx().NoGrad(), src, data.EpochOrder(batches, 0), data.LoaderOptions{
		Workers: t.args.DataloaderNumWorkers, PrefetchFactor: t.args.PrefetchBatches(),
	})
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	for _, m := range t.metrics {
		m.Reset()
	}
	var loss EvalLoss
	labelled := false
	for n := int64(1); ; n++ {
		b, err := loader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("trainer: evaluation after step %d: %w", t.state.GlobalStep, err)
		}
		has, err := t.predictionStep(b, &loss, each)
		b.Free()
		if err != nil {
			return nil, err
		}
		labelled = labelled || has
		e := t.event()
		e.Batch, e.Batches = n, batches.Len()
		if err := t.callbacks.Fire(callbacks.PredictionStep, e); err != nil {
			return nil, err
		}
	}
	return t.evalMetrics(prefix, loss, labelled, time.Since(begin), int64(src.Len()), batches.Len()), nil
}

// predictionStep runs one batch and reports whether it had a loss.
func (t *Trainer) predictionStep(b *data.Batch, loss *EvalLoss, each eachFunc) (labelled bool, err error) {
	if p := tensor.Try(func() {
		t.acc.EvalCtx().Scope(func(c *nn.Ctx) []*tensor.Tensor {
			out := t.model.Forward(c, b)
			if out.Loss != nil || t.loss != nil && (each == nil || b.Tensors[data.Labels] != nil) {
				var sum *tensor.Tensor
				var count int64
				if sum, count, err = t.lossFrom(c, out, b); err != nil {
					return nil
				}
				loss.Sum += tensor.Item(c.Ctx, sum)
				loss.Count += count
				labelled = true
			}
			if each != nil {
				if err = each(c, out, b); err != nil {
					return nil
				}
			}
			for _, m := range t.metrics {
				if t.args.PredictionLossOnly {
					break
				}
				if err = m.Update(c, out, b); err != nil {
					err = fmt.Errorf("trainer: metric %T: %w", m, err)
					return nil
				}
			}
			return nil
		})
	}); p != nil {
		return labelled, fmt.Errorf("trainer: evaluation after step %d, rank %d: %w", t.state.GlobalStep, t.acc.Rank(), p)
	}
	return labelled, err
}

// evalMetrics puts an evaluation's figures together, all with the prefix.
func (t *Trainer) evalMetrics(prefix string, loss EvalLoss, labelled bool, d time.Duration, samples, steps int64) map[string]float64 {
	out := callbacks.SpeedMetrics(strings.TrimSuffix(prefix, "_"), d, samples, steps, 0)
	if labelled {
		out[prefix+"loss"] = loss.Mean()
	}
	for _, m := range t.metrics {
		for k, v := range m.Compute(loss) {
			out[prefix+strings.TrimPrefix(k, prefix)] = v
		}
	}
	return out
}

// evaluate evaluates during training, until ctx ends, and keeps track of the best.
func (r *run) evaluate(ctx context.Context) error {
	records := len(r.state.LogHistory)
	metrics, err := r.EvaluateContext(ctx)
	switch {
	case err == nil:
		return r.watchBest(metrics)
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		r.control.ShouldEvaluate = true // a resume begins with this evaluation
		r.state.LogHistory = r.state.LogHistory[:records]
		return r.interrupt(ctx)
	}
	return err
}
