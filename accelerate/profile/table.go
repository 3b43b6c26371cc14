// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// steps is the number of recorded steps.
func (p *Profiler) steps() int { return max(p.step-p.o.SkipFirst, 0) }

// columns are the table's: a name, then numbers.
const columns = "%-22s %7s %10s %9s %9s %8s %11s\n"

// table prints phases, collectives and kernels, the longest first.
func (p *Profiler) table(out io.Writer) error {
	var b bytes.Buffer
	spent := p.end.Sub(p.begin)
	line := func(name string, cells ...string) {
		var row [6]string
		copy(row[:], cells)
		line := fmt.Sprintf(columns, name, row[0], row[1], row[2], row[3], row[4], row[5])
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	cells := func(t *total) []string {
		return []string{strconv.Itoa(t.calls), milliseconds(t.time), percent(t.time.Seconds() / spent.Seconds())}
	}
	fmt.Fprintf(&b, "rank %d: %s from step %d on, %s ms in all; ceilings of the device: %.1f GFLOP/s, %.1f "+
		"GB/s\n\n",
		p.o.Rank, quantity.Of(p.steps(), "step"), p.o.SkipFirst+1, milliseconds(spent),
		p.ceilings.FLOPs/1e9, p.ceilings.Bytes/1e9)
	if p.dropped > 0 {
		fmt.Fprintf(&b, "the trace leaves %s out: record fewer steps\n\n", quantity.Of(p.dropped, "event"))
	}
	line("phase", "calls", "ms", "of time")
	for _, t := range longest(p.phases) {
		line(t.name, cells(t)...)
	}
	if len(p.calls) > 0 {
		b.WriteByte('\n')
		line("collective", "calls", "ms", "of time", "", "GB/s")
		for _, t := range longest(p.calls) {
			line(t.name, append(cells(t), "", rate(t.bytes, t.time))...)
		}
	}
	b.WriteByte('\n')
	line("kernel", "calls", "ms", "of time", "GFLOP/s", "GB/s", "of ceiling")
	for _, t := range longest(p.kernels) {
		line(t.name, append(cells(t), rate(t.flops, t.time), rate(t.bytes, t.time), percent(p.ceilings.share(t)))...)
	}
	between := spent - p.inKernel
	line("between kernels", "", milliseconds(between), percent(between.Seconds()/spent.Seconds()))
	_, err := out.Write(b.Bytes())
	return err
}

// logTable logs the kernels that took the most time, a record each.
func (p *Profiler) logTable() {
	spent := p.end.Sub(p.begin)
	p.o.Log.Info("profile written", "dir", p.o.Dir, "steps", p.steps(), "seconds", spent.Seconds(), "in_kernels",
		percent(p.inKernel.Seconds()/spent.Seconds()),
		"ceiling_gflops", int(p.ceilings.FLOPs/1e9), "ceiling_gbs", int(p.ceilings.Bytes/1e9))
	for i, t := range longest(p.kernels) {
		if i == 10 {
			break
		}
		p.o.Log.Info("profile", "kernel", t.name, "calls", t.calls, "ms", milliseconds(t.time), "of_time",
			percent(t.time.Seconds()/spent.Seconds()),
			"gflops", rate(t.flops, t.time), "gbs", rate(t.bytes, t.time), "of_ceiling", percent(p.ceilings.share(t)))
	}
}

// longest sorts by time, then by name.
func longest(totals map[string]*total) []*total {
	return slices.SortedFunc(maps.Values(totals), func(a, b *total) int {
		return cmp.Or(cmp.Compare(b.time, a.time), cmp.Compare(a.name, b.name))
	})
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1e3) }

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// rate is billions per second; "-" of nothing.
func rate(amount float64, d time.Duration) string {
	if amount == 0 || d <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", amount/d.Seconds()/1e9)
}
