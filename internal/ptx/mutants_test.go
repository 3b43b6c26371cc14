// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMutants measures what the checkers and a comparison of results find together in layer norm.
func TestMutants(t *testing.T) {
	src, err := os.ReadFile("testdata/rows.ptx")
	require.NoError(t, err)
	mutants, err := Mutants(string(src), "layer_norm")
	require.NoError(t, err)
	require.Greater(t, len(mutants), 200)
	const rows, n = 2, 70
	type results [rows*n + 2*rows]float32
	d := newDevice(t)
	x, w, b := d.put(normals(rows*n, 1)), d.put(normals(n, 2)), d.put(normals(n, 3))
	// Blocks of one warp, of a few and of more than the compiler unrolls for.
	run := func(src string) (out [3]results, err error) {
		m, err := Parse(src)
		if err != nil {
			return out, err
		}
		k, err := m.Kernel("layer_norm")
		if err != nil {
			return out, err
		}
		for i, block := range []uint32{32, 64, 352} {
			y := d.alloc(4 * len(out[i]))
			_, err = k.Run(d.Memory, Launch{Grid: [3]uint32{rows, 1, 1}, Block: [3]uint32{block, 1, 1},
				Seed: 1, CheckRaces: true,
				MaxInstructions: 1 << 20}, pack(t, k, x, w, b, y, y+4*rows*n, int32(n), float32(0.5)))
			if err != nil {
				return out, err
			}
			if defined, _ := d.Defined(y, 4*len(out[i])); !defined {
				return out, errors.New("not all results are written")
			}
			d.get(y, out[i][:])
			require.NoError(t, d.Free(y))
		}
		return out, nil
	}
	right, err := run(string(src))
	require.NoError(t, err)
	found, faults := 0, 0
	for _, m := range mutants {
		out, err := run(m.Src)
		var f *Fault
		if errors.As(err, &f) {
			faults++
		}
		if err != nil || out != right {
			found++
		} else {
			t.Logf("lives: line %d: %s", m.Line, m.What)
		}
	}
	t.Logf("%d of %d mutants found, %d by checkers", found, len(mutants), faults)
	require.GreaterOrEqual(t, 10*found, 9*len(mutants))
}
