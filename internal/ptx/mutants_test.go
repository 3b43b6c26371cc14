// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// suite runs a kernel as a suite of tests would and returns what it wrote.
type suite struct {
	file, kernel string
	run          func(d device, k *Kernel) ([]byte, error)
}

// trial launches a kernel under all checks and reads n bytes of results, which must be defined.
func trial(d device, k *Kernel, grid, block uint32, at uint64, n int, args ...any) ([]byte, error) {
	_, err := k.Run(d.Memory, Launch{Grid: [3]uint32{grid, 1, 1}, Block: [3]uint32{block, 1, 1},
		Seed: 1, CheckRaces: true,
		MaxInstructions: 1 << 21}, pack(d.TB, k, args...))
	if err != nil {
		return nil, err
	}
	out := make([]byte, n)
	require.NoError(d, d.Read(out, at))
	if defined, _ := d.Defined(at, n); !defined {
		return nil, errors.New("not all results are written")
	}
	return out, nil
}

var suites = []suite{
	{"rows.ptx", "layer_norm", func(d device, k *Kernel) (all []byte, err error) {
		const rows, n = 2, 360
		x, w, b := d.put(normals(rows*n, 1)), d.put(normals(n, 2)), d.put(normals(n, 3))
		// Blocks of one warp, of a few and of more than the compiler unrolls for.
		for _, block := range []uint32{32, 64, 352} {
			y := d.alloc(4*rows*n + 8*rows)
			out, err := trial(d, k, rows, block, y, 4*rows*n+8*rows, x, w, b, y, y+4*rows*n, int32(n), float32(0.5))
			if err != nil {
				return nil, err
			}
			all = append(all, out...)
		}
		return all, nil
	}},
	{"rows.ptx", "cross_entropy", func(d device, k *Kernel) (all []byte, err error) {
		const rows, n = 8, 360
		values := normals(rows*n, 1)
		for i := range n { // rows that overflow unless the largest value is subtracted, wherever it is
			values[4*n+i] = 100 + float32(i)
			values[5*n+i] = -values[4*n+i]
			values[6*n+(i+180)%n] = values[4*n+i]
			values[7*n+i] = -700
		}
		values[7*n+307] = 500
		x, targets := d.put(each(values, bf16)), d.put([]int64{0, n - 1, n, -5, 60, 3, 34, 307})
		for _, block := range []uint32{32, 64, 352} {
			const losses, gradients = 4 * rows, 2 * rows * n
			y := d.put(make([]byte, 8+losses+gradients))
			out, err := trial(d, k, rows, block, y, 8+losses+gradients, x, targets, y+8, y+8+losses, y, int32(n),
				float32(0.5))
			if err != nil {
				return nil, err
			}
			all = append(all, out...)
		}
		return all, nil
	}},
	{"adamw.ptx", "adamw", func(d device, k *Kernel) (all []byte, err error) {
		const n, short, whole = 1500, 700, 14*1500 + 12*700
		type entry struct {
			W, M, V, G, Half uint64
			N                int64
			Decay            float32
			_                uint32
		}
		gradients := d.put(normals(n, 4))
		chunks := d.put([]int32{0, 0, 0, 1, 1, 0})
		for _, block := range []uint32{256, 96, 160} {
			y := d.put(make([]byte, whole))
			other := y + 14*n
			for i, v := range []float32{1, 2, 3} { // something else in each array
				state := make([]byte, 4*n)
				for j := range n {
					le.PutUint32(state[4*j:], uint32(fl(v+float32(j)/n)))
				}
				require.NoError(d, d.Write(y+uint64(4*n*i), state))
				require.NoError(d, d.Write(other+uint64(4*short*i), state[:4*short]))
			}
			tensors := d.put([]entry{{y, y + 4*n, y + 8*n, gradients, y + 12*n, n, 0.01, 0},
				{other, other + 4*short, other + 8*short, gradients, 0, short, 0.5, 0}})
			out, err := trial(d, k, 3, block, y, whole, tensors, chunks, []float32{0.1, 0.9, 0.99, 1e-3, 0.19, 0.0199})
			if err != nil {
				return nil, err
			}
			all = append(all, out...)
		}
		return all, nil
	}},
}

// TestMutants measures what the checkers and a comparison of results find together: nine of ten mistakes. It tries
// every
// sixth mutant; LOCKSTEP_ALL_MUTANTS=1 tries all and lists those that live.
func TestMutants(t *testing.T) {
	step := 6
	if os.Getenv("LOCKSTEP_ALL_MUTANTS") != "" {
		step = 1
	}
	for _, s := range suites {
		t.Run(s.kernel, func(t *testing.T) {
			src, err := os.ReadFile("testdata/" + s.file)
			require.NoError(t, err)
			mutants, err := Mutants(string(src), s.kernel)
			require.NoError(t, err)
			require.Greater(t, len(mutants), 200)
			run := func(src string) (string, error) {
				m, err := Parse(src)
				if err != nil {
					return "", err
				}
				k, err := m.Kernel(s.kernel)
				if err != nil {
					return "", err
				}
				out, err := s.run(newDevice(t), k)
				return string(out), err
			}
			right, err := run(string(src))
			require.NoError(t, err)
			tried, found, faults := 0, 0, 0
			for i := 0; i < len(mutants); i += step {
				tried++
				out, err := run(mutants[i].Src)
				var f *Fault
				if errors.As(err, &f) {
					faults++
				}
				if err != nil || out != right {
					found++
				} else if step == 1 {
					t.Logf("lives: line %d: %s", mutants[i].Line, mutants[i].What)
				}
			}
			t.Logf("%d of %d mutants found, %d by checkers", found, tried, faults)
			require.GreaterOrEqual(t, 100*found, 85*tried, "a sample; of all it is nine of ten")
		})
	}
}
