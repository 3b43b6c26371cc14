// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/picture"
)

const printed = `# 1 threads
MACHINE a processor
PEER eager 1 PyTorch 9
CEILING fma_avx512 1 300 GFLOP/s
ROW step 1 100 120 ms 50 GFLOP/s
RATIO step 1 1.200
RATIO step_peak 1 0.810
RATIO step 2 1.399
RATIO step_peak 2 0.700
RATIO matmul_2x2_1 1 1.000
RATIO matmul_2x2_1_dx 1 4.000
RATIO conv2d_1_2_3_4_5 1 0.250
`

func parsed(t *testing.T, text string) *results {
	r, err := parse(strings.NewReader(text))
	require.NoError(t, err)
	return r
}

func find(t *testing.T, lines []line, row string) line {
	for _, l := range lines {
		if l.row == row {
			return l
		}
	}
	require.Fail(t, "no line "+row)
	return line{}
}

// TestTrips: rows whose threads were far apart are marked, and of a ceiling's values the highest counts.
func TestTrips(t *testing.T) {
	r := parsed(t, printed+"TRIP step 2 390 ns\nTRIP softmax_fwd 2 81 ns\nCEILING fma_avx512 1 290 GFLOP/s\n")
	require.True(t, r.apart(key{"step", 2}))
	require.False(t, r.apart(key{"softmax_fwd", 2}))
	text := r.markdown()
	require.Contains(t, text, "1.40 ↓ ‡")
	require.Contains(t, text, "81 to 390 ns from one thread to the other and back; ‡ marks the 1 of 2")
	require.Contains(t, text, "| FMA AVX-512 | 300 GFLOP/s |  |\n")
	require.NotContains(t, parsed(t, printed).markdown(), "‡")
}

// TestFMATurns: rows whose threads shared a core are marked, and limits are of what the loop reached beside our turns.
func TestFMATurns(t *testing.T) {
	r := parsed(t, "CEILING fma_avx2 1 130 GFLOP/s\n"+printed+
		"FMA avx512 1 250 GFLOP/s\nFMA avx512 1 260 GFLOP/s\nFMA avx2 1 125 GFLOP/s\nCORES step 2 1.2\nCORES "+
		"step_peak 2 1.96\nCORES adamw 2 2.01\n")
	require.True(t, r.shared(key{"step", 2}))
	require.False(t, r.shared(key{"step_peak", 2}))
	require.False(t, r.shared(key{"matmul_2x2_1", 2}))
	require.InDelta(t, 1.2*255/50, find(t, r.lines(), "step").limits[1], 1e-12)
	text := r.markdown()
	require.Contains(t, text, "1.40 ↓ §")
	require.Contains(t, text, "| FMA AVX2 | 130 GFLOP/s (125 to 125 beside the rows, median 125) |  |\n| FMA AVX-512 "+
		"| 300 GFLOP/s (250 to 260 beside the rows, median 255) |  |\n")
	require.Contains(t, r.besideText(), "beside each row: AVX2 at 1: 125 to 125, median 125 GFLOP/s; AVX-512 at 1: "+
		"250 to 260, median 255 GFLOP/s")
	require.Contains(t, r.coresText(), "two threads multiplied and added 1.20 to 2.01 times as fast as one (median "+
		"1.96); § marks the 1 of 3 rows")
	require.NotContains(t, parsed(t, printed).markdown(), "§")
	require.NotContains(t, parsed(t, printed).markdown(), "beside the rows")
}

// TestJudgement: what misses its ratio reaches its goal by the other row; several rows make one.
func TestJudgement(t *testing.T) {
	r := parsed(t, printed)
	lines := r.lines()
	require.Equal(t, map[int]bool{1: true, 2: false}, find(t, lines, "step").met)
	require.InDelta(t, 2, find(t, lines, "products_geomean").values[1], 1e-12)
	least := find(t, lines, "products_worst")
	require.Equal(t, 1.0, least.values[1])
	require.Equal(t, map[int]string{1: "matmul_2x2_1"}, least.least)
	require.Equal(t, map[int]bool{1: true}, least.met)
	require.Empty(t, find(t, lines, "step_peak").met)
	require.InDelta(t, 7.2, find(t, lines, "step").limits[1], 1e-12, "at 300 instead of 50 GFLOP/s")
	require.Equal(t, "convolution 1 → 2, kernel 3, stride 4, image 5", find(t, lines, "conv2d_1_2_3_4_5").label)
}

func TestPrint(t *testing.T) {
	var b strings.Builder
	require.NoError(t, parsed(t, printed).print(&b))
	for _, want := range []string{"a processor\n", "eager: PyTorch 9\n", "FMA AVX-512 at 1: 300 GFLOP/s", "100 ms",
		"1.40 ↓", "81 %", "RATIO products_geomean 1 2.000\n", "RATIO step 2 1.399\n"} {
		require.Contains(t, b.String(), want)
	}
}

func TestParseErrors(t *testing.T) {
	for _, bad := range []string{"RATIO step 1", "RATIO step one 1", "RATIO step 1 fast", "ROW step 1 2 3",
		"ROW step 1 2 x ms", "CEILING copy 1 x GB/s", "CORES step 2", "FMA avx512 1 300"} {
		_, err := parse(strings.NewReader("# fine\n" + bad))
		require.ErrorContains(t, err, "line 2")
	}
}

func TestReplaceTable(t *testing.T) {
	begin, end := markers("one")
	other, otherEnd := markers("other")
	rest := other + "kept\n" + otherEnd
	text, err := replaceTable(rest+"a\n"+begin+"old\n"+end+"b\n", "one", "new\n")
	require.NoError(t, err)
	require.Equal(t, rest+"a\n"+begin+"\nnew\n\n"+end+"b\n", text)
	_, err = replaceTable("a\n"+begin+otherEnd, "one", "new\n")
	require.ErrorContains(t, err, strings.TrimSpace(end))
	_, err = replaceTable(rest, "one", "new\n")
	require.ErrorContains(t, err, strings.TrimSpace(begin))
}

// TestDocuments: the documents' tables and figures are those of the results in testdata, each in a file with the
// table's name.
func TestDocuments(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	table, err := summary(files)
	require.NoError(t, err)
	docs, err := os.ReadFile("../../docs/performance.md")
	require.NoError(t, err)
	results, err := os.ReadFile("../../bench/results.md")
	require.NoError(t, err)
	want, err := replaceTable(string(docs), "summary", table)
	require.NoError(t, err)
	require.Equal(t, want, string(docs), "go run -C bench ./report --docs ../docs/performance.md --summary "+
		"report/testdata/*.txt")
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		command := fmt.Sprintf("go run -C bench ./report --docs results.md --table %[1]s --svg "+
			"../docs/figures/performance-%[1]s report/testdata/%[1]s.txt", name)
		r, err := read([]string{file})
		require.NoError(t, err)
		want, err := replaceTable(string(results), name, r.markdown())
		require.NoError(t, err)
		require.Equal(t, want, string(results), command)
	}
}

// TestFigure: rows of one label are one line of the figure, at their geometric mean and with the rows in pale.
func TestFigure(t *testing.T) {
	r := parsed(t, printed+"RATIO conv2d_1_2_3_4_6 1 4\nRATIO square_512_peak 1 0.5\n")
	list := strips(r.lines())
	find := func(label string) strip {
		i := slices.IndexFunc(list, func(s strip) bool { return s.label == label })
		require.GreaterOrEqual(t, i, 0, label)
		return list[i]
	}
	convolutions := find("convolutions")
	require.InDelta(t, 1, convolutions.values[1], 1e-12)
	require.Equal(t, []float64{0.25, 4}, convolutions.all[1])
	require.Equal(t, "1.00 / –", convolutions.ratios())
	require.False(t, convolutions.missed)
	products := find("GPT-2's and ResNet's products, geometric mean")
	require.InDelta(t, 2, products.values[1], 1e-12)
	require.Equal(t, []float64{1, 4}, products.all[1])
	peak := find("float32 matmul 512³")
	require.True(t, peak.missed)
	require.Equal(t, "50 % / –", peak.ratios())
	svg := r.draw("a machine", "go run it").SVG(&picture.Themes[0])
	for _, text := range []string{"Lockstep beside its peers: a machine", "a processor", ">×<", ">100 %<", ">2×<",
		">convolutions<"} {
		require.Contains(t, svg, text)
	}
}
