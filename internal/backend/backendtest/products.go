// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"math"
	"slices"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

func init() {
	makers[backend.OpMatMul] = matMulSamples
	makers[backend.OpAttention] = attentionSamples
	makers[backend.OpAttentionGrad] = attentionGradSamples
}

func matMulSamples(g *gen) {
	cases := []struct {
		batch   []int
		m, k, n int
		a, b    layout
		out     layout
	}{
		{nil, 1, 1, 1, rowMajor, rowMajor, rowMajor},
		{nil, 3, 4, 5, rowMajor, rowMajor, rowMajor},
		{nil, 3, 4, 5, reversed, reversed, rowMajor},
		{nil, 3, 4, 5, gapped, repeatLast, rowMajor},
		{nil, 0, 4, 5, rowMajor, rowMajor, rowMajor},
		{nil, 3, 0, 5, rowMajor, rowMajor, rowMajor},
		{nil, 1, 300, 70, rowMajor, rowMajor, rowMajor},
		{nil, 65, 130, 33, rowMajor, reversed, rowMajor},
		{nil, 130, 70, 150, reversed, rowMajor, rowMajor},
		{[]int{0}, 3, 4, 5, rowMajor, rowMajor, rowMajor},
		{[]int{1}, 3, 4, 5, rowMajor, rowMajor, rowMajor},
		{[]int{7}, 3, 4, 5, rowMajor, repeatFirst, rowMajor},
		{[]int{7}, 3, 4, 5, repeatFirst, rowMajor, rowMajor},
		{[]int{7}, 6, 4, 5, rowGapped, repeatFirst, rowMajor},
		{[]int{2, 3}, 9, 17, 8, rowMajor, reversed, rowMajor},
		{[]int{3, 2}, 9, 17, 8, reversed, gapped, rowMajor},
		{[]int{2, 1, 3}, 4, 3, 5, gapped, repeatFirst, rowMajor},
		{[]int{2}, 170, 170, 170, rowMajor, rowMajor, rowMajor},
		{nil, 3, 4, 5, gapped, reversed, rowGapped},
		{nil, 1, 4, 5, rowMajor, rowMajor, rowGapped},
		{nil, 65, 130, 33, rowMajor, reversed, rowGapped},
		{nil, 40, 3, 5000, rowMajor, rowMajor, rowGapped},
		{[]int{7}, 6, 4, 5, rowMajor, repeatFirst, rowGapped},
		{[]int{2}, 170, 170, 170, rowMajor, rowMajor, rowGapped},
	}
	type kind struct{ in, out dtype.DType }
	var kinds []kind
	for _, dt := range g.some(floating) {
		kinds = append(kinds, kind{dt, dt})
		if dt.IsHalf() {
			kinds = append(kinds, kind{dt, dtype.Float32})
		}
	}
	for _, of := range kinds {
		for _, c := range cases {
			if c.m*c.k*c.n > 1<<20 && of.in != dtype.Float32 {
				continue
			}
			for accumulate := range 2 {
				dt, to := of.in, of.out
				shape := func(i, j int) []int { return append(append([]int{}, c.batch...), i, j) }
				a, b := g.random(dt, c.a, -1, 1, shape(c.m, c.k)...), g.random(dt, c.b, -1, 1, shape(c.k, c.n)...)
				out := output(to, c.out, shape(c.m, c.n)...)
				want := make([]float64, out.numel())
				if accumulate == 1 {
					out = g.random(to, c.out, -1, 1, out.shape...)
					want = out.values()
				}
				x, y := a.values(), b.values()
				for i := range want {
					row, j := i/c.n, i%c.n
					batch := row / c.m
					for p := range c.k {
						want[i] += x[row*c.k+p] * y[(batch*c.k+p)*c.n+j]
					}
				}
				s := &sample{ins: []*operand{a, b}, outs: []*operand{out}, want: [][]float64{want}, loose: 16}
				s.ints[0] = accumulate
				g.add(s, "%s to %s %v %d×%d×%d %s %s to %s accumulate %d", dt, to, c.batch, c.m, c.k, c.n, c.a.name,
					c.b.name, c.out.name, accumulate)
			}
		}
	}
}

// attentionCase is the setting of one attention.
type attentionCase struct {
	b, h, hkv, tq, tk, d, dv int
	causal                   int
	qoff, koff               int
	window                   int
	p                        float64
	// 0 none, 1 full, 2 of keys, 3 hides whole rows, 4 all except the last keys, 5 of keys: pads both ends, 6 of
	// queries, 7 columns first, 8 a bias, 9 a bias of keys
	mask int
	lay  layout
}

// tokenMajor stores [B,T,H,D] for a shape [B,H,T,D], as a projection leaves it.
var tokenMajor = layout{"token-major", func(shape []int) ([]int, int, int) {
	b, h, t, d := shape[0], shape[1], shape[2], shape[3]
	return []int{t * h * d, d, h * d, 1}, 0, b * h * t * d
}}

// ofKeys stores a mask that is the same for all heads and queries.
var ofKeys = repeated("keys", func(k, _ int) bool { return k == 1 || k == 2 })

var attentionCases = []attentionCase{
	{b: 1, h: 1, hkv: 1, tq: 1, tk: 1, d: 1, dv: 1, lay: rowMajor},
	{b: 2, h: 2, hkv: 2, tq: 5, tk: 7, d: 4, dv: 3, lay: tokenMajor},
	{b: 2, h: 4, hkv: 2, tq: 6, tk: 6, d: 4, dv: 4, causal: 1, lay: tokenMajor},
	{b: 1, h: 2, hkv: 1, tq: 70, tk: 70, d: 8, dv: 8, causal: 1, lay: rowMajor},
	{b: 1, h: 1, hkv: 1, tq: 130, tk: 140, d: 8, dv: 5, p: 0.3, lay: rowMajor},
	{b: 2, h: 2, hkv: 1, tq: 9, tk: 9, d: 4, dv: 4, p: 0.25, causal: 1, lay: tokenMajor},
	{b: 1, h: 2, hkv: 2, tq: 3, tk: 8, d: 4, dv: 4, causal: 1, qoff: 5, lay: rowMajor},
	{b: 1, h: 2, hkv: 2, tq: 6, tk: 6, d: 4, dv: 4, causal: 1, koff: 3, lay: rowMajor}, // the first queries see nothing
	{b: 2, h: 2, hkv: 2, tq: 5, tk: 6, d: 4, dv: 4, mask: 1, lay: rowMajor},
	{b: 2, h: 2, hkv: 2, tq: 5, tk: 6, d: 4, dv: 4, mask: 2, p: 0.2, lay: rowMajor},
	{b: 2, h: 2, hkv: 1, tq: 5, tk: 6, d: 4, dv: 4, mask: 3, causal: 1, lay: rowMajor},
	{b: 1, h: 2, hkv: 1, tq: 5, tk: 1100, d: 4, dv: 4, causal: 1, qoff: 1090, p: 0.2, lay: tokenMajor}, // many keys
	{b: 1, h: 1, hkv: 1, tq: 3, tk: 1100, d: 4, dv: 4, mask: 4, lay: rowMajor},
	{b: 3, h: 2, hkv: 1, tq: 70, tk: 90, d: 4, dv: 4, mask: 5, p: 0.2, lay: tokenMajor},
	{b: 3, h: 1, hkv: 1, tq: 90, tk: 90, d: 4, dv: 4, mask: 5, causal: 1, window: 20, lay: rowMajor},
	{b: 1, h: 2, hkv: 1, tq: 5, tk: 6, d: 4, dv: 4, mask: 6, lay: rowMajor},
	{b: 1, h: 2, hkv: 1, tq: 5, tk: 37, d: 4, dv: 4, mask: 7, causal: 1, qoff: 32, lay: rowMajor},
	{b: 1, h: 2, hkv: 1, tq: 9, tk: 9, d: 4, dv: 4, window: 1, lay: rowMajor},
	{b: 1, h: 2, hkv: 1, tq: 9, tk: 11, d: 4, dv: 4, window: 3, qoff: 4, koff: 2, p: 0.2, lay: rowMajor},
	{b: 1, h: 2, hkv: 1, tq: 130, tk: 130, d: 4, dv: 4, window: 40, causal: 1, lay: tokenMajor},
	{b: 1, h: 1, hkv: 1, tq: 3, tk: 1100, d: 4, dv: 4, window: 600, causal: 1, qoff: 1097, lay: rowMajor},
	// the last queries are past all keys
	{b: 1, h: 1, hkv: 1, tq: 5, tk: 6, d: 4, dv: 4, window: 2, qoff: 4, lay: rowMajor},
	{b: 1, h: 1, hkv: 1, tq: 5, tk: 6, d: 4, dv: 4, window: 1 << 62, causal: 1, lay: rowMajor},
	// More queries and keys than a tile has, of which the first is at another place than a panel or a block.
	{b: 1, h: 2, hkv: 1, tq: 200, tk: 270, d: 3, dv: 2, causal: 1, qoff: 67, lay: tokenMajor},
	{b: 1, h: 1, hkv: 1, tq: 200, tk: 300, d: 2, dv: 2, causal: 1, qoff: 101, window: 77, lay: rowMajor},
	{b: 1, h: 1, hkv: 1, tq: 200, tk: 300, d: 2, dv: 2, window: 45, koff: 9, lay: tokenMajor},
	{b: 3, h: 1, hkv: 1, tq: 30, tk: 50, d: 33, dv: 65, mask: 5, p: 0.1, lay: rowMajor},
	// Enough of all that a matrix unit has part in it.
	{b: 1, h: 2, hkv: 1, tq: 200, tk: 300, d: 40, dv: 65, lay: tokenMajor},
	{b: 1, h: 1, hkv: 1, tq: 150, tk: 300, d: 64, dv: 33, causal: 1, qoff: 170, p: 0.1, lay: rowMajor},
	{b: 2, h: 1, hkv: 1, tq: 130, tk: 290, d: 32, dv: 32, mask: 5, lay: tokenMajor},
	{b: 2, h: 2, hkv: 1, tq: 5, tk: 6, d: 4, dv: 3, mask: 8, lay: tokenMajor},
	{b: 1, h: 2, hkv: 1, tq: 130, tk: 300, d: 4, dv: 4, mask: 8, p: 0.2, causal: 1, qoff: 100, lay: rowMajor},
	{b: 2, h: 2, hkv: 2, tq: 70, tk: 90, d: 40, dv: 4, mask: 9, window: 40, lay: rowMajor},
	{b: 1, h: 1, hkv: 1, tq: 130, tk: 290, d: 32, dv: 32, mask: 8, lay: tokenMajor},
	{b: 0, h: 2, hkv: 1, tq: 5, tk: 6, d: 4, dv: 4, lay: rowMajor},
	{b: 1, h: 2, hkv: 1, tq: 0, tk: 6, d: 4, dv: 4, lay: rowMajor},
	{b: 1, h: 2, hkv: 1, tq: 3, tk: 0, d: 4, dv: 4, lay: rowMajor},
	// Heads as wide as a matrix unit's kernels take, and narrower ones.
	{b: 1, h: 2, hkv: 1, tq: 20, tk: 40, d: 72, dv: 128, causal: 1, qoff: 20, lay: tokenMajor},
	{b: 1, h: 1, hkv: 1, tq: 70, tk: 75, d: 128, dv: 88, p: 0.1, lay: rowMajor},
	{b: 1, h: 2, hkv: 1, tq: 45, tk: 67, d: 24, dv: 40, causal: 1, qoff: 22, p: 0.15, lay: tokenMajor},
	{b: 2, h: 1, hkv: 1, tq: 20, tk: 40, d: 64, dv: 64, p: 0.5, lay: rowMajor},
	{b: 1, h: 1, hkv: 1, tq: 9, tk: 10, d: 8, dv: 8, p: 1, lay: rowMajor}, // one of three in a row is given delta
	{b: 1, h: 1, hkv: 1, tq: 10, tk: 9, d: 8, dv: 8, p: 1, lay: rowMajor},
	{b: 1, h: 1, hkv: 1, tq: 9, tk: 9, d: 16, dv: 8, p: 1, lay: rowMajor},
}

// attentions are the cases, except for those of a size for a matrix unit in a short run: the portable kernels have
// none.
func attentions() []attentionCase {
	if !testing.Short() {
		return attentionCases
	}
	return slices.DeleteFunc(slices.Clone(attentionCases), func(c attentionCase) bool {
		return c.b*c.h*c.tq*c.tk*(c.d+c.dv) > 2_000_000
	})
}

// large reports whether a case is one of those that take long, which float32 has all of and the other dtypes in turn.
func (c *attentionCase) large() bool { return c.b*c.h*c.tq*c.tk > 12_000 }

// attentionsOf are the cases of a dtype.
func attentionsOf(dt dtype.DType) []attentionCase {
	var cases []attentionCase
	for n, c := range attentions() {
		if dt == dtype.Float32 || !c.large() || n%(len(floating)-1) == slices.Index(floating, dt) { // float32 is last
			cases = append(cases, c)
		}
	}
	return cases
}

// attentionSetting is the inputs of a case with what the reference derives from them.
type attentionSetting struct {
	attentionCase
	q, k, v, mask *operand
	bias          *operand
	scale         float64
	key           uint64
	position      int
	scores        [][]float64 // [B·H·Tq][Tk], −∞ where the key is not seen
	keep          [][]float64 // dropout: 0 or 1/(1−p)
}

func (g *gen) attentionSetting(dt dtype.DType, c attentionCase) *attentionSetting {
	a := &attentionSetting{attentionCase: c, scale: 0.6, key: 99, position: 1 << 33}
	a.q = g.random(dt, c.lay, -2, 2, c.b, c.h, c.tq, c.d)
	a.k = g.random(dt, c.lay, -2, 2, c.b, c.hkv, c.tk, c.d)
	a.v = g.random(dt, c.lay, -2, 2, c.b, c.hkv, c.tk, c.dv)
	shape := []int{c.b, c.h, c.tq, c.tk}
	switch c.mask {
	case 1:
		a.mask = g.random(dtype.Bool, rowMajor, 0, 1, shape...)
	case 2:
		a.mask = g.random(dtype.Bool, ofKeys, 0, 1, shape...)
	case 5:
		a.mask = newOperand(dtype.Bool, ofKeys, shape, func(i int) float64 {
			sample, j := i/c.tk/c.tq/c.h, i%c.tk
			return truth(j >= 3*sample && j < c.tk-40*sample)
		})
	case 6:
		a.mask = g.random(dtype.Bool, repeated("queries", func(k, _ int) bool { return k == 3 }), 0, 1, shape...)
	case 7:
		a.mask = g.random(dtype.Bool, reversed, 0, 1, shape...)
	case 8:
		a.bias = g.random(dt, rowMajor, -1, 1, shape...)
	case 9:
		a.bias = g.random(dt, ofKeys, -1, 1, shape...)
	case 4:
		a.mask = newOperand(dtype.Bool, rowMajor, shape, func(i int) float64 {
			return truth(i%c.tk > c.tk-50*(i/c.tk+1))
		})
	case 3:
		a.mask = newOperand(dtype.Bool, rowMajor, shape, func(i int) float64 { return truth(i/c.tk%2 == 0) })
	}
	for r := range c.b * c.h * c.tq {
		b, h, i := r/c.tq/c.h, r/c.tq%c.h, r%c.tq
		scores, keep := make([]float64, c.tk), make([]float64, c.tk)
		for j := range scores {
			for e := range c.d {
				scores[j] += a.scale * a.q.at(r*c.d+e) * a.k.at(((b*c.hkv+h/(c.h/c.hkv))*c.tk+j)*c.d+e)
			}
			if a.bias != nil {
				scores[j] += a.bias.at(r*c.tk + j)
			}
			apart := c.qoff + i - c.koff - j
			if c.causal == 1 && apart < 0 || c.window > 0 && max(apart, -apart) >= c.window || a.mask != nil &&
				a.mask.at(r*c.tk+j) == 0 {
				scores[j] = math.Inf(-1)
			}
			u := rng.Float32At(a.key, uint64(a.position+b), uint64((h*c.tq+i)*c.tk+j))
			if float64(u) >= c.p {
				keep[j] = 1 / (1 - c.p)
			}
		}
		a.scores, a.keep = append(a.scores, scores), append(a.keep, keep)
	}
	return a
}

// value is element (j, e) of the values that row r attends to.
func (a *attentionSetting) value(x *operand, r, j, e, width int) float64 {
	return x.at(a.kvRow(r, j)*width + e)
}

// kvRow is the row of k and v that query row r finds at key j.
func (a *attentionSetting) kvRow(r, j int) int {
	b, h := r/a.tq/a.h, r/a.tq%a.h
	return (b*a.hkv+h/(a.h/a.hkv))*a.tk + j
}

func (a *attentionSetting) forward() (out, lse []float64) {
	rows := a.b * a.h * a.tq
	out, lse = make([]float64, rows*a.dv), make([]float64, rows)
	for r := range rows {
		lse[r] = math.Inf(-1)
		if slices.ContainsFunc(a.scores[r], func(s float64) bool { return !math.IsInf(s, -1) }) {
			lse[r] = logSumExp(a.scores[r])
		}
		for j, s := range a.scores[r] {
			if math.IsInf(s, -1) {
				continue
			}
			p := math.Exp(s-lse[r]) * a.keep[r][j]
			for e := range a.dv {
				out[r*a.dv+e] += p * a.value(a.v, r, j, e, a.dv)
			}
		}
	}
	return out, lse
}

func (a *attentionSetting) attributes(s *sample) {
	s.floats[0], s.floats[1] = a.scale, a.p
	s.ints[0], s.ints[1], s.ints[2], s.ints[3] = a.causal, a.qoff, a.koff, a.position
	s.ints[4], s.key = a.window, a.key
	for _, x := range []*operand{a.mask, a.bias} {
		if x != nil {
			s.ins = append(s.ins, x)
		}
	}
}

func attentionSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, c := range attentionsOf(dt) {
			a := g.attentionSetting(dt, c)
			out, lse := a.forward()
			s := &sample{ins: []*operand{a.q, a.k, a.v}, want: [][]float64{out, lse}, loose: 8, outs: []*operand{
				output(dt, c.lay, c.b, c.h, c.tq, c.dv), output(statistic(dt), rowMajor, c.b, c.h, c.tq)}}
			a.attributes(s)
			g.add(s, "%s %+v", dt, c)
		}
	}
}

func attentionGradSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for n, c := range attentionsOf(dt) {
			a := g.attentionSetting(dt, c)
			out, lses := a.forward()
			rows := c.b * c.h * c.tq
			dout := g.random(dt, c.lay, -1, 1, c.b, c.h, c.tq, c.dv)
			deltas := make([]float64, rows)
			stat := []int{c.b, c.h, c.tq}
			lse, aside := numbers(statistic(dt), stat, lses),
				newOperand(dt, c.lay, dout.shape, func(i int) float64 { return out[i] })
			for i := range out {
				deltas[i/c.dv] += dout.at(i) * aside.at(i)
			}
			if n%3 == 0 { // delta is given, with a gradient of the log-sum-exp
				for i := range deltas {
					deltas[i] -= 0.05
				}
				aside = numbers(statistic(dt), stat, deltas)
			}
			dbias := make([]float64, rows*c.tk)
			dq, dk, dv := make([]float64, a.q.numel()), make([]float64, a.k.numel()), make([]float64, a.v.numel())
			for r := range rows {
				for j, s := range a.scores[r] {
					if math.IsInf(s, -1) {
						continue
					}
					p, dp := math.Exp(s-lse.at(r)), 0.0
					for e := range c.dv {
						dp += dout.at(r*c.dv+e) * a.value(a.v, r, j, e, c.dv)
						dv[a.kvRow(r, j)*c.dv+e] += p * a.keep[r][j] * dout.at(r*c.dv+e)
					}
					ds := p * (a.keep[r][j]*dp - deltas[r])
					dbias[r*c.tk+j] = ds
					ds *= a.scale
					for e := range c.d {
						dq[r*c.d+e] += ds * a.value(a.k, r, j, e, c.d)
						dk[a.kvRow(r, j)*c.d+e] += ds * a.q.at(r*c.d+e)
					}
				}
			}
			s := &sample{ins: []*operand{a.q, a.k, a.v, lse, dout, aside}, want: [][]float64{dq, dk, dv},
				loose: 24, // scores of 20 and more are rounded before they are exponents
				outs: []*operand{
					output(dt, c.lay, a.q.shape...), output(dt, c.lay, a.k.shape...), output(dt, c.lay, a.v.shape...)}}
			if a.bias != nil && n%2 == 0 { // its gradient need not be wanted
				s.want, s.outs = append(s.want, dbias), append(s.outs, output(dt, rowMajor, c.b, c.h, c.tq, c.tk))
			}
			a.attributes(s)
			g.add(s, "%s %+v", dt, c)
		}
	}
}
