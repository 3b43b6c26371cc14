// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/jsonfloat"
	"github.com/lockstep-ml/lockstep/tensor"
)

// ComputeMetricsFunc computes metrics from all predictions of an evaluation: HuggingFace's compute_metrics. The names
// in its result get the prefix of the evaluation. Only rank 0 calls it, and every rank reports its results. It is not
// called under prediction_loss_only, without labels, or if all labels are tensor.IgnoreIndex (−100) and the loss has no
// terms.
type ComputeMetricsFunc func(p EvalPrediction) (map[string]float64, error)

// EvalPrediction is the argument of a ComputeMetricsFunc.
type EvalPrediction struct {
	// Predictions are those of all ranks, each sample once, in the dataset's order. Their logits are the model's, or
	// those of WithLogitsForMetrics, and include_for_metrics adds inputs and losses. The function must not change them.
	Predictions []Prediction
	// Loss is the loss of the evaluation.
	Loss EvalLoss
}

// Classes returns each label with the class that the model predicts for it, in the order of the samples and, within a
// sample, of its labels. The class is the index of the largest logit if the logits have one dimension more than the
// labels: [classes] for a label of shape [], [tokens, classes] for labels [tokens]. The first NaN counts as the
// largest, as in NumPy. Logits of the labels' shape are classes already, computed by WithLogitsForMetrics. Labels that
// are tensor.IgnoreIndex (−100) are among them.
func (p EvalPrediction) Classes() (labels, classes []int64, err error) {
	for _, s := range p.Predictions {
		width := 1
		switch {
		case s.Labels == nil:
			return nil, nil, fmt.Errorf("trainer: sample %d has no labels", s.Index)
		case slices.Equal(s.Shape, s.LabelShape):
		case len(s.Shape) == len(s.LabelShape)+1 && slices.Equal(s.Shape[:len(s.LabelShape)], s.LabelShape) &&
			s.Shape[len(s.LabelShape)] > 1:
			width = s.Shape[len(s.LabelShape)]
		default:
			return nil, nil, fmt.Errorf("trainer: sample %d has logits of shape %v and labels of shape %v: want "+
				"logits in the shape of the labels followed by the number of classes, or classes in the shape of the "+
				"labels",
				s.Index, s.Shape, s.LabelShape)
		}
		for i, label := range s.Labels {
			class := float64(s.Logits[i*width : (i+1)*width][0])
			if width > 1 {
				class = float64(argMax(s.Logits[i*width : (i+1)*width]))
			}
			if label != math.Trunc(label) || class != math.Trunc(class) {
				return nil, nil, fmt.Errorf("trainer: sample %d has the label %v and the prediction %v: want whole "+
					"numbers of classes", s.Index, label, class)
			}
			labels, classes = append(labels, int64(label)), append(classes, int64(class))
		}
	}
	return labels, classes, nil
}

// argMax is the index of the largest element, or of the first NaN.
func argMax(list []float32) int {
	best := 0
	for i, x := range list {
		if x != x {
			return i
		}
		if x > list[best] {
			best = i
		}
	}
	return best
}

// Values returns the labels of a regression and the model's predictions, in the order of the samples. A sample has as
// many predictions as labels.
func (p EvalPrediction) Values() (labels, values []float64, err error) {
	for _, s := range p.Predictions {
		if len(s.Labels) != len(s.Logits) {
			return nil, nil, fmt.Errorf("trainer: sample %d has logits of shape %v and labels of shape %v: want as "+
				"many predictions as labels", s.Index, s.Shape, s.LabelShape)
		}
		labels = append(labels, s.Labels...)
		for _, x := range s.Logits {
			values = append(values, float64(x))
		}
	}
	return labels, values, nil
}

// computeMetrics calls the function of WithComputeMetrics on rank 0 and returns its figures on every rank.
func (t *Trainer) computeMetrics(ctx context.Context, p EvalPrediction) (map[string]float64, error) {
	if t.compute == nil || t.args.PredictionLossOnly {
		return nil, nil
	}
	labelled := slices.ContainsFunc(p.Predictions, func(s Prediction) bool {
		return slices.ContainsFunc(s.Labels, func(x float64) bool {
			return x != tensor.IgnoreIndex || p.Loss.Count > 0
		})
	})
	figures := map[string]jsonfloat.Float{}
	if labelled && t.acc.Rank() == 0 {
		var computed map[string]float64
		err := called("WithComputeMetrics", func() (err error) {
			computed, err = t.compute(p)
			return err
		})
		if err != nil {
			return nil, err
		}
		for name, x := range computed {
			figures[name] = jsonfloat.Float(x)
		}
	}
	text, err := json.Marshal(figures)
	if err != nil {
		return nil, err
	}
	parts, err := t.acc.GatherBytes(ctx, text)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(parts[0], &figures); err != nil {
		return nil, fmt.Errorf("trainer: metrics of rank 0: %w", err)
	}
	all := make(map[string]float64, len(figures))
	for name, x := range figures {
		all[name] = float64(x)
	}
	return all, nil
}
