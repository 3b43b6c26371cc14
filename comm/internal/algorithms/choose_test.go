// SPDX-License-Identifier: Apache-2.0

package algorithms_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/algorithms"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func TestChoice(t *testing.T) {
	const fast, tree = true, false
	for _, k := range []struct {
		op    comm.Op
		d     dtype.DType
		count int
		ranks int
		fast  bool
		want  algorithms.Algorithm
	}{
		{comm.AllReduce, dtype.Float32, 1 << 24, 8, tree, algorithms.Direct},
		{comm.AllReduce, dtype.Float32, 1 << 24, 8, fast, algorithms.Ring},
		{comm.AllReduce, dtype.Float32, 1 << 24, 2, fast, algorithms.Direct},
		{comm.AllReduce, dtype.BFloat16, 1 << 24, 8, fast, algorithms.Direct},
		{comm.Reduce, dtype.Float32, 1 << 24, 8, fast, algorithms.Direct},
		{comm.AllReduce, dtype.Float32, 4 << 18, 4, fast, algorithms.Ring},
		{comm.AllReduce, dtype.Float32, 4<<18 - 1, 4, fast, algorithms.Direct},
		{comm.ReduceScatter, dtype.Float32, 1 << 18, 4, fast, algorithms.Ring},
		{comm.ReduceScatter, dtype.Float32, 1<<18 - 1, 4, fast, algorithms.Direct},
	} {
		c := &comm.Call{Signature: comm.Signature{Op: k.op, DType: k.d, Count: k.count, Fast: k.fast}}
		require.Equal(t, k.want, algorithms.Choose(c, k.ranks), "%v on %d ranks", c.Signature, k.ranks)
	}
}

// The documentation prints the table.
func TestTableIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/from-one-core-to-many.md")
	require.NoError(t, err)
	table := "| reduction over connections | algorithm |\n|---|---|\n"
	for _, row := range algorithms.Table {
		table += fmt.Sprintf("| %s | %s |\n", row.When, row.Algorithm)
	}
	require.Contains(t, string(page), table)
}
