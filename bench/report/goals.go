// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
)

// goal is what a family of rows is wanted to reach. A ratio is above 1 where Lockstep is faster, or needs less.
type goal struct {
	section string
	rows    *regexp.Regexp
	label   string     // of a line; $1 means the expression's group
	want    [2]float64 // at 1 and 2 threads; 0: shown, but nothing is wanted
	// A row that misses want reaches its goal all the same if the row that or names, in terms of the expression's
	// groups, reaches orWant.
	or     string
	orWant float64
	// combine makes one line of all rows.
	combine func(ratios []float64) float64
	name    string // of the combined row
	named   bool   // the table names the row of the least ratio
	strip   bool   // the figure shows all the rows in the one line
	figure  string // the label in the figure, in which lines of one label are one; empty: the table's
	share   bool   // of a ceiling, not a ratio to a peer
}

func rowsOf(expression string) *regexp.Regexp { return regexp.MustCompile("^(?:" + expression + ")$") }

var products = rowsOf(`(?:matmul|head|conv)_.*`)

// goals are in the order of the table.
var goals = []goal{
	{section: "Share of the FMA peak", rows: rowsOf(`square_512_peak`), label: "float32 matmul 512³",
		want: [2]float64{0.85, 0.78}, share: true},
	{section: "Share of the FMA peak", rows: rowsOf(`square_(1024|2048)_peak`), label: "float32 matmul $1³",
		figure: "float32 matmul 1024³ and 2048³", want: [2]float64{0.90, 0.88}, share: true},
	{section: "Share of the FMA peak", rows: rowsOf(`square_1024_avx2_peak`),
		label:  "float32 matmul 1024³, AVX2, share of the AVX2 peak",
		figure: "float32 matmul 1024³ by AVX2, of its peak", want: [2]float64{0.88, 0.88}, share: true},
	{section: "Share of the FMA peak", rows: rowsOf(`square_1024_f64_peak`),
		label: "float64 matmul 1024³, share of half the peak", figure: "float64 matmul 1024³, of half the peak",
		share: true},
	{section: "Share of the FMA peak", rows: rowsOf(`step_peak`), label: "small transformer step", share: true},
	{section: "Share of the FMA peak", rows: rowsOf(`gpt2_124m_peak`), label: "GPT-2 124M step", share: true},
	{section: "Share of copy's bandwidth", rows: rowsOf(`(.*)_copy`), label: "$1",
		figure: "streaming kernels", share: true},

	{section: "Matrix products", rows: products, label: "GPT-2's and ResNet's products, geometric mean",
		want: [2]float64{1.05, 1.05}, combine: geometricMean, name: "products_geomean", strip: true},
	{section: "Matrix products", rows: products, label: "GPT-2's and ResNet's products, worst",
		want: [2]float64{0.85, 0.85}, combine: worst, name: "products_worst", named: true},
	{section: "Matrix products", rows: rowsOf(`square_(\d+)`), label: "$1³ against MKL",
		figure: "squares against MKL"},
	{section: "Matrix products", rows: rowsOf(`square_(\d+)_openblas`), label: "$1³ against OpenBLAS",
		figure: "squares against OpenBLAS"},
	{section: "Matrix products", rows: rowsOf(`square_(\d+)_f64`), label: "$1³ of float64 against MKL"},
	{section: "Matrix products", rows: rowsOf(`square_(\d+)_bf16`), label: "$1³ of bfloat16 against oneDNN"},
	{section: "Matrix products", rows: rowsOf(`bf16_768x3072_(\d+)`),
		label: "768×3072 of bfloat16 against oneDNN, tokens: $1", figure: "768×3072 of bfloat16 against oneDNN"},

	{section: "Attention, forward and backward", rows: rowsOf(`attention_(\d+)_(causal|full)`),
		label: "$1 positions, $2", figure: "$2", want: [2]float64{1.3, 1.3}},

	{section: "Streaming kernels, PyTorch as usually called",
		rows:  rowsOf(`(layer_norm|rms_norm|softmax|gelu|gelu_tanh|cross_entropy)_(fwd|fwdbwd)|(adamw)`),
		label: "$1$3 $2", figure: "$1$3", want: [2]float64{1.5, 1.5}},
	{section: "Streaming kernels, PyTorch's out= forms",
		rows: rowsOf(`(layer_norm|rms_norm|softmax|gelu|gelu_tanh|cross_entropy)_(fwd|fwdbwd)_out`), label: "$1 $2",
		figure: "$1", want: [2]float64{1.5, 1.5}, or: "${1}_${2}_copy", orWant: 0.85},
	{section: "Streaming kernels, PyTorch's out= forms", rows: rowsOf(`(adamw)_out`), label: "$1",
		want: [2]float64{1.5, 1.5}, or: "${1}_copy", orWant: 0.85},

	{section: "Training steps", rows: rowsOf(`step`), label: "small transformer against eager",
		want: [2]float64{1.4, 1.4}, or: "step_peak", orWant: 0.8},
	{section: "Training steps", rows: rowsOf(`step_compile`), label: "small transformer against torch.compile",
		want: [2]float64{1.1, 1.1}},
	{section: "Training steps", rows: rowsOf(`step_installed`),
		label: "small transformer against PyTorch as installed"},
	{section: "Training steps", rows: rowsOf(`step_gomlx`), label: "small transformer against GoMLX",
		want: [2]float64{7, 7}},
	{section: "Training steps", rows: rowsOf(`gpt2_124m`), label: "GPT-2 124M against eager",
		want: [2]float64{1.25, 1.25}},
	{section: "Training steps", rows: rowsOf(`gpt2_124m_compile`), label: "GPT-2 124M against torch.compile",
		want: [2]float64{1.05, 1.05}},
	{section: "Training steps", rows: rowsOf(`gpt2_124m_installed`), label: "GPT-2 124M against PyTorch as installed"},
	{section: "Training steps", rows: rowsOf(`gpt2_124m_llmc`), label: "GPT-2 124M against llm.c"},
	{section: "Training steps", rows: rowsOf(`gpt2_124m_memory`), label: "GPT-2 124M, peak memory",
		want: [2]float64{1 / 0.7, 1 / 0.7}},
	{section: "Training steps", rows: rowsOf(`gpt2_124m_bf16`),
		label: "GPT-2 124M under bf16 against PyTorch's autocast", want: [2]float64{1.3, 1.3}},
	{section: "Training steps", rows: rowsOf(`gpt2_124m_bf16_against_gpt2_124m`),
		label: "GPT-2 124M under bf16 against our float32", want: [2]float64{1 / 1.05, 1 / 1.05}},
	{section: "Training steps", rows: rowsOf(`trainer_loop`), label: "the trainer's loop against our bare loop",
		want: [2]float64{0.99, 0.99}},
	{section: "Training steps", rows: rowsOf(`resnet18`), label: "ResNet-18 against eager", want: [2]float64{0.9, 0.9}},

	{section: "ResNet-18's layers, forward and backward", rows: rowsOf(`conv2d_(\d+)_(\d+)_(\d+)_(\d+)_(\d+)`),
		label: "convolution $1 → $2, kernel $3, stride $4, image $5", figure: "convolutions"},
	{section: "ResNet-18's layers, forward and backward", rows: rowsOf(`batch_norm_(\d+)_(\d+)`),
		label: "batch norm, $1 channels, image $2", figure: "batch norm"},
	{section: "ResNet-18's layers, forward and backward", rows: rowsOf(`max_pool_(\d+)_(\d+)`),
		label: "max pooling, $1 channels, image $2"},

	{section: "examples/clm against HuggingFace Trainer", rows: rowsOf(`clm_process`),
		label: "tokens per second, whole process", want: [2]float64{1.5, 1.5}},
	{section: "examples/clm against HuggingFace Trainer", rows: rowsOf(`clm_process_ids`),
		label: "the same, peer starts from token ids"},
	{section: "examples/clm against HuggingFace Trainer", rows: rowsOf(`clm_first_step`),
		label: "start to the end of the first step", want: [2]float64{10, 10}},
	{section: "examples/clm against HuggingFace Trainer", rows: rowsOf(`clm_first_step_ids`),
		label: "the same, peer starts from token ids"},
}

// line is a line of the table: one row, or several in one.
type line struct {
	goal   *goal
	row    string
	label  string
	values map[int]float64 // by number of threads
	met    map[int]bool    // where something is wanted
	all    map[int][]float64
	least  map[int]string // the row of the least ratio
	limits map[int]float64
}

// lines are what was measured, in the order of the goals.
func (r *results) lines() []line {
	var out []line
	for i := range goals {
		g := &goals[i]
		var all []line
		for _, row := range r.rows {
			if g.rows.MatchString(row) {
				label := g.rows.ReplaceAllString(row, g.label)
				all = append(all, line{goal: g, row: row, label: strings.TrimSpace(strings.ReplaceAll(label, "_", " ")),
					values: r.ofRow(row), limits: r.limitsOf(row)})
			}
		}
		if g.combine != nil && len(all) > 0 {
			all = []line{g.combined(all)}
		}
		for i := range all {
			all[i].judge(r)
		}
		out = append(out, all...)
	}
	return out
}

// ofRow are a row's ratios by number of threads.
func (r *results) ofRow(row string) map[int]float64 {
	out := map[int]float64{}
	for _, threads := range []int{1, 2} {
		if v, ok := r.ratios[key{row, threads}]; ok {
			out[threads] = v
		}
	}
	return out
}

// limitsOf are what a row's ratios would be if our side ran at the machine's ceiling: if operations count what the FMA
// loop reached beside other rows, or at best where that was not measured, else copy's bandwidth.
func (r *results) limitsOf(row string) map[int]float64 {
	out := map[int]float64{}
	for threads, ratio := range r.ofRow(row) {
		var rate float64
		var unit string
		n, _ := fmt.Sscan(r.measures[key{row, threads}].note, &rate, &unit)
		if peak := r.usual(unit, threads); n == 2 && rate > 0 && peak > 0 { // no ceiling of float64 is measured
			out[threads] = ratio * peak / rate
		}
	}
	return out
}

// usual is the machine's ceiling in a unit: the median of its loop's turns beside ours if there were any, else the
// highest speed.
func (r *results) usual(unit string, threads int) float64 {
	var highest ceiling
	for _, c := range r.ceilings {
		if c.unit == unit && c.threads == threads && c.value > highest.value {
			highest = c
		}
	}
	if list := r.beside[key{strings.TrimPrefix(highest.name, "fma_"), threads}]; len(list) > 0 {
		return stats.Median(list)
	}
	return highest.value
}

// combined is one line of several.
func (g *goal) combined(lines []line) line {
	out := line{goal: g, row: g.name, label: g.label, values: map[int]float64{}, all: map[int][]float64{},
		least: map[int]string{}, limits: map[int]float64{}}
	limits := map[int][]float64{}
	for _, l := range lines {
		for threads, v := range l.values {
			if len(out.all[threads]) == 0 || v < worst(out.all[threads]) {
				out.least[threads] = l.row
			}
			out.all[threads] = append(out.all[threads], v)
			if limit, ok := l.limits[threads]; ok {
				limits[threads] = append(limits[threads], limit)
			}
		}
	}
	for threads, list := range out.all {
		out.values[threads] = g.combine(list)
		if len(limits[threads]) == len(list) {
			out.limits[threads] = g.combine(limits[threads])
		}
	}
	return out
}

// judge compares a line with what is wanted.
func (l *line) judge(r *results) {
	l.met = map[int]bool{}
	for threads, v := range l.values {
		want := l.goal.want[threads-1]
		if want == 0 {
			continue
		}
		met := v >= want
		if !met && l.goal.or != "" {
			other, ok := r.ratios[key{l.goal.rows.ReplaceAllString(l.row, l.goal.or), threads}]
			met = ok && other >= l.goal.orWant
		}
		l.met[threads] = met
	}
}

func geometricMean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += math.Log(v)
	}
	return math.Exp(sum / float64(len(x)))
}

func worst(x []float64) float64 {
	out := math.Inf(1)
	for _, v := range x {
		out = min(out, v)
	}
	return out
}
