// SPDX-License-Identifier: Apache-2.0

package hashes

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Kind is what two runs first differ in, in the order in which a step computes it.
type Kind string

// The kinds. A step reads its data, computes losses, gradients and their norm, and updates state and weights.
const (
	Start     Kind = "weights at the start" // or where a run was resumed
	Data      Kind = "data"
	Loss      Kind = "loss"
	Gradients Kind = "gradient"
	Norm      Kind = "gradient norm"
	Rate      Kind = "learning rate"
	State     Kind = "optimizer state"
	Weights   Kind = "weights"
)

// Difference is where two runs diverge. Before it they have the same bits.
type Difference struct {
	Step int64 `json:"step"`
	Kind Kind  `json:"kind"`
	// MicroBatches are those whose data or loss differs, Params the parameters whose gradient, state or weights do: the
	// first ones, in the model's order, and Count is how many there are, Of how many.
	MicroBatches []int    `json:"micro_batches,omitempty"`
	Params       []string `json:"params,omitempty"`
	Count        int      `json:"count,omitempty"`
	Of           int      `json:"of,omitempty"`
	// Ranks have what differs, in each of the runs.
	Ranks [2][]int `json:"ranks"`
	// Values are the two numbers, where they were recorded.
	Values [2]string `json:"values"`
	// Alone are ranks of one run that differ from other ranks of it, which should have the same: a fault of theirs.
	Alone [2][]int      `json:"alone"`
	Op    *OpDifference `json:"op,omitempty"` // the first op, where ops were recorded
}

// OpDifference is the first op whose result differs.
type OpDifference struct {
	MicroBatch int      `json:"micro_batch"`
	Pass       string   `json:"pass"`
	Path       string   `json:"path"`
	Ranks      [2][]int `json:"ranks"`
}

// Comparison is what is found of two runs.
type Comparison struct {
	Runs     [2]string   `json:"runs"`
	Steps    int         `json:"steps"`      // that both have recorded
	First    int64       `json:"first_step"` // of them
	Last     int64       `json:"last_step"`  // of them
	Words    [2][]string `json:"words"`      // flags of the programs that the other has not
	Settings []Setting   `json:"settings"`   // that differ
	Versions []Setting   `json:"versions"`   // that differ
	Found    *Difference `json:"difference,omitempty"`
	// Parted is the step of the first checkpoint that differs, of runs that have recorded no hashes of the same steps.
	Parted int64 `json:"parted,omitempty"`
}

// Setting is one that differs.
type Setting struct {
	Name string    `json:"name"`
	Of   [2]string `json:"values"`
}

// mostNamed is how many parameters and micro-batches a difference names.
const mostNamed = 8

// Compare finds the first step in which two runs diverge, and in what. Ranks may differ in number.
func Compare(a, b *Run) *Comparison {
	c := &Comparison{Runs: [2]string{a.Path, b.Path}}
	if ha, hb := a.Header(), b.Header(); ha != nil && hb != nil {
		c.Words = [2][]string{words(ha, hb), words(hb, ha)}
		c.Settings = different(ha.Settings, hb.Settings)
		c.Versions = different(texts(ha.Versions), texts(hb.Versions))
	}
	other := b.steps()
	for _, n := range a.steps() {
		if _, both := slices.BinarySearch(other, n); !both {
			continue
		}
		if c.Steps++; c.Steps == 1 {
			c.First = n
		}
		c.Last = n
		if c.Found = parts(n, a.step(n), b.step(n)); c.Found != nil {
			return c
		}
	}
	return c
}

// words lists the flags of a program that another run has not, with their values, without those of Settings.
func words(of, other *Header) (list []string) {
	known := ownFlags(other)
	for _, flag := range ownFlags(of) {
		if !slices.Contains(known, flag) {
			list = append(list, flag)
		}
	}
	return list
}

// ownFlags are a program's flags, with their values, that are no settings.
func ownFlags(h *Header) (flags []string) {
	setting := true // the program's name
	for i, w := range h.Program {
		name, isFlag := strings.CutPrefix(w, "--")
		switch {
		case i == 0:
		case isFlag:
			name, _, _ = strings.Cut(name, "=")
			if _, setting = h.Settings[strings.ReplaceAll(name, "-", "_")]; !setting {
				flags = append(flags, w)
			}
		case !setting && len(flags) > 0:
			flags[len(flags)-1] += " " + w
		}
	}
	return flags
}

func texts(m map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// aside are settings that say where a run writes, and change no bit.
var aside = []string{"output_dir", "project", "run_name", "logging_dir", "record_hashes", "record_until",
	"resume_from_checkpoint", "overwrite_output_dir"}

// different lists the settings that differ, by name.
func different(a, b map[string]any) (list []Setting) {
	names := map[string]bool{}
	for _, m := range []map[string]any{a, b} {
		for name := range m {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !slices.Contains(aside, name) && !reflect.DeepEqual(a[name], b[name]) {
			list = append(list, Setting{name, [2]string{fmt.Sprint(a[name]), fmt.Sprint(b[name])}})
		}
	}
	return list
}

// parts is what differs first in a step; nil if nothing does.
func parts(n int64, a, b *view) *Difference {
	d := &Difference{Step: n}
	weights := func(v *view) map[string]ranked { return v.weights }
	switch {
	case a.begins || b.begins:
		if d.params(Start, a, b, weights) {
			return d
		}
		return nil
	case d.micro(Data, a.data, b.data):
	case d.losses(a, b):
	case d.params(Gradients, a, b, func(v *view) map[string]ranked { return v.grads }):
	case a.norm != b.norm:
		d.Kind, d.Values = Norm, [2]string{a.norm, b.norm}
	case a.lr != b.lr:
		d.Kind, d.Values = Rate, [2]string{Float(a.lr), Float(b.lr)}
	case d.params(State, a, b, func(v *view) map[string]ranked { return v.state }):
	case d.params(Weights, a, b, weights):
	default:
		return nil
	}
	if d.Kind != Data {
		d.op(a, b)
	}
	return d
}

// micro compares the data of micro-batches.
func (d *Difference) micro(kind Kind, a, b map[int]ranked) bool {
	for _, m := range slices.Sorted(maps.Keys(a)) {
		other, known := b[m]
		if known && a[m].sum == other.sum && len(a[m].other)+len(other.other) == 0 {
			continue
		}
		if d.Count++; d.Count == 1 {
			d.Ranks = [2][]int{a[m].ranks, other.ranks}
		}
		if len(d.MicroBatches) < mostNamed {
			d.MicroBatches = append(d.MicroBatches, m)
		}
	}
	for m := range b {
		if _, known := a[m]; !known {
			d.Count++
		}
	}
	if d.Of = max(len(a), len(b)); d.Count == 0 {
		d.Of = 0
		return false
	}
	d.Kind = kind
	return true
}

// losses compares the losses of micro-batches.
func (d *Difference) losses(a, b *view) bool {
	for m, loss := range a.losses {
		if m >= len(b.losses) || loss == b.losses[m] {
			continue
		}
		if d.Count++; d.Count == 1 {
			d.Ranks, d.Values = [2][]int{a.data[m].ranks, b.data[m].ranks}, [2]string{loss, b.losses[m]}
		}
		if len(d.MicroBatches) < mostNamed {
			d.MicroBatches = append(d.MicroBatches, m)
		}
	}
	if d.Count == 0 {
		return false
	}
	d.Kind, d.Of = Loss, len(a.losses)
	return true
}

// params compares a hash of all parameters.
func (d *Difference) params(kind Kind, a, b *view, of func(*view) map[string]ranked) bool {
	ha, hb := of(a), of(b)
	for _, name := range a.names {
		x, y := ha[name], hb[name]
		if x.sum == y.sum && len(x.other)+len(y.other) == 0 {
			continue
		}
		if d.Count++; d.Count == 1 {
			d.Ranks, d.Alone = [2][]int{x.ranks, y.ranks}, [2][]int{x.unlike(y), y.unlike(x)}
		}
		if len(d.Params) < mostNamed {
			d.Params = append(d.Params, name)
		}
	}
	if d.Count == 0 {
		return false
	}
	d.Kind, d.Of = kind, len(a.names)
	return true
}

// op finds the first op that differs.
func (d *Difference) op(a, b *view) {
	for _, key := range a.order {
		x := a.ops[key]
		if y, known := b.ops[key]; known && (x.sum != y.sum || len(x.other)+len(y.other) > 0) {
			d.Op = &OpDifference{key.microBatch, key.pass, key.path, [2][]int{x.ranks, y.ranks}}
			return
		}
	}
}

// String says in a few lines where the runs diverge.
func (d *Difference) String() string {
	var out strings.Builder
	if d.Kind == Start {
		fmt.Fprintf(&out, "the runs diverge before step %d, in the weights", d.Step+1)
	} else {
		fmt.Fprintf(&out, "the runs diverge in step %d, in the %s", d.Step, d.Kind)
	}
	switch {
	case len(d.MicroBatches) > 0:
		fmt.Fprintf(&out, " of %s", named("micro-batch", d.MicroBatches, d.Count, d.Of))
	case len(d.Params) > 0:
		fmt.Fprintf(&out, " of %s", named("parameter", d.Params, d.Count, d.Of))
	}
	for run, alone := range d.Alone {
		if len(alone) > 0 {
			fmt.Fprintf(&out, "\n  %s of the %s run disagrees with the other ranks of that run", ranks(alone),
				[]string{"first", "second"}[run])
		}
	}
	if d.Values[0] != "" {
		fmt.Fprintf(&out, "\n  %s in the first, %s in the second", d.Values[0], d.Values[1])
	}
	if len(d.Ranks[0]) > 0 && len(d.Ranks[1]) > 0 {
		fmt.Fprintf(&out, "\n  %s of the first run, %s of the second", ranks(d.Ranks[0]), ranks(d.Ranks[1]))
	}
	fmt.Fprintf(&out, "\n  %s", before[d.Kind])
	out.WriteByte('\n')
	if d.Op != nil {
		out.WriteString(d.Op.String())
	}
	return out.String()
}

// String says which op it is.
func (o *OpDifference) String() string {
	path := o.Path
	if path == "" {
		path = "the model"
	}
	return fmt.Sprintf("the first op: %s %s, micro-batch %d (%s of the first run, %s of the second)\n", what[o.Pass],
		path, o.MicroBatch, ranks(o.Ranks[0]), ranks(o.Ranks[1]))
}

// Computed reports whether a replay of the step can find an op that it has not yet: what differs is computed by the
// model.
func (d *Difference) Computed() bool {
	return d.Op == nil && (d.Kind == Loss || d.Kind == Gradients)
}

// Changed lists the settings and versions that differ, a line each.
func (c *Comparison) Changed() string {
	var out strings.Builder
	for i, words := range c.Words {
		if len(words) > 0 {
			fmt.Fprintf(&out, "only in the %s command line: %s\n", []string{"first", "second"}[i],
				strings.Join(words, " "))
		}
	}
	for _, list := range [][]Setting{c.Settings, c.Versions} {
		for _, s := range list {
			fmt.Fprintf(&out, "%s: %s in the first run, %s in the second\n", s.Name, s.Of[0], s.Of[1])
		}
	}
	return out.String()
}

// before says what is equal before a difference of a kind, and what the cause may be.
var before = map[Kind]string{
	Start:     "the runs begin with other weights: another seed, initialisation or checkpoint",
	Data:      "the weights are equal: other data, another order of samples, or another collator",
	Loss:      "data and weights are equal: the forward pass differs (dropout, dtypes, kernels, the loss)",
	Gradients: "data, weights and losses are equal: a backward pass or the exchange of gradients differs",
	Norm:      "the gradients are equal: the clipping differs",
	Rate:      "the gradients are equal: the learning rate or its schedule differs",
	State:     "gradients and learning rate are equal: the optimizer's settings differ",
	Weights:   "gradients and the optimizer's state are equal: its settings or an update differ",
}

var what = map[string]string{Forward: "forward pass of", Backward: "gradient of the outputs of",
	Gradient: "gradient of"}

// named lists names: "micro-batches 1, 3 (2 of 4)".
func named[T any](noun string, list []T, count, of int) string {
	if count > 1 {
		noun += "s"
		noun = strings.Replace(noun, "micro-batchs", "micro-batches", 1)
	}
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
	if count > len(list) {
		text += ", …"
	}
	return fmt.Sprintf("%s %s (%d of %d)", noun, text, count, of)
}

// ranks lists ranks: "rank 1", "ranks 0, 1".
func ranks(list []int) string {
	if len(list) == 1 {
		return fmt.Sprintf("rank %d", list[0])
	}
	return "ranks " + strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
}

// Same says that nothing differs, and how much that was.
func (c *Comparison) Same() string {
	return fmt.Sprintf("the runs have the same bits in the %s that both recorded, %d to %d\n",
		quantity.Of(c.Steps, "step"), c.First, c.Last)
}
