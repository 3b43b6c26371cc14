// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/bench/internal/workers"
)

// What counters say of a process is what the system says: the parts of a divided model that its formulas predict, and
// beside them blocks that the next step takes, shared memory, Go's and the program.
func TestMemoryOfAProcess(t *testing.T) {
	b := small(divided)
	b.Vocabulary, b.Width, b.Layers, b.Parts, b.MicroBatches, b.Steps = 80000, 128, 1, 2, 1, 1
	b.cores = workers.Pin(b.Ranks, b.cores)
	reports, err := b.round(divided)
	require.NoError(t, err)
	h := b.Width
	parts, whole := (12*h*h+7*h+b.Vocabulary*h)/2, 6*h+(b.Block+2)*h // see accelerate/tp: TestMemoryOfARank
	for _, r := range reports {
		require.InEpsilon(t, 16*(parts+whole), r.Tensors, 0.02)
		m := r.Memory
		t.Logf("%+v", r)
		require.InEpsilon(t, r.Tensors+r.Kept+m.Shared+m.Go+m.Files, m.PSS, 0.05)
	}
}
