// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/tensor"
)

// pairs adds parts as ranks are added: neighbours at distance 1, 2, 4, …
func pairs(c *tensor.Ctx, parts []*tensor.Tensor) *tensor.Tensor {
	for d := 1; d < len(parts); d *= 2 {
		for i := 0; i+d < len(parts); i += 2 * d {
			parts[i] = tensor.Add(c, parts[i], parts[i+d])
		}
	}
	return parts[0]
}

// A sum in parts has the bits of its parts, each a separate product, added in a tree, and Ranks gets it before anything
// is added to it.
func TestPartedSumIsATreeOfProducts(t *testing.T) {
	const rows, narrow = 7, 5
	for _, parts := range []int{1, 2, 3, 4, 7} {
		for _, f := range []tensor.Activation{tensor.ActivationNone, tensor.ActivationReLU, tensor.ActivationGELUTanh} {
			for _, fused := range []int{0, 1, 3} { // 0: rowwise
				t.Run(fmt.Sprintf("%d parts, %d fused, %v", parts, fused, f), func(t *testing.T) {
					c := newCtx(t)
					in, out, n := 300*parts, narrow, 300
					if fused > 0 {
						in, out = narrow, fused*300*parts
					}
					draw := func(key uint64, shape ...int) *tensor.Tensor {
						return tensor.Normal(c.NoGrad(), tensor.Float32, key, 0, 1, shape...)
					}
					x, w, bias := draw(1, rows, in), draw(2, in, out), draw(3, out)
					for _, leaf := range []*tensor.Tensor{x, w, bias} {
						leaf.SetRequiresGrad(true)
					}
					given := 0
					twice := func(c *tensor.Ctx, t *tensor.Tensor) (wait func()) { // as two ranks of the same values
						given++
						return func() { tensor.ScaleInto(c, t, 2) }
					}
					parted := c.WithPartedSum(&tensor.PartedSum{Rowwise: fused == 0, Parts: parts, Fused: fused,
						Ranks: twice})
					y := tensor.AddMMActivated(parted, bias, x, w, f)
					dy := draw(4, rows, out)
					all := func(y *tensor.Tensor) (list [][]byte) {
						list = append(list, tensor.ReadBytes(c, y))
						for _, g := range tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{dy},
							[]*tensor.Tensor{x, w, bias}) {
							list = append(list, tensor.ReadBytes(c, tensor.Contiguous(c.NoGrad(), g)))
						}
						return list
					}
					got := all(y)
					require.Equal(t, 1, given)

					var list []*tensor.Tensor
					if fused == 0 {
						for i := range parts {
							list = append(list, tensor.MatMul(c, tensor.Slice(c, x, 1, i*n, (i+1)*n),
								tensor.Slice(c, w, 0, i*n, (i+1)*n)))
						}
						sum := tensor.Affine(c.NoGrad(), pairs(c.NoGrad(), list), 2, 0)
						z := tensor.Add(c.NoGrad(), sum, bias)
						want := map[tensor.Activation]*tensor.Tensor{tensor.ActivationNone: z,
							tensor.ActivationReLU:     tensor.ReLU(c.NoGrad(), z),
							tensor.ActivationGELUTanh: tensor.GELUTanh(c.NoGrad(), z)}[f]
						require.Equal(t, tensor.ReadBytes(c, want), got[0])
						return
					}
					whole := all(tensor.AddMMActivated(c, bias, x, w, f))
					require.Equal(t, whole[0], got[0], "only the gradient of x is a divided sum")
					require.Equal(t, whole[2:], got[2:])
					dz := dy // through the activation
					if f != tensor.ActivationNone {
						z := tensor.AddMM(c.NoGrad(), bias, x, w).SetRequiresGrad(true)
						a := map[tensor.Activation]func(*tensor.Ctx, *tensor.Tensor) *tensor.Tensor{
							tensor.ActivationReLU: tensor.ReLU, tensor.ActivationGELUTanh: tensor.GELUTanh}[f](c, z)
						dz = tensor.Backward(c, []*tensor.Tensor{a}, []*tensor.Tensor{dy}, []*tensor.Tensor{z})[0]
					}
					c = c.NoGrad()
					for i := range parts {
						var part *tensor.Tensor
						for k := range fused {
							at := (k*parts + i) * n
							p := tensor.MatMul(c, tensor.Slice(c, dz, 1, at, at+n),
								tensor.Transpose(c, tensor.Slice(c, w, 1, at, at+n), 0, 1))
							if part == nil {
								part = p
							} else {
								part = tensor.Add(c, part, p)
							}
						}
						list = append(list, part)
					}
					require.Equal(t, tensor.ReadBytes(c, tensor.Affine(c, pairs(c, list), 2, 0)), got[1])
				})
			}
		}
	}
}

// flights is a PartedSum.Ranks that says when sums begin and when they are waited for, between the products of a trace.
// Until then the sum holds another number, which nothing may read.
type flights struct {
	log  []string
	stop int // the event that panics; 0: none does
}

func (f *flights) event(name string) {
	if f.log = append(f.log, name); len(f.log) == f.stop {
		panic("stop")
	}
}

func (f *flights) ranks(c *tensor.Ctx, t *tensor.Tensor) (wait func()) {
	values := tensor.ReadBytes(c, t)
	tensor.FillInto(c, t, 1e9)
	f.event("begin")
	return func() {
		tensor.CopyInto(c, t, tensor.FromBytes(c, values, t.DType(), t.Shape()...))
		f.event("wait")
	}
}

func (f *flights) trace(t *testing.T, c *tensor.Ctx) {
	t.Cleanup(c.Trace(t.Context(), func(k tensor.KernelSpan) {
		if k.FLOPs > 0 {
			f.event("product")
		}
	}))
}

// Ranks add the gradient of a colwise layer's inputs while the weight's is computed, and a rowwise layer's outputs in
// groups of rows, each while the next is computed. The bits are those of all at once.
func TestPartedSumsRunBesideProducts(t *testing.T) {
	const rows, in, out = 300, 512, 512 // of two groups
	for _, lower := range []tensor.DType{tensor.Invalid, tensor.BFloat16} {
		for _, rowwise := range []bool{false, true} {
			c := newCtx(t).Autocast(lower)
			x, w := tensor.Normal(c.NoGrad(), tensor.Float32, 1, 0, 1, rows, in).SetRequiresGrad(true),
				tensor.Normal(c.NoGrad(), tensor.Float32, 2, 0, 1, in, out).SetRequiresGrad(true)
			dy := tensor.Normal(c.NoGrad(), tensor.Float32, 3, 0, 1, rows, out)
			run := func(sum *tensor.PartedSum) (bits [][]byte) {
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					y := tensor.Cast(c, tensor.MatMul(c.WithPartedSum(sum), tensor.ReLU(c, x), w), tensor.Float32)
					bits = append(bits, tensor.ReadBytes(c, y))
					for _, g := range tensor.Backward(c, one(y), one(dy), []*tensor.Tensor{x, w}) {
						bits = append(bits, tensor.ReadBytes(c, tensor.Contiguous(c.NoGrad(), g)))
					}
					return nil
				})
				return bits
			}
			want := run(&tensor.PartedSum{Rowwise: rowwise, Parts: 2})
			var f flights
			f.trace(t, c)
			got := run(&tensor.PartedSum{Rowwise: rowwise, Parts: 2, Ranks: f.ranks})
			require.Equal(t, want, got, "rowwise %v, %v", rowwise, lower)
			order := "product product product begin product wait" // of the gradients, two parts of one first
			if rowwise {
				order = "product product begin product product begin wait wait product product"
			}
			require.Equal(t, order, strings.Join(f.log, " "), "rowwise %v, %v", rowwise, lower)
		}
	}
}

// Groups of rows have the bits of all rows at once, whatever plan the kernels choose for either.
func TestPartedSumsOfGroupsOfRows(t *testing.T) {
	for _, variant := range kernels.Available() {
		t.Run(variant.String(), func(t *testing.T) {
			restore, err := kernels.Force(variant)
			require.NoError(t, err)
			defer restore()
			c := newCtx(t).NoGrad()
			for _, rows := range []int{259, 515} {
				for _, in := range []int{64, 300} {
					sameInGroups(t, c, rows, in, 1030)
				}
			}
		})
	}
}

// sameInGroups compares a rowwise product that ranks add in groups of rows with the one of all rows.
func sameInGroups(t *testing.T, c *tensor.Ctx, rows, in, width int) {
	t.Helper()
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			draw := func(key uint64, shape ...int) *tensor.Tensor {
				return tensor.Cast(c, tensor.Normal(c, tensor.Float32, key, 0, 1, shape...), dt)
			}
			x, w, columns := draw(1, rows, in), draw(2, in, width), tensor.Transpose(c, draw(3, width, in), 0, 1)
			for _, m := range []*tensor.Tensor{w, columns} {
				groups := 0
				alone := func(c *tensor.Ctx, t *tensor.Tensor) (wait func()) { groups++; return func() {} }
				of := func(s tensor.PartedSum) []byte {
					s.Rowwise, s.Parts = true, 2
					return tensor.ReadBytes(c, tensor.MatMul(c.WithPartedSum(&s), x, m))
				}
				if !bytes.Equal(of(tensor.PartedSum{}), of(tensor.PartedSum{Ranks: alone})) {
					t.Errorf("%v %dx%d by %dx%d: %d groups have other bits", dt, rows, in, in, width, groups)
				}
				require.Greater(t, groups, 1)
			}
			return nil
		})
	}
}

// Whatever fails while sums are under way, they have ended before the memory is given back.
func TestPartedSumsEndBeforeTheirMemory(t *testing.T) {
	for _, rowwise := range []bool{false, true} {
		for stop := 1; ; stop++ {
			c := newCtx(t)
			x, w := tensor.Ones(c, tensor.Float32, 300, 512).SetRequiresGrad(true),
				tensor.Ones(c, tensor.Float32, 512, 512).SetRequiresGrad(true)
			dy := tensor.Ones(c, tensor.Float32, 300, 512)
			before := inUse(c)
			f := flights{stop: stop}
			f.trace(t, c)
			begun := 0
			sum := &tensor.PartedSum{Rowwise: rowwise, Parts: 2}
			sum.Ranks = func(c *tensor.Ctx, t *tensor.Tensor) func() {
				wait := f.ranks(c, t)
				begun++
				return func() { begun--; wait() }
			}
			var failed any
			func() {
				defer func() { failed = recover() }()
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					tensor.Backward(c, one(tensor.MatMul(c.WithPartedSum(sum), x, w)), one(dy),
						[]*tensor.Tensor{x, w})
					return nil
				})
			}()
			require.Zero(t, begun, "rowwise %v, stopped at %v", rowwise, f.log)
			require.Equal(t, before, inUse(c), "rowwise %v, stopped at %v", rowwise, f.log)
			if failed == nil {
				require.Greater(t, stop, 5)
				break
			}
			require.Equal(t, "stop", failed)
		}
	}
}

func TestPartedSumMisuse(t *testing.T) {
	c := newCtx(t)
	x, w := tensor.Zeros(c, tensor.Float32, 4, 6), tensor.Zeros(c, tensor.Float32, 6, 6)
	ids := tensor.Zeros(c, tensor.Int64, 4)
	parted := c.WithPartedSum(&tensor.PartedSum{Parts: 4})
	require.ErrorContains(t, tensor.Try(func() { tensor.Linear(parted, x, w, nil) }),
		"6 features: want a multiple of 4")
	const refused = "its weight is divided among ranks: want a linear layer"
	require.ErrorContains(t, tensor.Try(func() { tensor.Embedding(parted, w, ids) }), refused)
	require.ErrorContains(t, tensor.Try(func() { tensor.LinearCrossEntropy(parted, x, w, nil, ids, -100) }), refused)
	require.ErrorContains(t, tensor.Try(func() {
		tensor.MatMul(parted, tensor.Unsqueeze(c, x, 0), tensor.Unsqueeze(c, w, 0))
	}), refused)
	require.NoError(t, tensor.Try(func() { tensor.Embedding(parted.Sub("part"), w, ids) }), "Sub ends it")
	require.ErrorContains(t, tensor.Try(func() { c.WithPartedSum(&tensor.PartedSum{}) }), "want at least 1 part")
	require.ErrorContains(t, tensor.Try(func() {
		c.WithPartedSum(&tensor.PartedSum{Rowwise: true, Parts: 1, Fused: 2})
	}), "fused matrices in colwise layers only")
}
