// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/data/text"
)

// texts are texts with their labels.
type texts struct {
	name          string
	texts, labels []string
}

// readTexts reads what the settings name. Without a model to train, train is empty.
func readTexts(d *DataArguments, seed uint64, training bool) (train, eval *texts, err error) {
	switch {
	case d.TrainFile == "" && d.ValidationFile == "":
		root, err := text.GoRoot()
		if err != nil {
			return nil, nil, fmt.Errorf("%w; want --train_file, a table of texts with labels", err)
		}
		return goComments(root)
	case d.TrainFile == "" && training:
		return nil, nil, fmt.Errorf("there is validation_file %s and nothing to train on: "+
			"want --train_file, or --do_eval with --model_name_or_path", d.ValidationFile)
	}
	train, eval = &texts{}, &texts{}
	if d.TrainFile != "" && (training || d.ValidationFile == "") {
		if train, err = readTable(d.TrainFile, d); err != nil {
			return nil, nil, err
		}
	}
	if d.ValidationFile != "" {
		eval, err = readTable(d.ValidationFile, d)
		return train, eval, err
	}
	return train.split(d.ValidationSplitPercentage, seed)
}

func readTable(path string, d *DataArguments) (*texts, error) {
	t, err := tabular.Read(path)
	if err != nil {
		return nil, err
	}
	label, err := t.Column(d.LabelColumn)
	if err != nil {
		return nil, fmt.Errorf("%w (--label_column)", err)
	}
	column := 0
	if label == 0 {
		column = 1
	}
	if d.TextColumn != "" {
		if column, err = t.Column(d.TextColumn); err != nil {
			return nil, fmt.Errorf("%w (--text_column)", err)
		}
	}
	if column >= len(t.Columns) {
		return nil, fmt.Errorf("%s has no column beside %q, want one of texts", path, d.LabelColumn)
	}
	out := &texts{name: fmt.Sprintf("%s, column %s", path, t.Columns[column])}
	for i, row := range t.Rows {
		if row[label] == "" {
			return nil, fmt.Errorf("%s: line %d has no %s", path, t.Lines[i], d.LabelColumn)
		}
		out.texts, out.labels = append(out.texts, row[column]), append(out.labels, row[label])
	}
	return out, nil
}

// split holds a part of the texts out, from all over the file.
func (t *texts) split(percent int, seed uint64) (train, eval *texts, err error) {
	n := len(t.texts) * percent / 100
	if n == 0 || n == len(t.texts) {
		return nil, nil, fmt.Errorf("%s: %d %% of %d texts are %d, want some to learn and some to evaluate on: "+
			"give a validation_file or another validation_split_percentage",
			t.name, percent, len(t.texts), n)
	}
	train, eval = &texts{name: t.name}, &texts{name: t.name}
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
