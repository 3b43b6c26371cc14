// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
)

// summaryRows are the lines of the summary, by the rows of the tables.
var summaryRows = []struct{ label, row string }{
	{"GPT-2 124M, training step, against PyTorch", "gpt2_124m"},
	{"GPT-2 124M, training step, against torch.compile", "gpt2_124m_compile"},
	{"GPT-2 124M, peak memory", "gpt2_124m_memory"},
	{"small transformer, training step, against PyTorch", "step"},
	{"ResNet-18, training step, against PyTorch", "resnet18"},
	{"causal attention over 1024 positions, forward and backward", "attention_1024_causal"},
	{"93 matrix products of GPT-2 and ResNet-18, geometric mean", "products_geomean"},
	{"`examples/clm` against HuggingFace's Trainer: tokens per second of the whole process", "clm_process"},
	{"the same: from the start to the end of the first step", "clm_first_step"},
}

// machines are the headings of the summary, by the names of the tables.
var machines = map[string]string{"xeon": "Xeon with AMX", "zen4": "Zen 4", "zen5": "Zen 5"}

// machine is the heading of a table's name.
func machine(table string) string {
	if long, ok := machines[table]; ok {
		return long
	}
	return cmp.Or(table, "this machine")
}

// summary is a table of the most important rows, with a column for each file of results.
func summary(files []string) (string, error) {
	var b strings.Builder
	columns := make([]map[string]line, len(files))
	b.WriteString("| 1 thread / 2 threads |")
	for i, file := range files {
		r, err := read([]string{file})
		if err != nil {
			return "", err
		}
		columns[i] = map[string]line{}
		for _, l := range r.lines() {
			columns[i][l.row] = l
		}
		fmt.Fprintf(&b, " %s |", machine(strings.TrimSuffix(filepath.Base(file), ".txt")))
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --: |", len(files)) + "\n")
	for _, row := range summaryRows {
		fmt.Fprintf(&b, "| %s |", row.label)
		for i, file := range files {
			l, ok := columns[i][row.row]
			if !ok {
				return "", fmt.Errorf("%s has no row %s", file, row.row)
			}
			fmt.Fprintf(&b, " %s / %s |", l.goal.ratio(l.values[1]), l.goal.ratio(l.values[2]))
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}
