// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

// setting is one of the settings of Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241): the times that
// they measured on their GPUs, and the bubbles that they give for them, as a part of the step.
type setting struct {
	model               string
	ranks, microBatches int
	each                schedule.StageCosts // ms
	transfer            float64             // ms
	bubbles             map[string]float64
}

func published(model string, ranks, microBatches int, f, i, w, transfer, oneF1B, zbH1 float64) setting {
	return setting{model, ranks, microBatches, schedule.StageCosts{Forward: f, Input: i, Weight: w}, transfer,
		map[string]float64{"1f1b": oneF1B, "zb_h1": zbH1}}
}

var settings = []setting{
	published("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585),
	published("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242),
	published("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674),
	published("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323),
	published("6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045),
	published("6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554),
	published("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397),
}

// bubble is the simulated one of a schedule.
func (s setting) bubble(name string) (float64, error) {
	of, err := schedule.Load(name, schedule.Shape{Ranks: s.ranks, MicroBatches: s.microBatches})
	if err != nil {
		return 0, err
	}
	sim, err := of.Simulate(schedule.Uniform(of.Stages(), s.each, s.transfer))
	if err != nil {
		return 0, err
	}
	return sim.Idle(), nil
}

// comparison is the table of published and simulated bubbles.
func comparison() (string, error) {
	var out strings.Builder
	out.WriteString("| model | p | m | 1F1B, published | simulated | ZB-H1, published | simulated |\n" +
		"|---|--:|--:|--:|--:|--:|--:|\n")
	for _, s := range settings {
		fmt.Fprintf(&out, "| %s | %d | %d |", s.model, s.ranks, s.microBatches)
		for _, name := range []string{"1f1b", "zb_h1"} {
			simulated, err := s.bubble(name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&out, " %.4f | %.4f |", s.bubbles[name], simulated)
		}
		out.WriteString("\n")
	}
	return out.String(), nil
}
