// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

// setting is one for which bubbles were published, as a part of the step, with the times of what a rank holds.
type setting struct {
	source, model       string
	ranks, microBatches int
	stages              int                 // per rank; 0: the schedule's own
	each                schedule.StageCosts // ms
	transfer            float64             // ms
	bubbles             map[string]float64
}

// zeroBubble is a setting of Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241): the times that they
// measured on their GPUs (Table 9), and the bubbles that they calculated from them (Table 5).
func zeroBubble(model string, ranks, microBatches int, f, i, w, transfer, oneF1B, zbH1 float64) setting {
	return setting{"Qi et al.", model, ranks, microBatches, 1, schedule.StageCosts{Forward: f, Input: i, Weight: w},
		transfer, map[string]float64{"1f1b": oneF1B, "zb_h1": zbH1}}
}

// ptdp is a setting of PTD-P (Narayanan et al., arXiv:2104.04473), whose formula gives a bubble of (p − 1)/(v·m) of
// the time that a step would take without. The times are of no model.
func ptdp(ranks, microBatches, stages int) setting {
	name, of := "1f1b", float64(ranks-1)/float64(stages*microBatches)
	if stages > 1 {
		name = "interleaved_1f1b"
	}
	return setting{"PTD-P", fmt.Sprintf("v = %d", stages), ranks, microBatches, stages,
		schedule.StageCosts{Forward: 30, Input: 30, Weight: 30}, 0, map[string]float64{name: of / (1 + of)}}
}

var settings = []setting{
	ptdp(8, 16, 1), ptdp(8, 16, 2), ptdp(8, 16, 4), ptdp(8, 64, 1), ptdp(8, 64, 2),
	zeroBubble("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585),
	zeroBubble("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242),
	zeroBubble("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674),
	zeroBubble("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323),
	zeroBubble("6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045),
	zeroBubble("6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554),
	zeroBubble("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397),
}

// names are the schedules of a setting.
func (s setting) names() []string { return slices.Sorted(maps.Keys(s.bubbles)) }

func (s setting) schedule(name string) (*schedule.Schedule, error) {
	return schedule.Load(name, schedule.Shape{Ranks: s.ranks, MicroBatches: s.microBatches, StagesPerRank: s.stages})
}

// costs are those of a schedule's stages.
func (s setting) costs(of *schedule.Schedule) schedule.Costs {
	x := float64(s.ranks) / float64(of.Stages())
	each := schedule.StageCosts{Forward: s.each.Forward * x, Input: s.each.Input * x, Weight: s.each.Weight * x}
	return schedule.Uniform(of.Stages(), each, s.transfer)
}

// bubble is the simulated one of a schedule.
func (s setting) bubble(name string) (float64, error) {
	of, err := s.schedule(name)
	if err != nil {
		return 0, err
	}
	sim, err := of.Simulate(s.costs(of))
	if err != nil {
		return 0, err
	}
	return sim.Idle(), nil
}

// comparison is the table of published, simulated and measured bubbles.
func comparison() (string, error) {
	seen, err := measured()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("| source | | p | m | schedule | published | simulated | measured |\n" +
		"|---|---|--:|--:|---|--:|--:|--:|\n")
	for _, s := range settings {
		for _, name := range s.names() {
			simulated, err := s.bubble(name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&out, "| %s | %s | %d | %d | `%s` | %.4f | %.4f | %.4f |\n", s.source, s.model, s.ranks,
				s.microBatches, name, s.bubbles[name], simulated, seen[s.key(name)])
		}
	}
	return out.String(), nil
}
