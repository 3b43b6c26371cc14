// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/data/text"
	"github.com/lockstep-ml/lockstep/program"
)

// texts are texts with their labels.
type texts struct {
	name          string
	column        string // of a table
	texts, labels []string
}

// readTexts reads what the settings name. Without a model to train, train is empty.
func readTexts(p *program.Process, d *DataArguments, seed uint64, training bool) (train, eval *texts, err error) {
	switch {
	case d.TrainFile == "" && d.ValidationFile == "":
		root, err := text.GoRoot()
		if err != nil {
			return nil, nil, fmt.Errorf("%w: want --train_file, a table of texts with labels", err)
		}
		return goComments(p, root)
	case d.TrainFile == "" && training:
		return nil, nil, fmt.Errorf("there is validation_file %s and nothing to train on: "+
			"want --train_file, or --do_eval with --model_name_or_path", d.ValidationFile)
	}
	train, eval = &texts{}, &texts{}
	if d.TrainFile != "" && (training || d.ValidationFile == "") {
		if train, err = readTable(d.TrainFile, d, d.TextColumn); err != nil {
			return nil, nil, err
		}
	}
	if d.ValidationFile != "" {
		eval, err = readTable(d.ValidationFile, d, cmp.Or(d.TextColumn, train.column))
		return train, eval, err
	}
	return train.split(d.ValidationSplitPercentage, seed)
}

// readTable reads texts with labels. A column of texts that is not named is chosen by the names of data sets.
func readTable(path string, d *DataArguments, column string) (*texts, error) {
	t, err := tabular.Read(path)
	if err != nil {
		return nil, err
	}
	label, err := t.Column(d.LabelColumn)
	if err != nil {
		return nil, fmt.Errorf("%w (--label_column)", err)
	}
	var at int
	if column == "" {
		at, err = t.TextColumn(d.LabelColumn)
	} else {
		at, err = t.Column(column)
	}
	if err != nil {
		return nil, fmt.Errorf("%w (--text_column)", err)
	}
	out := &texts{name: fmt.Sprintf("%s, text in column %s, classes in %s", path, t.Columns[at], d.LabelColumn),
		column: t.Columns[at]}
	for i, row := range t.Rows {
		if row[label] == "" {
			return nil, fmt.Errorf("%s: %s has no %s", path, t.Place(i), d.LabelColumn)
		}
		out.texts, out.labels = append(out.texts, row[at]), append(out.labels, row[label])
	}
	if t.Numbers(label) {
		for i, l := range out.labels {
			if f, err := strconv.ParseFloat(l, 64); err != nil || f != math.Trunc(f) {
				return nil, fmt.Errorf("%s: %s: %s is %s: numbers with fractions are scores to be predicted, a "+
					"regression, which this program does not learn: want classes in --label_column", path, t.Place(i),
					d.LabelColumn, l)
			}
		}
	}
	return out, nil
}

// split holds a part of the texts out, from all over the file.
func (t *texts) split(percent int, seed uint64) (train, eval *texts, err error) {
	n := len(t.texts) * percent / 100
	if n == 0 || n == len(t.texts) {
		return nil, nil, fmt.Errorf("%s: %d %% of %d texts are %d: want some to learn and some to evaluate on: "+
			"give a validation_file or another validation_split_percentage",
			t.name, percent, len(t.texts), n)
	}
	train, eval = &texts{name: t.name, column: t.column}, &texts{name: t.name, column: t.column}
	for i, row := range rand.New(rand.NewPCG(seed, 0)).Perm(len(t.texts)) {
		to := train
		if i < n {
			to = eval
		}
		to.texts, to.labels = append(to.texts, t.texts[row]), append(to.labels, t.labels[row])
	}
	return train, eval, nil
}

// classes are the labels that there are, sorted.
func (t *texts) classes() []string {
	sorted := slices.Sorted(slices.Values(t.labels))
	return slices.Compact(sorted)
}

// share is the share of the most frequent label: what a model that always says it has right.
func (t *texts) share(of []string) float64 {
	best := 0
	for _, class := range of {
		n := 0
		for _, l := range t.labels {
			if l == class {
				n++
			}
		}
		best = max(best, n)
	}
	return float64(best) / float64(max(len(t.labels), 1))
}
