// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/program"
)

// resultsFile is the file of the predictions in output_dir, as run_glue.py calls it.
const resultsFile = "predict_results.txt"

// predict classifies the texts of test_file and writes the classes to output_dir, a line for each text.
func (j *job) predict() error {
	t, err := tabular.Read(j.data.TestFile)
	if err != nil {
		return err
	}
	var at int
	if j.data.TextColumn == "" {
		at, err = t.TextColumn(j.data.LabelColumn)
	} else {
		at, err = t.Column(j.data.TextColumn)
	}
	if err != nil {
		return fmt.Errorf("%w (--text_column)", err)
	}
	p := newPredictor(j.net, newReader(j.net, j.tok, j.tokConfig))
	var b strings.Builder
	b.WriteString("index\tprediction\n")
	n := 0
	for rows := range slices.Chunk(t.Rows, j.args.PerDeviceEvalBatchSize) {
		var texts []string
		for _, row := range rows {
			texts = append(texts, row[at])
		}
		classes, err := p.predict(texts)
		if err != nil {
			return err
		}
		for _, c := range classes {
			fmt.Fprintf(&b, "%d\t%s\n", n, c.Label)
			n++
		}
	}
	path := filepath.Join(j.args.OutputDir, resultsFile)
	if err := os.MkdirAll(j.args.OutputDir, 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o666); err != nil {
		return err
	}
	j.Line("predict", program.Count(n, "text")+" of "+j.data.TestFile, "column "+t.Columns[at], "classified in "+path)
	return nil
}
