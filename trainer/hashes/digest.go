// SPDX-License-Identifier: Apache-2.0

package hashes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Digest is the hash of what a run has computed: the learning rate, the losses and the gradient norm of each step, and
// the weights and the optimizer's state after the last. Runs with the same bits have the same, on whichever ranks. It
// is an error if a step from the first to the last is missing, or if ranks differ that should have the same.
func (r *Run) Digest() (digest Sum, steps int, err error) {
	all := r.steps()
	var last *view
	for _, n := range all {
		v := r.step(n)
		if v.begins {
			continue
		}
		if steps++; int64(steps) != n {
			return 0, 0, fmt.Errorf("hashes: %s: step %d is missing: want the records of all ranks, from the first "+
				"step on", r.Path, steps)
		}
		text := fmt.Sprintf("step %d: %s, %s, %s", n, Float(v.lr), strings.Join(v.losses, " "), v.norm)
		digest, last = digest.Add(text, 1), v
	}
	if last == nil {
		return 0, 0, fmt.Errorf("hashes: %s has no steps: want the output folder of a run with record_hashes", r.Path)
	}
	for what, of := range map[string]map[string]ranked{"state": last.state, "weights": last.weights} {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if h := of[name]; len(h.other) > 0 {
				return 0, 0, fmt.Errorf("hashes: %s: %s of %s after step %d: ranks %v have others than ranks %v",
					r.Path, what, name, steps, h.other, h.ranks)
			}
			digest = digest.Add(what+" "+name, of[name].sum)
		}
	}
	return digest, steps, nil
}
