// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// hooked is a reducer with a hook over some parameters.
type hooked struct {
	t      *testing.T
	c      *tensor.Ctx
	g      *comm.Group
	r      *Reducer
	params []tensor.Named
}

func newHooked(t *testing.T, g *comm.Group, h Hook, bucket int, shapes map[string][]int) *hooked {
	c := tensor.NewCtx(tensor.CPU())
	x := &hooked{t: t, c: c, g: g}
	var names []string
	for name := range shapes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		x.params = append(x.params, tensor.Named{Name: name,
			Tensor: tensor.Zeros(c.NoGrad(), tensor.Float32, shapes[name]...).SetRequiresGrad(true)})
	}
	var err error
	x.r, err = New(c, g, x.params, Options{Exchange: strategy.Exchange{BucketBytes: bucket}, Hook: h})
	require.NoError(t, err)
	return x
}

// step exchanges gradients and returns the results.
func (x *hooked) step(grads func(name string, n int) []float32) map[string][]float32 {
	_, err := x.r.Rebuild(x.t.Context())
	require.NoError(x.t, err)
	out := map[string][]float32{}
	for i, p := range x.params {
		p.ZeroGrad()
		v := p.SwapGrad(nil, false)
		tensor.CopyInto(x.c.NoGrad(), v, tensor.FromSlice(x.c.NoGrad(), grads(p.Name, p.Numel()), p.Shape()...))
		p.SwapGrad(v, true)
		x.r.Ready(i)
	}
	require.NoError(x.t, x.r.Finish(x.t.Context()))
	for _, p := range x.params {
		out[p.Name] = tensor.ToSlice[float32](x.c, p.Grad())
	}
	return out
}

var manyShapes = map[string][]int{"a": {40, 30}, "b": {40}, "c": {9, 5, 3, 3}, "d": {700}, "e": {2, 3}, "f": {50, 40}}

// noise is a rank's gradient of a step.
func noise(step, rank int) func(name string, n int) []float32 {
	return func(name string, n int) []float32 {
		r := rand.New(rand.NewPCG(uint64(step*100+rank), uint64(name[0])))
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * math.Pow(10, float64(r.IntN(3)-1)))
		}
		return x
	}
}

func hooks() map[string]func() Hook {
	return map[string]func() Hook{
		"power_sgd":            PowerSGD{Rank: 2, StartIter: 1, MinRate: 1, ErrorFeedback: true, WarmStart: true}.New,
		"power_sgd, cold":      PowerSGD{Rank: 1, MinRate: 2, ErrorFeedback: true}.New,
		"top_k":                TopK{Density: 0.1, ErrorFeedback: true}.New,
		"top_k, no feedback":   TopK{Density: 0.1}.New,
		"int8":                 Int8{BlockSize: 64}.New,
		"int8, one block each": DefaultInt8().New,
		"fp16":                 func() Hook { return FP16Compress },
	}
}

// All ranks get the same bits, with any buckets, and a run that takes up the state of another continues with its bits.
func TestCompressedBits(t *testing.T) {
	const steps, cut = 6, 3
	for name, make := range hooks() {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{2, 3} {
				var mu sync.Mutex
				var want []map[string][]float32 // by step, of whichever rank came first
				saved := map[int]HookState{}
				agree := func(step int, got map[string][]float32) {
					mu.Lock()
					defer mu.Unlock()
					if step == len(want) {
						want = append(want, got)
					}
					for k, x := range got {
						for i, v := range x {
							if math.Float32bits(want[step][k][i]) != math.Float32bits(v) {
								t.Errorf("step %d: %s[%d] is %v: want %v", step, k, i, v, want[step][k][i])
								return
							}
						}
					}
				}
				for _, bucket := range []int{0, 3000, 1} {
					onRanks(t, n, func(g *comm.Group) error {
						h := make()
						x := newHooked(t, g, h, bucket, manyShapes)
						for step := range steps {
							agree(step, x.step(noise(step, g.Rank())))
							if s, ok := h.(Stateful); ok && step == cut-1 {
								text, err := json.Marshal(s.State()) // a copy
								require.NoError(t, err)
								var copied HookState
								require.NoError(t, json.Unmarshal(text, &copied))
								mu.Lock()
								saved[g.Rank()] = copied
								mu.Unlock()
							}
						}
						return nil
					})
				}
				onRanks(t, n, func(g *comm.Group) error {
					h := make()
					x := newHooked(t, g, h, 2000, manyShapes)
					if s, ok := h.(Stateful); ok {
						s.SetState(saved[g.Rank()])
					}
					for step := cut; step < steps; step++ {
						agree(step, x.step(noise(step, g.Rank())))
					}
					return nil
				})
			}
		})
	}
}

// With error feedback nothing is lost: what all steps sent and what is still owed is the sum of all gradients.
func TestErrorFeedbackSumsToTheGradient(t *testing.T) {
	const n, steps = 3, 8
	for _, name := range []string{"power_sgd", "power_sgd, cold", "top_k"} {
		total := map[string][]float64{}
		var mu sync.Mutex
		add := func(name string, x []float32, sign float64) {
			mu.Lock()
			defer mu.Unlock()
			if total[name] == nil {
				total[name] = make([]float64, len(x))
			}
			for i, v := range x {
				total[name][i] += sign * float64(v)
			}
		}
		onRanks(t, n, func(g *comm.Group) error {
			h := hooks()[name]().(Stateful)
			x := newHooked(t, g, h, 0, manyShapes)
			for step := range steps {
				got := x.step(func(name string, n int) []float32 {
					v := noise(step, g.Rank())(name, n)
					add(name, v, 1)
					return v
				})
				for k, v := range got {
					if g.Rank() == 0 {
						add(k, v, -1)
					}
				}
			}
			owed := h.State().Own
			require.NotEmpty(t, owed)
			for k, v := range owed {
				add(k, v, -1)
			}
			return nil
		})
		for k, x := range total {
			for i, v := range x {
				require.InDelta(t, 0, v, 2e-3, "%s: %s[%d]", name, k, i)
			}
		}
	}
}

// With density 1 the bits are those of no compression.
func TestTopKOfAll(t *testing.T) {
	results := [2]map[string][]float32{}
	for i, h := range []func() Hook{func() Hook { return AllReduce }, TopK{Density: 1, ErrorFeedback: true}.New} {
		onRanks(t, 4, func(g *comm.Group) error {
			got := newHooked(t, g, h(), 0, manyShapes).step(noise(0, g.Rank()))
			if g.Rank() == 0 {
				results[i] = got
			}
			return nil
		})
	}
	require.Equal(t, results[0], results[1])
}

func TestLargest(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	require.Equal(t, []int{1, 3}, largest([]float32{1, -5, 2, 4, 0}, 2))
	require.Equal(t, []int{0, 1}, largest([]float32{2, -2, 2, 1}, 2), "the first of equal ones")
	require.Equal(t, []int{2, 3}, largest([]float32{1, 3, inf, nan}, 2))
	require.Equal(t, []int{0, 1, 2}, largest([]float32{0, 0, 0, 0}, 3))
	r := rand.New(rand.NewPCG(1, 1))
	x := make([]float32, 5000)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return -int(math.Copysign(1, math.Abs(float64(x[a]))-math.Abs(float64(x[b]))))
	})
	want := slices.Sorted(slices.Values(order[:321]))
	require.Equal(t, want, largest(x, 321))
}

// int8 is as near as it promises.
func TestInt8Bound(t *testing.T) {
	const n, size = 3, 64
	onRanks(t, n, func(g *comm.Group) error {
		got := newHooked(t, g, Int8{BlockSize: size}.New(), 0, manyShapes).step(noise(0, g.Rank()))
		largestOf := func(x []float32) (top float64) {
			for _, v := range x {
				top = max(top, math.Abs(float64(v)))
			}
			return top
		}
		differs := false
		for name, y := range got {
			for lo := 0; lo < len(y); lo += size {
				hi := min(lo+size, len(y))
				sum, bound := make([]float32, hi-lo), 0.0
				for r := range n {
					x := noise(0, r)(name, len(y))[lo:hi]
					bound += largestOf(x) / 254
					for i, v := range x {
						sum[i] += v
					}
				}
				bound += (largestOf(sum) + bound) / 254
				for i, v := range y[lo:hi] {
					require.InDelta(t, sum[i], v, bound*1.0001, "%s[%d]", name, lo+i)
					differs = differs || sum[i] != v
				}
			}
		}
		require.True(t, differs, "it is lossy")
		return nil
	})
}

// int8 keeps the memory of its blocks from step to step.
func TestInt8Allocations(t *testing.T) {
	const n, steps = 1 << 20, 8
	onRanks(t, 2, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		grads := tensor.Zeros(c, tensor.Float32, n)
		b := Bucket{Grads: grads, Ctx: c, Parts: []Part{{Name: "weight", Grads: tensor.Reshape(c, grads, 1024, -1)}}}
		h := DefaultInt8().New()
		step := func() { require.NoError(t, h.Begin(g, b)(t.Context())) }
		step()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range steps {
			step()
		}
		runtime.ReadMemStats(&after)
		require.Less(t, (after.TotalAlloc-before.TotalAlloc)/steps, uint64(4*n/20), "bytes in a step")
		return nil
	})
}

// A gradient that is not finite makes a result that is not, and spoils no later step.
func TestCompressionOfNonfinite(t *testing.T) {
	for name, make := range hooks() {
		onRanks(t, 2, func(g *comm.Group) error {
			x := newHooked(t, g, make(), 0, manyShapes)
			for step := range 5 {
				got := x.step(func(p string, n int) []float32 {
					v := noise(step, g.Rank())(p, n)
					if step == 2 && g.Rank() == 1 {
						v[n/2] = []float32{float32(math.NaN()), float32(math.Inf(1))}[n%2]
					}
					return v
				})
				for p, v := range got {
					require.Equal(t, step != 2, finite(v), "%s: step %d, %s", name, step, p)
				}
			}
			return nil
		})
	}
}

// The state of n ranks goes to any number of ranks, and nothing of it is lost.
func TestShare(t *testing.T) {
	saved := []HookState{{3, map[string][]float32{"a": {1, 2}}, map[string][]float32{"q": {9}}},
		{3, map[string][]float32{"a": {10, 20}, "b": {5}}, nil}, {3, map[string][]float32{"a": {100, 200}}, nil}}
	for _, n := range []int{1, 2, 3, 5} {
		sum := map[string][]float32{"a": {0, 0}, "b": {0}}
		for r := range n {
			s, err := Share(saved, r, n)
			require.NoError(t, err)
			require.Equal(t, int64(3), s.Steps)
			require.Equal(t, saved[0].Shared, s.Shared)
			if n == 3 {
				require.Equal(t, saved[r].Own, s.Own)
			}
			for k, x := range s.Own {
				for i, v := range x {
					sum[k][i] += v
				}
			}
		}
		require.Equal(t, map[string][]float32{"a": {111, 222}, "b": {5}}, sum)
	}
	_, err := Share(nil, 0, 1)
	require.Error(t, err)
}

// PowerSGD is PyTorch's: testdata/powersgd.py runs its hook.
func TestPowerSGDAgainstPyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/powersgd.json")
	require.NoError(t, err)
	var golden struct {
		Shapes map[string][]int
		Cases  []struct {
			Options map[string]any
			Q       map[string][]float32
			Steps   []struct {
				Inputs []map[string][]float32
				Mean   map[string][]float64
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden.Cases, 3)
	for number, k := range golden.Cases {
		require.NotEmpty(t, k.Q)
		onRanks(t, 2, func(g *comm.Group) error {
			h, err := HookByName("power_sgd", k.Options)
			require.NoError(t, err)
			// PyTorch's first Q counts as that of the step before.
			h.(Stateful).SetState(HookState{Shared: k.Q})
			x := newHooked(t, g, h, 0, golden.Shapes)
			for n, s := range k.Steps {
				got := x.step(func(name string, _ int) []float32 {
					v := slices.Clone(s.Inputs[g.Rank()][name])
					for i := range v {
						v[i] /= 2
					}
					return v
				})
				for name, want := range s.Mean {
					for i, v := range got[name] {
						require.InDelta(t, want[i], v, 2e-5, "case %d, step %d, %s[%d]", number, n, name, i)
					}
				}
			}
			return nil
		})
	}
}
