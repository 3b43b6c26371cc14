// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// source is where the README's figures come from: the results of the machines, whose tables bench/results.md has
// (TestDocuments), and rows that people wrote in documents.
type source struct {
	t        *testing.T
	machines map[string]map[string]line
	results  map[string]*results
}

func newSource(t *testing.T) *source {
	s := &source{t, map[string]map[string]line{}, map[string]*results{}}
	for _, name := range []string{"xeon", "zen4"} {
		r, err := read([]string{"testdata/" + name + ".txt"})
		require.NoError(t, err)
		s.results[name], s.machines[name] = r, map[string]line{}
		for _, l := range r.lines() {
			s.machines[name][l.row] = l
		}
	}
	return s
}

func (s *source) value(machine, row string, threads int) float64 {
	l, ok := s.machines[machine][row]
	require.True(s.t, ok, row)
	return l.values[threads]
}

// ratios are a row's at 1 and 2 threads, with a number of digits.
func (s *source) ratios(machine, row string, digits int) string {
	return fmt.Sprintf("%.*f / %.*f", digits, s.value(machine, row, 1), digits, s.value(machine, row, 2))
}

// pair are the ratios on both machines, as a row of the README's table has them.
func (s *source) pair(row string) string {
	return s.ratios("xeon", row, 2) + " | " + s.ratios("zen4", row, 2)
}

// part is our part of what the peer needs, in percent, at one thread.
func (s *source) part(machine, row string) string {
	return fmt.Sprintf("%.0f %%", 100/s.value(machine, row, 1))
}

// seconds are the times of ours and theirs at 2 threads.
func (s *source) seconds(machine, row string) (ours, theirs string) {
	m, ok := s.results[machine].measures[key{row, 2}]
	require.True(s.t, ok && m.unit == "ms", row)
	return fmt.Sprintf("%.1f s", m.ours/1e3), fmt.Sprintf("%.1f s", m.theirs/1e3)
}

// cells are those of the one row of a document, below a heading, that begins with the label; the label is left out.
func (s *source) cells(document, heading, label string) []string {
	text, err := os.ReadFile("../../" + document)
	require.NoError(s.t, err)
	_, section, ok := strings.Cut(string(text), heading)
	require.True(s.t, ok, heading)
	_, row, ok := strings.Cut(section, "\n| "+label+" |")
	require.True(s.t, ok, "%s, %s: no row %q", document, heading, label)
	row, _, _ = strings.Cut(row, "|\n")
	cells := strings.Split(row, "|")
	for i, cell := range cells {
		cells[i] = strings.TrimSpace(cell)
	}
	return cells
}

// recorded says how fast the run of the README's pictures was, and where it ended.
func (s *source) recorded() string {
	text, err := os.ReadFile("../readme/testdata/clm.json")
	require.NoError(s.t, err)
	var state struct {
		GlobalStep int                  `json:"global_step"`
		MaxSteps   int                  `json:"max_steps"`
		LogHistory []map[string]float64 `json:"log_history"`
	}
	require.NoError(s.t, json.Unmarshal(text, &state))
	var speeds []float64
	for _, r := range state.LogHistory {
		if _, whole := r["train_runtime"]; whole {
			continue
		}
		if v, ok := r["train_tokens_per_second"]; ok {
			speeds = append(speeds, v)
		}
	}
	require.NotEmpty(s.t, speeds)
	return fmt.Sprintf("%.0f,000 to %.0f,000 tokens/s. The run stopped at step %d of %d", slices.Min(speeds)/1e3,
		slices.Max(speeds)/1e3, state.GlobalStep, state.MaxSteps)
}

// claims are the README's sentences and rows with figures, with the conditions that belong to them.
func (s *source) claims() []string {
	xeonFirst, xeonIDs := s.seconds("xeon", "clm_first_step_ids")
	zenFirst, zenIDs := s.seconds("zen4", "clm_first_step_ids")
	_, xeonText := s.seconds("xeon", "clm_first_step")
	_, zenText := s.seconds("zen4", "clm_first_step")
	avx512 := s.cells("docs/performance.md", "### Products with AVX-512", "GPT-2 124M, against PyTorch")[0]
	avx2 := s.cells("docs/performance.md", "## AVX2", "GPT-2 124M, training step")[0]
	bf16 := s.cells("docs/precision.md", "A training step of GPT-2 124M on 2 × 512 tokens", "float32 of ours")
	kept := s.cells("docs/precision.md", "## What it saves", "what backward needs of 2 × 512 tokens")
	return []string{
		s.recorded(),
		fmt.Sprintf("A GPT-2 124M training step (float32, 2 × 512 tokens) is %s times as fast as PyTorch 2.15 "+
			"at its best settings on a Xeon with AMX (1 / 2 threads), and %s times on a Zen 4 with AVX-512 "+
			"([performance](docs/performance.md#results)).",
			s.ratios("xeon", "gpt2_124m", 2), s.ratios("zen4", "gpt2_124m", 2)),
		fmt.Sprintf("With both sides held to AVX2, which is what most laptops have, it is %s times as fast on a Zen 5 "+
			"([AVX2](docs/performance.md#avx2)).", avx2),
		fmt.Sprintf("Training GPT-2 takes %s of PyTorch's peak memory on the Xeon, %s "+
			"on the Zen 4 ([GPT-2 124M, peak memory](docs/performance.md#results), 1 thread).",
			s.part("xeon", "gpt2_124m_memory"), s.part("zen4", "gpt2_124m_memory")),
		fmt.Sprintf("`examples/clm` trains a tokenizer and finishes its first step after %s on the Xeon "+
			"and %s on the Zen 4 (2 threads). HuggingFace's Trainer takes %s and %s from ready token ids, and %s "+
			"and %s if it trains the tokenizer too ([start to the end of the first step](bench/results.md#xeon)).",
			xeonFirst, zenFirst, xeonIDs, zenIDs, xeonText, zenText),
		fmt.Sprintf("with AVX512_BF16 a step of GPT-2 124M is %s / %s times as fast as in float32 "+
			"(1 / 2 threads, Zen 4), and keeps %s for its backward pass instead of %s "+
			"([precision](docs/precision.md#what-it-saves))",
			bf16[0], bf16[1], kept[1], strings.TrimSuffix(kept[0], " MiB")),
		fmt.Sprintf("[bench/results.md](bench/results.md) has all %d rows", len(s.results["xeon"].trips)),
		"| GPT-2 124M, training step | " + s.pair("gpt2_124m") + " |",
		"| GPT-2 124M, peak memory of the process | " + s.pair("gpt2_124m_memory") + " |",
		"| ResNet-18, training step | " + s.pair("resnet18") + " |",
		"| causal attention over 1024 positions, forward and backward | " + s.pair("attention_1024_causal") + " |",
		"| GPT-2's and ResNet's 93 matrix products, geometric mean | " + s.pair("products_geomean") + " |",
		"| HuggingFace's Trainer from ready token ids, and `examples/clm` with its tokenizer training: " +
			"the whole process of 200 steps | " + s.pair("clm_process_ids") + " |",
		"| the same two, from the start to the end of the first step | " + s.pair("clm_first_step_ids") + " |",
		fmt.Sprintf("Where the Trainer's script trains the tokenizer too, the last two rows are %s and %s, "+
			"and %s and %s.", s.ratios("xeon", "clm_process", 2), s.ratios("zen4", "clm_process", 2),
			s.ratios("xeon", "clm_first_step", 1), s.ratios("zen4", "clm_first_step", 1)),
		fmt.Sprintf("With `LOCKSTEP_KERNELS=avx512` the GPT-2 step is %s times as fast as PyTorch's on the Xeon "+
			"([Products with AVX-512](docs/performance.md#products-with-avx-512)).", avx512),
	}
}

var (
	code = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`|\n    [^\n]*|<[^>]*>")
	// figure is a measured number: a ratio, a share, a time, an amount of memory or a speed.
	figure = regexp.MustCompile(`\d[\d.,]* (?:/ \d|%|s\b|ms\b|GB\b|MB\b|[KMG]iB\b|times\b|tokens/s|of\b)|× as |\d\.\d`)
	// version is a number of the same look.
	version = regexp.MustCompile(`(?:PyTorch|transformers|Go|Apache)[ -]\d[\d.]*|1 / 2 threads|\d+ runs of|114 arguments of`)
)

// unclaimed are the figures of a text that no claim has, and the claims that it lacks.
func unclaimed(text string, claims []string) (figures, missing []string) {
	text = strings.Join(strings.Fields(code.ReplaceAllStringFunc(text, func(s string) string {
		if strings.HasPrefix(s, "`") && !strings.HasPrefix(s, "```") {
			return s // in a sentence
		}
		return "\n"
	})), " ")
	for _, claim := range claims {
		before, after, ok := strings.Cut(text, claim)
		if !ok {
			missing = append(missing, claim)
		}
		text = before + " " + after
	}
	return figure.FindAllString(version.ReplaceAllString(text, ""), -1), missing
}

// TestReadme: each figure of the README is that of a row of bench/results.md, docs/performance.md or docs/precision.md,
// with its condition; and it has no others. The speeds of the pictured run are those that it recorded.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	figures, missing := unclaimed(strings.ReplaceAll(string(text), "\r\n", "\n"), newSource(t).claims())
	require.Empty(t, missing, "README.md: want these sentences and rows, which have the measured numbers")
	require.Empty(t, figures, "README.md: figures that no claim of this test has")
}

// TestReadmeBites: a number that changes, a condition that is lost and a new figure are found.
func TestReadmeBites(t *testing.T) {
	claims := []string{"is 1.80 / 1.67 times as fast on a Xeon."}
	const good = "It is 1.80 / 1.67\ntimes as fast on a Xeon. PyTorch 2.15, Go 1.26.\n\n    0.3 s\n"
	figures, missing := unclaimed(good, claims)
	require.Empty(t, append(figures, missing...))
	for _, edit := range [][2]string{{"1.80", "1.81"}, {"on a Xeon", "on CPUs"}, {"PyTorch 2", "and 2"},
		{"Go 1.26", "61 % of it"}, {"Go 1.26", "5 GB"}, {"Go 1.26", "after 12 s"}} {
		figures, missing = unclaimed(strings.Replace(good, edit[0], edit[1], 1), claims)
		require.NotEmpty(t, append(figures, missing...), edit)
	}
}
