// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/callbacks"
)

// Keep names the checkpoints that Rotate must not delete after the save of a step: the best, those of save_keep_best
// and those of save_keep_every.
func (c *Checkpointer) Keep(state *callbacks.State) (names []string) {
	if best := state.BestModelCheckpoint; best != nil {
		names = append(names, *best)
	}
	if c.Args.SaveKeepBest == 0 && c.Args.SaveKeepEvery == 0 {
		return names
	}
	steps := c.savedSteps(state.GlobalStep)
	for _, step := range steps {
		if every := int64(c.Args.SaveKeepEvery); every > 0 && step%every == 0 {
			names = append(names, folderOf(step))
		}
	}
	for _, step := range bestSteps(steps, state.LogHistory, c.Args.BestMetric(), c.Args.BestIsGreater(),
		c.Args.SaveKeepBest) {
		names = append(names, folderOf(step))
	}
	return names
}

func folderOf(step int64) string { return fmt.Sprintf("checkpoint-%d", step) }

// savedSteps are the steps that have a checkpoint in output_dir, or are about to.
func (c *Checkpointer) savedSteps(now int64) []int64 {
	steps := []int64{now}
	used, err := c.Store.Used()
	if err != nil {
		c.Log.Warn("output_dir cannot be listed", "err", err)
	}
	for _, name := range used {
		var step int64
		if n, _ := fmt.Sscanf(name, "checkpoint-%d", &step); n == 1 && step != now && name == folderOf(step) {
			steps = append(steps, step)
		}
	}
	return steps
}

// bestSteps are those of n steps whose evaluations have the best metric, of equal ones the later. Steps without an
// evaluation are none of them, and neither are those whose metric is NaN.
func bestSteps(steps []int64, history []callbacks.Record, metric string, greater bool, n int) []int64 {
	values := map[int64]float64{}
	for _, rec := range history {
		step, _ := rec.Number("step")
		if v, ok := rec.Number(metric); ok && v == v {
			values[int64(step)] = v
		}
	}
	steps = slices.DeleteFunc(slices.Clone(steps), func(step int64) bool {
		_, evaluated := values[step]
		return !evaluated
	})
	slices.SortFunc(steps, func(a, b int64) int {
		order := cmp.Compare(values[a], values[b])
		if greater {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(b, a))
	})
	return steps[:min(n, len(steps))]
}
