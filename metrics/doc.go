// SPDX-License-Identifier: Apache-2.0

// Package metrics computes the usual metrics of predictions: those of classes ([Classify]: accuracy, precision,
// recall, F1, Matthews' correlation), of numbers ([MSE], [MAE], [R2], [Pearson], [Spearman]), of a language model
// ([Perplexity]) and of texts ([ExactMatch], [ChrF], [BLEU], [ROUGE]). They are plain functions of labels and
// predictions. With trainer.WithComputeMetrics they work on any number of ranks:
//
//	trainer.WithComputeMetrics(func(p trainer.EvalPrediction) (map[string]float64, error) {
//		labels, classes, err := p.Classes()
//		if err != nil {
//			return nil, err
//		}
//		c, err := metrics.Classify(labels, classes)
//		if err != nil {
//			return nil, err
//		}
//		return map[string]float64{"accuracy": c.Accuracy(), "f1": c.Macro().F1}, nil
//	})
//
// Labels, or references, come first, as in scikit-learn. The results are those of scikit-learn, SciPy,
// sacrebleu and rouge_score, whose functions are named.
package metrics

import "fmt"

// sameLength checks that there is a prediction for each label, and at least one.
func sameLength(labels, predictions int) error {
	switch {
	case labels != predictions:
		return fmt.Errorf("metrics: %d labels and %d predictions: want one prediction for each label", labels,
			predictions)
	case labels == 0:
		return fmt.Errorf("metrics: there are no labels: want at least one")
	}
	return nil
}
