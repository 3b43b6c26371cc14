// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Classification counts how often each class was predicted for each label.
type Classification struct {
	classes []int64 // that are a label or a prediction, ascending
	counts  []int64 // [label, prediction]
}

// Classify compares the classes that a model predicts with the labels. Labels that are tensor.IgnoreIndex (−100) do
// not count; it is an error if no others remain.
func Classify(labels, predictions []int64) (*Classification, error) {
	if err := sameLength(len(labels), len(predictions)); err != nil {
		return nil, err
	}
	type pair struct{ label, prediction int64 }
	counts, c := map[pair]int64{}, &Classification{}
	for i, label := range labels {
		if label != tensor.IgnoreIndex {
			counts[pair{label, predictions[i]}]++
		}
	}
	if len(counts) == 0 {
		return nil, errors.New("metrics: all labels are -100 (tensor.IgnoreIndex): want at least one other")
	}
	for p := range counts {
		c.classes = append(c.classes, p.label, p.prediction)
	}
	slices.Sort(c.classes)
	c.classes = slices.Compact(c.classes)
	c.counts = make([]int64, len(c.classes)*len(c.classes))
	for p, n := range counts {
		c.counts[c.at(p.label)*len(c.classes)+c.at(p.prediction)] = n
	}
	return c, nil
}

// at is the place of a class, or −1.
func (c *Classification) at(class int64) int {
	if i, ok := slices.BinarySearch(c.classes, class); ok {
		return i
	}
	return -1
}

// Classes lists the classes that are a label or a prediction, in ascending order.
func (c *Classification) Classes() []int64 { return slices.Clone(c.classes) }

// Count is the number of samples with a label for which a class was predicted.
func (c *Classification) Count(label, prediction int64) int64 {
	i, j := c.at(label), c.at(prediction)
	if i < 0 || j < 0 {
		return 0
	}
	return c.counts[i*len(c.classes)+j]
}

// Accuracy is the share of right predictions: scikit-learn's accuracy_score.
func (c *Classification) Accuracy() float64 {
	t := c.total()
	return float64(t.right) / float64(t.labels)
}

// Matthews is the Matthews correlation coefficient over any number of classes: scikit-learn's matthews_corrcoef. It is
// 0 if all labels, or all predictions, are of one class.
func (c *Classification) Matthews() float64 {
	var right, all, both, labels, predictions float64
	for i := range c.classes {
		t := c.tally(i)
		right, all = right+float64(t.right), all+float64(t.labels)
		both += float64(t.labels) * float64(t.predictions)
		labels += float64(t.labels) * float64(t.labels)
		predictions += float64(t.predictions) * float64(t.predictions)
	}
	variances := (all*all - labels) * (all*all - predictions)
	if variances == 0 {
		return 0
	}
	return (right*all - both) / math.Sqrt(variances)
}

// Scores are scikit-learn's precision_recall_fscore_support: of one class, or an average over the classes. A quotient
// whose denominator is 0 counts as 0.
type Scores struct {
	Precision float64 // the share of the class's predictions that are right
	Recall    float64 // the share of the class's samples that are predicted
	F1        float64 // the harmonic mean of precision and recall
	Support   int64   // samples with this label
}

// Class returns the scores of one class: of class 1 they are what scikit-learn computes with average="binary". They
// are 0 if the class is neither a label nor a prediction.
func (c *Classification) Class(class int64) Scores {
	if i := c.at(class); i >= 0 {
		return c.tally(i).scores()
	}
	return Scores{}
}

// Macro returns the unweighted means over the classes that are a label or a prediction: average="macro".
func (c *Classification) Macro() Scores { return c.mean(func(Scores) float64 { return 1 }) }

// Weighted returns the means over the classes, weighted by their support: average="weighted".
func (c *Classification) Weighted() Scores {
	return c.mean(func(s Scores) float64 { return float64(s.Support) })
}

// Micro returns the scores over the sums of all classes: average="micro". With one prediction for each sample,
// precision, recall and F1 equal the accuracy.
func (c *Classification) Micro() Scores { return c.total().scores() }

func (c *Classification) mean(weight func(Scores) float64) (mean Scores) {
	var weights float64
	for i := range c.classes {
		s := c.tally(i).scores()
		w := weight(s)
		mean.Precision, mean.Recall, mean.F1 = mean.Precision+w*s.Precision, mean.Recall+w*s.Recall, mean.F1+w*s.F1
		mean.Support, weights = mean.Support+s.Support, weights+w
	}
	mean.Precision, mean.Recall, mean.F1 = mean.Precision/weights, mean.Recall/weights, mean.F1/weights
	return mean
}

// tally counts the samples of one class, or of all.
type tally struct{ right, labels, predictions int64 }

func (t tally) scores() Scores {
	share := func(n, of int64) float64 { return float64(n) / float64(max(of, 1)) }
	return Scores{Precision: share(t.right, t.predictions), Recall: share(t.right, t.labels),
		F1: share(2*t.right, t.labels+t.predictions), Support: t.labels}
}

func (c *Classification) tally(i int) tally {
	n, t := len(c.classes), tally{}
	for j := range n {
		t.labels += c.counts[i*n+j]
		t.predictions += c.counts[j*n+i]
	}
	t.right = c.counts[i*n+i]
	return t
}

func (c *Classification) total() (all tally) {
	for i := range c.classes {
		t := c.tally(i)
		all.right, all.labels, all.predictions = all.right+t.right, all.labels+t.labels,
			all.predictions+t.predictions
	}
	return all
}
