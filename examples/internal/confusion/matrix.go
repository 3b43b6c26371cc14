// SPDX-License-Identifier: Apache-2.0

// Package confusion is the metric of the classification examples: a confusion matrix, and from it accuracy, F1 and a
// table of classes. It is no example itself.
package confusion

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Matrix counts the samples of an evaluation by their class and the class whose logit is the largest, over any number
// of ranks. Its metrics are accuracy and f1, the unweighted mean over the classes (macro F1).
type Matrix struct {
	Names  []string
	counts []int64 // [class, guess]
}

// New makes a Matrix for classes of the given names.
func New(names []string) *Matrix {
	return &Matrix{Names: names, counts: make([]int64, len(names)*len(names))}
}

// Reset begins an evaluation.
func (m *Matrix) Reset() { clear(m.counts) }

// Update takes in a batch. Labels that are tensor.IgnoreIndex do not count.
func (m *Matrix) Update(c *nn.Ctx, out models.Output, b *data.Batch) error {
	guesses := tensor.ToSlice[int64](c.Ctx, tensor.ArgMax(c.Ctx, out.Logits, 1, false))
	for i, label := range tensor.ToSlice[int64](c.Ctx, b.Required(data.Labels)) {
		if label != tensor.IgnoreIndex {
			m.counts[int(label)*len(m.Names)+int(guesses[i])]++
		}
	}
	return nil
}

// Compute returns accuracy and macro F1.
func (m *Matrix) Compute(trainer.EvalLoss) map[string]float64 {
	var right, all, f1 float64
	for i := range m.Names {
		s := m.class(i)
		right, all, f1 = right+s.right, all+s.labels, f1+s.f1()
	}
	return map[string]float64{"accuracy": right / max(all, 1), "f1": f1 / float64(max(len(m.Names), 1))}
}

// ForRank makes the metric of another rank.
func (m *Matrix) ForRank() trainer.Metric { return New(m.Names) }

// ExportPart returns the counts.
func (m *Matrix) ExportPart() ([]byte, error) {
	var part []byte
	for _, n := range m.counts {
		part = binary.LittleEndian.AppendUint64(part, uint64(n))
	}
	return part, nil
}

// MergeParts adds the counts of all ranks.
func (m *Matrix) MergeParts(parts [][]byte) error {
	m.Reset()
	for rank, p := range parts {
		if len(p) != 8*len(m.counts) {
			return fmt.Errorf("rank %d sent %d bytes: want %d counts", rank, len(p), len(m.counts))
		}
		for i := range m.counts {
			m.counts[i] += int64(binary.LittleEndian.Uint64(p[8*i:]))
		}
	}
	return nil
}

// score is how one class came off.
type score struct{ right, labels, guesses float64 }

func (s score) precision() float64 { return s.right / max(s.guesses, 1) }
func (s score) recall() float64    { return s.right / max(s.labels, 1) }
func (s score) f1() float64        { return 2 * s.right / max(s.labels+s.guesses, 1) }

func (m *Matrix) class(i int) (s score) {
	n := len(m.Names)
	for j := range n {
		s.labels += float64(m.counts[i*n+j])
		s.guesses += float64(m.counts[j*n+i])
	}
	s.right = float64(m.counts[i*n+i])
	return s
}

// WriteTable prints a line for each class, and the confusions that are most frequent.
func (m *Matrix) WriteTable(w io.Writer, confusions int) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "class\tprecision\trecall\tF1\tsamples")
	for i, name := range m.Names {
		s := m.class(i)
		fmt.Fprintf(t, "%s\t%.3f\t%.3f\t%.3f\t%.0f\n", name, s.precision(), s.recall(), s.f1(), s.labels)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	type pair struct {
		class, guess int
		n            int64
	}
	var pairs []pair
	for i, n := range m.counts {
		if p := (pair{i / len(m.Names), i % len(m.Names), n}); n > 0 && p.class != p.guess {
			pairs = append(pairs, p)
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(b.n, a.n) })
	for i, p := range pairs[:min(confusions, len(pairs))] {
		if i == 0 {
			fmt.Fprintln(w, "most frequent mistakes:")
		}
		if _, err := fmt.Fprintf(w, "  %s taken for %s: %d of %.0f\n", m.Names[p.class], m.Names[p.guess], p.n,
			m.class(p.class).labels); err != nil {
			return err
		}
	}
	return nil
}
