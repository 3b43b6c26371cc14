// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/cpu"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// The conformance suite has few heads that the kernels for the matrix units take.

// flashCase is the setting of one attention.
type flashCase struct {
	dt                       dtype.DType
	b, h, hkv, tq, tk, d, dv int
	causal, qoff, koff       int
	window                   int
	p                        float64
	mask                     bool
	few                      bool // memory for decisions of dropout
	again                    bool // drawn in the backward pass too, even if they could be kept
}

var flashCases = []flashCase{
	{dt: dtype.BFloat16, b: 1, h: 2, hkv: 1, tq: 200, tk: 200, d: 64, dv: 64, causal: 1, p: 0.1},
	// Blocks of bits across rows.
	{dt: dtype.Float16, b: 1, h: 1, hkv: 1, tq: 130, tk: 139, d: 64, dv: 40, p: 0.3},
	{dt: dtype.BFloat16, b: 1, h: 2, hkv: 2, tq: 70, tk: 72, d: 8, dv: 16, causal: 1, koff: 9},
	{dt: dtype.Float16, b: 1, h: 1, hkv: 1, tq: 150, tk: 260, d: 64, dv: 64, causal: 1, qoff: 101, window: 77, p: 0.1},
	{dt: dtype.BFloat16, b: 1, h: 1, hkv: 1, tq: 100, tk: 180, d: 24, dv: 64, window: 45, koff: 9},
	{dt: dtype.Float16, b: 2, h: 2, hkv: 1, tq: 50, tk: 60, d: 64, dv: 64, p: 0.2, mask: true},
	{dt: dtype.BFloat16, b: 1, h: 2, hkv: 1, tq: 140, tk: 100, d: 128, dv: 72, causal: 1, qoff: 20, p: 0.1},
	{dt: dtype.Float16, b: 1, h: 1, hkv: 1, tq: 70, tk: 90, d: 80, dv: 128, mask: true},
	{dt: dtype.BFloat16, b: 1, h: 1, hkv: 1, tq: 20, tk: 30, d: 64, dv: 64, p: 1},
	// Launches that end in the midst of a sample.
	{dt: dtype.BFloat16, b: 2, h: 6, hkv: 3, tq: 40, tk: 50, d: 16, dv: 16, p: 0.4, few: true},
}

func (c flashCase) String() string {
	type fields flashCase // without this method
	return fmt.Sprintf("%+v", fields(c))
}

// run computes results and gradients on a device, with operands of dt.
func (c flashCase) run(t *testing.T, d backend.Backend, dt dtype.DType) [][]float64 {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(c.tq), uint64(c.tk)))
	operand := func(lo, hi float64, shape ...int) array {
		a := drawn(r, c.dt, lo, hi, shape...)
		a.x, a.dt = decode(c.dt, encode(c.dt, a.x)), dt
		return a
	}
	q, k := operand(-2, 2, c.b, c.h, c.tq, c.d), operand(-2, 2, c.b, c.hkv, c.tk, c.d)
	v, dout := operand(-2, 2, c.b, c.hkv, c.tk, c.dv), operand(-1, 1, c.b, c.h, c.tq, c.dv)
	call := backend.Call{Op: backend.OpAttention, Key: 99, Floats: [8]float64{1.5 / math.Sqrt(float64(c.d)), c.p},
		Ints: [8]int{c.causal, c.qoff, c.koff, 1 << 33, c.window}}
	ins := []array{q, k, v}
	var mask []array
	if c.mask {
		mask = []array{drawn(r, dtype.Bool, 0, 2, c.b, c.h, c.tq, c.tk)}
	}
	outs := []array{blank(dt, c.b, c.h, c.tq, c.dv), blank(statistic(dt), c.b, c.h, c.tq)}
	if n := c.keeps(d, dt); n > 0 {
		outs = append(outs, blank(dtype.Int32, n))
	}
	results := calculated(t, d, call, outs, append(ins, mask...))
	out, lse, kept := dout, blank(statistic(dt), c.b, c.h, c.tq), outs[2:]
	out.x, lse.x = results[0], results[1]
	for i := range kept {
		kept[i].x = results[2+i]
	}
	call.Op = backend.OpAttentionGrad
	grads := calculated(t, d, call, []array{blank(dt, q.shape...), blank(dt, k.shape...), blank(dt, v.shape...)},
		append(append([]array{q, k, v, lse, dout, out}, mask...), kept...))
	return append(results[:2], grads...)
}

// keeps is how many int32 the forward pass stores for the gradient.
func (c flashCase) keeps(d backend.Backend, dt dtype.DType) int {
	keeper, ok := d.(backend.DropoutKeeper)
	if !ok || c.again {
		return 0
	}
	call := backend.Call{Floats: [8]float64{1, c.p}, NIn: 3}
	for i, shape := range [][6]int{{c.b, c.h, c.tq, c.d}, {c.b, c.hkv, c.tk, c.d}, {c.b, c.hkv, c.tk, c.dv}} {
		call.In[i] = backend.View{DType: dt, NDim: 4, Shape: shape}
	}
	if c.mask {
		call.NIn, call.In[3].DType = 4, dtype.Bool
	}
	return keeper.KeptDropout(&call)
}

func TestFlash(t *testing.T) {
	host := cpu.New(1)
	defer func() { require.NoError(t, host.Close()) }()
	for i, c := range flashCases {
		d := fakeDevice(t, fake.Options{CheckRaces: i%4 == 0})
		if c.few {
			d.keepBytes = 2 * 4 * (c.h / c.hkv) * 128 * 4
		}
		want, got := c.run(t, host, dtype.Float32), c.run(t, d, c.dt)
		for k, what := range []string{"out", "lse", "dq", "dk", "dv"} {
			for i, w := range want[k] {
				if g := got[k][i]; math.Abs(g-w) > precision[c.dt]*max(1, math.Abs(w)) || g != g {
					require.Failf(t, "not the CPU's", "%s: %s, element %d: %v: want %v", c, what, i, g, w)
				}
			}
		}
	}
}

// The bits depend neither on the order in which threads run nor on the size of the device.
func TestFlashHasTheSameBits(t *testing.T) {
	c := flashCases[0]
	one, other := fakeDevice(t, fake.Options{}), fakeDevice(t, fake.Options{SMs: 1, Seed: 9, Workers: 2})
	require.Equal(t, c.run(t, one, c.dt), c.run(t, other, c.dt))
}

// The gradient has the same bits whether it reads dropout's decisions or draws them. They are kept if they take no more
// memory than the output.
func TestFlashKeepsDropout(t *testing.T) {
	kept := 0
	for _, c := range flashCases {
		d := fakeDevice(t, fake.Options{})
		if c.p == 0 || c.keeps(d, c.dt) == 0 {
			continue
		}
		kept++
		with := c.run(t, d, c.dt)
		c.again = true
		require.Equal(t, c.run(t, d, c.dt), with, c)
	}
	require.GreaterOrEqual(t, kept, 5)

	d := fakeDevice(t, fake.Options{})
	long := flashCase{b: 2, h: 4, hkv: 2, tq: 1024, tk: 1024, d: 64, dv: 64, p: 0.1}
	for dt, want := range map[dtype.DType]int{dtype.BFloat16: 2 * 4 * 1024 * 1024 / 32, dtype.Float32: 0} {
		require.Equal(t, want, long.keeps(d, dt), dt)
	}
	for what, change := range map[string]func(c *flashCase){
		"no dropout": func(c *flashCase) { c.p = 0 },
		"long":       func(c *flashCase) { c.tq, c.tk = 1025, 1025 },
		"wide heads": func(c *flashCase) { c.d = 136 },
	} {
		c := long
		change(&c)
		require.Zero(t, c.keeps(d, dtype.BFloat16), what)
	}
}

// Dropout's decisions are drawn once, and the kernels that use them run hardly longer: the backward pass at most 1.3
// times as long.
func TestFlashWithDropout(t *testing.T) {
	fakeAlone(t, "it counts instructions")
	count := func(c flashCase) map[string]int64 {
		var mu sync.Mutex
		ran := map[string]int64{}
		c.run(t, fakeDevice(t, fake.Options{Ran: func(kernel string, instructions int64) {
			mu.Lock()
			defer mu.Unlock()
			ran[kernel] += instructions
		}}), c.dt)
		return ran
	}
	for _, d := range []int{64, 128} {
		c := flashCase{dt: dtype.BFloat16, b: 1, h: 1, hkv: 1, tq: 384, tk: 384, d: d, dv: d, causal: 1}
		without := count(c)
		c.p = 0.1
		with := count(c)
		for _, kernel := range []string{"", "_dq", "_dkdv"} {
			name := fmt.Sprintf("%s_%d_bf16", kernel, d)
			ratio := float64(with["flash_dropout"+name]) / float64(without["flash"+name])
			require.True(t, ratio > 1 && ratio <= 1.3, "flash%s: %.3f times the instructions", name, ratio)
		}
		require.Positive(t, with["flash_keep"])
		c.again = true
		require.Equal(t, 2*with["flash_keep"], count(c)["flash_keep"], "drawn for both passes")
	}
}

// Kernels for matrix units are launched where operands fit.
func TestFlashIsChosen(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	s := d.NewStream().(*stream)
	buf, err := s.Alloc(1 << 20)
	require.NoError(t, err)
	defer d.Free(buf)
	choose := func(dt dtype.DType, d, dv, offset, row int, scale float64, mask *backend.View) int {
		c := &backend.Call{Floats: [8]float64{scale}}
		for i, n := range []int{d, d, dv} {
			c.In[i] = backend.View{Buf: buf, DType: dt, NDim: 4, Offset: offset, Shape: [6]int{1, 2, 3, n},
				Stride: [6]int{1, row, 2 * row, 1}}
		}
		return s.flash(c, &attention{d: d, dv: dv, mask: mask})
	}
	require.Equal(t, 64, choose(dtype.BFloat16, 64, 64, 0, 64, 1, nil))
	require.Equal(t, 64, choose(dtype.Float16, 8, 64, 8, 192, 1, &backend.View{DType: dtype.Bool}))
	require.Equal(t, 128, choose(dtype.BFloat16, 64, 72, 0, 128, 1, nil))
	require.Zero(t, choose(dtype.Float32, 64, 64, 0, 64, 1, nil))
	require.Zero(t, choose(dtype.BFloat16, 64, 136, 0, 136, 1, nil), "wide heads")
	require.Zero(t, choose(dtype.BFloat16, 60, 64, 0, 64, 1, nil), "half a piece")
	require.Zero(t, choose(dtype.BFloat16, 64, 64, 4, 64, 1, nil), "unaligned")
	require.Zero(t, choose(dtype.BFloat16, 64, 64, 0, 68, 1, nil), "unaligned rows")
	require.Zero(t, choose(dtype.BFloat16, 64, 64, 0, 64, -1, nil), "a scale that turns the order of scores")
	require.Zero(t, choose(dtype.BFloat16, 64, 64, 0, 64, 1, &backend.View{DType: dtype.BFloat16}), "a bias")
}
