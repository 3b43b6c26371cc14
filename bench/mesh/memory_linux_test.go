// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/bench/internal/workers"
)

// What counters say of a process is what the system says: the parts of a divided model that its formulas predict, the
// most that a step took beside them, the little that is kept of gaps between blocks, shared memory, Go's and the
// program.
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
		const slack, slab = 4 << 20, 4 << 20 // of package internal/backend/cpu
		require.Less(t, r.Tensors+r.Kept, r.Peak+slack+slab)
		all := r.Tensors + r.Kept + m.Shared + m.Go + m.Files
		require.Less(t, m.PSS, all+all/50)
		require.Greater(t, m.PSS, all-m.Go, "Go's is not all touched")
	}
}
