// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"strconv"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
)

// ID2Label names the classes of a classifier in its config.json, "0" and so on.
type ID2Label map[string]string

// Labels numbers the names of classes.
func Labels(names ...string) ID2Label {
	m := make(ID2Label, len(names))
	for i, name := range names {
		m[strconv.Itoa(i)] = name
	}
	return m
}

// maxLabels bounds the classes that a number alone may stand for.
const maxLabels = 1 << 20

// ParseID2Label reads the classes of a config.json. num_labels stands for names that are missing; without it there are
// two, as in transformers. A head that is no classifier of one class per sample is an error.
func ParseID2Label(config []byte) (ID2Label, error) {
	n := 2
	cfg := struct {
		ID2Label    ID2Label `json:"id2label"`
		NumLabels   *int     `json:"num_labels"`
		ProblemType *string  `json:"problem_type"`
	}{NumLabels: &n}
	if err := jsonfile.Unmarshal(config, &cfg); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	if cfg.ID2Label == nil {
		if n < 0 || n > maxLabels {
			return nil, fmt.Errorf("config.json: num_labels = %d: want at most %d", n, maxLabels)
		}
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("LABEL_%d", i)
		}
		cfg.ID2Label = Labels(names...)
	}
	scores := len(cfg.ID2Label) == 1 && cfg.ProblemType != nil && *cfg.ProblemType == "regression"
	if p := cfg.ProblemType; p != nil && *p != "single_label_classification" && !scores {
		return nil, fmt.Errorf("config.json: problem_type = %q is not supported: want single_label_classification", *p)
	}
	return cfg.ID2Label, nil
}

// Names are the names of the classes, in the order of the logits.
func (m ID2Label) Names() []string {
	names := make([]string, len(m))
	for i := range names {
		names[i] = m[strconv.Itoa(i)]
	}
	return names
}

// Label2ID are the numbers of the classes by their names, as config.json has them too.
func (m ID2Label) Label2ID() map[string]int {
	ids := make(map[string]int, len(m))
	for i, name := range m.Names() {
		ids[name] = i
	}
	return ids
}

// Check adds what is wrong to the faults of a configuration of a classifier that has at least so many classes. One
// class is a score: what a reward model gives.
func (m ID2Label) Check(f *Faults, least int) {
	f.Want(len(m) >= least, "id2label names %d classes: want at least %d", len(m), least)
	for i := range len(m) {
		_, ok := m[strconv.Itoa(i)]
		f.Want(ok, "id2label has no %q: want the classes numbered from 0", strconv.Itoa(i))
	}
}
