// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
)

// featuresFile is where a saved model's folder says how rows become inputs.
const featuresFile = "features.json"

// maxCategories is the number of values up to which a column of text is a column of categories.
const maxCategories = 100

// features says how the columns of a table become the inputs of a network. It is fitted to the training rows alone and
// saved with the model: what the model sees later must be treated alike.
type features struct {
	Columns []column `json:"columns"`
	Label   column   `json:"label"`
}

// column is a column of the table. Numbers are standardised, (x − mean)/std; of text each category has an input, 1
// where it is and 0 elsewhere.
type column struct {
	Name       string   `json:"name"`
	Mean       float64  `json:"mean,omitempty"`
	Std        float64  `json:"std,omitempty"`
	Categories []string `json:"categories,omitempty"` // nil: numbers
}

// sample is a row as the network sees it: inputs [B,n] and labels [B,1] of a batch.
type sample struct {
	Inputs []float32
	Labels [1]float32
}

// fit looks at the given rows of a table.
func fit(t *tabular.Table, rows []int, label string, ignore []string) (*features, error) {
	at, err := t.Column(label)
	if err != nil {
		return nil, err
	}
	for _, name := range ignore {
		if _, err := t.Column(name); err != nil {
			return nil, err
		}
	}
	f := &features{}
	if f.Label, err = fitColumn(t, rows, at); err != nil {
		return nil, err
	}
	if f.Label.Categories != nil {
		return nil, fmt.Errorf("column %q of %s has values that are no numbers: want a number to predict", label,
			t.Path)
	}
	for i, name := range t.Columns {
		if i == at || slices.Contains(ignore, name) {
			continue
		}
		c, err := fitColumn(t, rows, i)
		if err != nil {
			return nil, err
		}
		f.Columns = append(f.Columns, c)
	}
	if len(f.Columns) == 0 {
		return nil, fmt.Errorf("%s has no column beside %q to learn from", t.Path, label)
	}
	return f, nil
}

// fitColumn finds out whether a column holds numbers or categories.
func fitColumn(t *tabular.Table, rows []int, at int) (column, error) {
	c := column{Name: t.Columns[at]}
	var sum, square, n float64
	var categories []string
	numbers := true
	for _, r := range rows {
		text := strings.TrimSpace(t.Rows[r][at])
		if text == "" {
			continue // missing
		}
		x, err := strconv.ParseFloat(text, 64)
		numbers = numbers && err == nil && !math.IsInf(x, 0) && !math.IsNaN(x)
		sum, square, n = sum+x, square+x*x, n+1
		categories = append(categories, text)
	}
	if n == 0 {
		return c, fmt.Errorf("column %q of %s is empty: leave it out by --ignore_columns", c.Name, t.Path)
	}
	if numbers {
		c.Mean = sum / n
		if c.Std = math.Sqrt(max(square/n-c.Mean*c.Mean, 0)); c.Std < 1e-12*math.Abs(c.Mean) || c.Std == 0 {
			c.Std = 1 // a constant
		}
		return c, nil
	}
	slices.Sort(categories)
	if c.Categories = slices.Compact(categories); len(c.Categories) > maxCategories {
		return c,
			fmt.Errorf("column %q of %s has %d different values that are no numbers, as %q: leave it out by "+
				"--ignore_columns %s",
				c.Name, t.Path, len(c.Categories), c.Categories[0], c.Name)
	}
	return c, nil
}

// size is the number of inputs.
func (f *features) size() int {
	n := 0
	for _, c := range f.Columns {
		n += max(len(c.Categories), 1)
	}
	return n
}

// inputs makes the inputs of a row. value gives the text of a column, "" if it is missing: a missing number is taken
// to be the mean, a missing category to be none.
func (f *features) inputs(value func(name string) string) ([]float32, error) {
	in := make([]float32, 0, f.size())
	for _, c := range f.Columns {
		text := strings.TrimSpace(value(c.Name))
		if c.Categories == nil {
			x, err := c.standardise(text)
			if err != nil {
				return nil, err
			}
			in = append(in, x)
			continue
		}
		one := slices.Index(c.Categories, text)
		if one < 0 && text != "" {
			return nil, fmt.Errorf("%s = %q: want one of %s", c.Name, text, strings.Join(c.Categories, ", "))
		}
		start := len(in)
		in = append(in, make([]float32, len(c.Categories))...)
		if one >= 0 {
			in[start+one] = 1
		}
	}
	return in, nil
}

// standardise is a number as the network sees it.
func (c column) standardise(text string) (float32, error) {
	if text == "" {
		return 0, nil
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(x, 0) || math.IsNaN(x) {
		return 0, fmt.Errorf("%s = %q: want a number", c.Name, text)
	}
	return float32((x - c.Mean) / c.Std), nil
}

// restore is the inverse of standardise.
func (c column) restore(x float64) float64 { return x*c.Std + c.Mean }

// samples are the given rows of a table as the network sees them. All must have a label.
func (f *features) samples(t *tabular.Table, rows []int) (data.Slice[sample], error) {
	at := map[string]int{}
	for _, c := range append(slices.Clone(f.Columns), f.Label) {
		i, err := t.Column(c.Name)
		if err != nil {
			return nil, err
		}
		at[c.Name] = i
	}
	out := make(data.Slice[sample], len(rows))
	for i, r := range rows {
		row := t.Rows[r]
		in, err := f.inputs(func(name string) string { return row[at[name]] })
		label := strings.TrimSpace(row[at[f.Label.Name]])
		if err == nil && label == "" {
			err = fmt.Errorf("there is no %s", f.Label.Name)
		}
		var want float32
		if err == nil {
			want, err = f.Label.standardise(label)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", t.Path, t.Place(r), err)
		}
		out[i] = sample{in, [1]float32{want}}
	}
	return out, nil
}

// json is the content of features.json.
func (f *features) json() []byte {
	text, _ := json.MarshalIndent(f, "", "  ") // finite numbers and text always marshal
	return append(text, '\n')
}

// loadFeatures reads features.json of a saved model's folder.
func loadFeatures(dir string) (*features, error) {
	path := filepath.Join(dir, featuresFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &features{}
	if err := jsonfile.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, c := range append(slices.Clone(f.Columns), f.Label) {
		if c.Categories == nil && c.Std <= 0 {
			return nil, fmt.Errorf("%s: column %q has std = %g: want a positive number", path, c.Name, c.Std)
		}
	}
	return f, nil
}
