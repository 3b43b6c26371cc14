// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestHookByName(t *testing.T) {
	for name, want := range map[string]Hook{"no": AllReduce, "bf16": BF16Compress, "fp16": FP16Compress} {
		h, err := HookByName(name, nil)
		require.NoError(t, err)
		require.Equal(t, want, h)
		require.Equal(t, name, h.Name())
		require.Equal(t, name != "no", h.Lossy())
	}
	_, err := HookByName("fp8", nil)
	require.EqualError(t, err,
		`ddp: unknown communication hook "fp8": want one of bf16, fp16, int8, no, power_sgd, top_k`)
	h, err := HookByName("power_sgd", map[string]any{"matrix_approximation_rank": 4})
	require.NoError(t, err)
	require.Equal(t, 4, h.(*powerSGD).Rank)
	require.Equal(t, int64(1000), h.(*powerSGD).StartIter, "the others have their defaults")
	_, err = HookByName("power_sgd", map[string]any{"rank": 4})
	require.ErrorContains(t, err, `settings of the communication hook power_sgd: json: unknown field "rank"`)
}

// Compression works where the numbers lie, in pieces of any number.
func TestCompressInPlace(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 16, 10000, piece - 1, piece, piece + 1, 3 * piece} {
		c := tensor.NewCtx(tensor.CPU())
		numbers, rounded, want := make([]float32, n), make([]dtype.BF16, n), make([]float32, n)
		for i := range numbers {
			numbers[i] = float32(r.NormFloat64())
			rounded[i] = dtype.ToBF16(numbers[i])
			want[i] = rounded[i].Float32()
		}
		wide := tensor.FromSlice(c, numbers, n)
		half := tensor.Slice(c, wide.Bits(tensor.BFloat16), 0, 0, n)
		compress(c, half, wide)
		require.Equal(t, rounded, tensor.ToSlice[dtype.BF16](c, half))
		expand(c, wide, half)
		require.Equal(t, want, tensor.ToSlice[float32](c, wide))
	}
}

// compressed is what BF16Compress makes of the ranks' float32 gradients, by its definition.
func compressed(grads [][]byte) []byte {
	var inputs [][]byte
	for _, g := range grads {
		var half []byte
		for at := 0; at < len(g); at += 4 {
			x := math.Float32frombits(binary.LittleEndian.Uint32(g[at:]))
			half = binary.LittleEndian.AppendUint16(half, uint16(dtype.ToBF16(x)))
		}
		inputs = append(inputs, half)
	}
	var out []byte
	for sum := commtest.Combine(inputs, tensor.BFloat16, comm.Sum); len(sum) > 0; sum = sum[2:] {
		x := dtype.BF16(binary.LittleEndian.Uint16(sum)).Float32()
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

// float32 gradients travel as bfloat16, in half the bytes; others as they are.
func TestBF16Compress(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		onRanks(t, n, func(g *comm.Group) error {
			c := tensor.NewCtx(tensor.CPU())
			params := newParams(c)
			r, err := New(c, g, params, Options{Exchange: strategy.Exchange{BucketBytes: 700}, Hook: BF16Compress})
			require.NoError(t, err)
			for step := range 3 {
				if err := exchange(t, r, step, always); err != nil {
					return err
				}
				for i, p := range params {
					sum := want(step, i, n, always)
					if gradDType(i) == tensor.Float32 {
						var grads [][]byte
						for rank := range n {
							grads = append(grads, gradient(step, rank, i))
						}
						exact := sum
						sum = compressed(grads)
						if len(sum) > 100 {
							require.NotEqual(t, exact, sum, "it is lossy")
						}
					}
					require.Len(t, tensor.ReadBytes(c, p.Grad()), len(sum))
					require.Equal(t, string(sum), string(tensor.ReadBytes(c, p.Grad())), p.Name)
				}
			}
			bytes := map[string]int{}
			for _, e := range g.Flight().Entries {
				if e.Op == comm.AllReduce && e.Label != "parameters in use" {
					bytes[e.DTypeName]++
				}
			}
			require.NotContains(t, bytes, "float32")
			require.Contains(t, bytes, "bfloat16")
			require.Contains(t, bytes, "float64")
			return nil
		})
	}
}

// doubling is a hook of a user's: twice the sum, and a record of what it was given.
type doubling struct{ seen []Bucket }

func (*doubling) Name() string { return "doubling" }

func (*doubling) Lossy() bool { return true }

func (d *doubling) Begin(g *comm.Group, b Bucket) func(context.Context) error {
	d.seen = append(d.seen, b)
	wait := AllReduce.Begin(g, b)
	return func(ctx context.Context) error {
		if err := wait(ctx); err != nil {
			return err
		}
		tensor.ScaleInto(b.Ctx, b.Grads, 2)
		return nil
	}
}

func TestUsersHook(t *testing.T) {
	onRanks(t, 2, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		params := sized(3, 20)
		h := &doubling{}
		r, err := New(c, g, params, Options{Exchange: strategy.Exchange{BucketBytes: 64}, Hook: h})
		require.NoError(t, err)
		for _, p := range params {
			p.SwapGrad(p.SwapGrad(nil, false), true)
			tensor.FillInto(c, p.Grad(), float64(g.Rank()+1))
		}
		require.NoError(t, r.Finish(t.Context()))
		require.Equal(t, []float32{6, 6, 6}, tensor.ToSlice[float32](c, params[0].Grad()))
		require.Len(t, h.seen, 2)
		for i, b := range h.seen {
			require.Equal(t, i, b.Index)
			require.Equal(t, tensor.Float32, b.Grads.DType())
			require.Equal(t, []int{128, 64}[i], b.Grads.Bytes())
			require.Equal(t, b.Grads.Numel(), b.Buffer().Len())
			require.NotZero(t, b.Layout)
		}
		require.Equal(t, "bucket 0 (p1)", h.seen[0].Label)
		return nil
	})
}
