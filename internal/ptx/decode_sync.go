// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"math/bits"
	"strings"
)

// decodeBarrier does bar.sync, bar.red, bar.arrive, barrier.… and bar.warp.sync.
func (l *linker) decodeBarrier(d *decoded, st *statement) error {
	args := st.args
	if st.has("warp") {
		if len(args) != 1 {
			return fmt.Errorf("want a member mask")
		}
		d.end, d.sync.do = warpOp, func(*warp) {}
		return l.members(d, &args[0])
	}
	o := &meetOp{count: -1, vote: -1, arrive: st.has("arrive")}
	d.end, d.meets = meet, o
	var err error
	if st.has("red") {
		if len(args) < 3 {
			return fmt.Errorf("%d operands: want 3 or 4", len(args))
		}
		last := &args[len(args)-1]
		if o.vote, err = l.source(last, 'P'); err != nil {
			return err
		}
		o.not = last.not
		if o.result, err = l.barrierResult(st, &args[0]); err != nil {
			return err
		}
		args = args[1 : len(args)-1]
	}
	if !st.has("sync") && !st.has("red") && !st.has("arrive") || len(args) < 1 || len(args) > 2 {
		return errUnsupported
	}
	if o.id, err = l.source(&args[0], 'R'); err != nil {
		return err
	}
	if len(args) == 2 {
		o.count, err = l.source(&args[1], 'R')
	}
	return err
}

// barrierResult returns what writes the result of bar.red.
func (l *linker) barrierResult(st *statement, dst *operand) (func(w *warp, votes, zeros uint32), error) {
	if st.has("popc") {
		r, err := l.register(dst, 'R')
		return func(w *warp, votes, _ uint32) {
			for l := w.mask; l != 0; l &= l - 1 {
				w.r32[r][bits.TrailingZeros32(l)&31] = votes
			}
			w.d32[r] |= w.mask
		}, err
	}
	r, err := l.register(dst, 'P')
	and := st.has("and")
	if !and && !st.has("or") {
		return nil, errUnsupported
	}
	return func(w *warp, votes, zeros uint32) {
		v := votes > 0
		if and {
			v = zeros == 0
		}
		if v {
			w.setP(r, fullMask)
		} else {
			w.setP(r, 0)
		}
	}, err
}

// members notes the operand with the mask of lanes that take part.
func (l *linker) members(d *decoded, o *operand) error {
	r, err := l.source(o, 'R')
	d.sync.members = r
	d.sync.full = o.kind == operandImm && uint32(o.value) == fullMask
	return err
}

// decodeTogether does the instructions that lanes of a warp do together.
func (l *linker) decodeTogether(d *decoded, st *statement) error {
	switch st.op {
	case "mma":
		d.sync.members, d.sync.full = -1, true
		return l.decodeMMA(d, st)
	case "ldmatrix":
		d.sync.members, d.sync.full = -1, true
		return l.decodeLoadMatrix(d, st)
	}
	if !st.has("sync") || len(st.args) < 3 {
		return errUnsupported
	}
	if err := l.members(d, &st.args[len(st.args)-1]); err != nil {
		return err
	}
	switch st.op {
	case "shfl":
		return l.decodeShuffle(d, st)
	case "vote":
		return l.decodeVote(d, st)
	case "match":
		return l.decodeMatch(d, st)
	}
	return l.decodeRedux(d, st)
}

func (l *linker) decodeShuffle(d *decoded, st *statement) error {
	if len(st.args) != 5 || len(st.mods) != 3 || st.mods[2] != "b32" {
		return errUnsupported
	}
	o := &shuffle{mode: st.mods[1], ok: -1}
	var err error
	if o.dst, err = l.register(&st.args[0], 'R'); err != nil {
		return err
	}
	if p := st.args[0].second; p != nil {
		if o.ok, err = l.register(p, 'P'); err != nil {
			return err
		}
	}
	for i, r := range []*int{&o.a, &o.b, &o.c} {
		if *r, err = l.source(&st.args[1+i], 'R'); err != nil {
			return err
		}
	}
	switch o.mode {
	case "up", "down", "bfly", "idx":
	default:
		return errUnsupported
	}
	d.sync.do = o.do
	return nil
}

func (l *linker) decodeVote(d *decoded, st *statement) error {
	p, err := l.source(&st.args[1], 'P')
	if err != nil {
		return err
	}
	not := st.args[1].not
	if st.has("ballot") {
		r, err := l.register(&st.args[0], 'R')
		d.sync.do = func(w *warp) {
			v := w.predicate(p, not)
			for l := w.mask; l != 0; l &= l - 1 {
				w.r32[r][bits.TrailingZeros32(l)&31] = v
			}
			w.d32[r] |= w.mask
		}
		return err
	}
	r, err := l.register(&st.args[0], 'P')
	if err != nil {
		return err
	}
	var test func(v, m uint32) bool
	switch {
	case st.has("all"):
		test = func(v, m uint32) bool { return v == m }
	case st.has("any"):
		test = func(v, _ uint32) bool { return v != 0 }
	case st.has("uni"):
		test = func(v, m uint32) bool { return v == 0 || v == m }
	default:
		return errUnsupported
	}
	d.sync.do = func(w *warp) {
		v := uint32(0)
		if test(w.predicate(p, not), w.mask) {
			v = fullMask
		}
		w.setP(r, v)
	}
	return nil
}

// decodeMatch does match.any and match.all.
func (l *linker) decodeMatch(d *decoded, st *statement) error {
	t := typNames[st.mods[len(st.mods)-1]]
	class := classOf(t)
	r, err := l.register(&st.args[0], 'R')
	if err != nil {
		return err
	}
	p := -1
	if o := st.args[0].second; o != nil {
		if p, err = l.register(o, 'P'); err != nil {
			return err
		}
	}
	s, err := l.source(&st.args[1], class)
	all := st.has("all")
	d.sync.do = func(w *warp) {
		var v [warpSize]uint64
		if class == 'D' {
			w.need64(s)
			v = w.r64[s]
		} else {
			w.need32(s)
			for i, x := range w.r32[s] {
				v[i] = uint64(x)
			}
		}
		equal := uint32(0)
		for l := w.mask; l != 0; l &= l - 1 {
			lane := bits.TrailingZeros32(l) & 31
			same := uint32(0)
			for k := w.mask; k != 0; k &= k - 1 {
				if i := bits.TrailingZeros32(k) & 31; v[i] == v[lane] {
					same |= 1 << i
				}
			}
			if all && same != w.mask {
				same = 0
			}
			if same != 0 {
				equal |= 1 << lane
			}
			w.r32[r][lane] = same
		}
		w.d32[r] |= w.mask
		if p >= 0 {
			w.setP(p, equal)
		}
	}
	return err
}

func (l *linker) decodeRedux(d *decoded, st *statement) error {
	if len(st.args) != 3 || len(st.mods) != 3 {
		return errUnsupported
	}
	r, err := l.register(&st.args[0], 'R')
	if err != nil {
		return err
	}
	s, err := l.source(&st.args[1], 'R')
	if err != nil {
		return err
	}
	t := typNames[st.mods[2]]
	f := atomicFunction(st.mods[1], t)
	if f == nil || t.size() != 4 || !strings.Contains("add min max and or xor", st.mods[1]) {
		return errUnsupported
	}
	d.sync.do = func(w *warp) {
		w.need32(s)
		v, first := uint64(0), true
		for l := w.mask; l != 0; l &= l - 1 {
			x := uint64(w.r32[s][bits.TrailingZeros32(l)&31])
			if first {
				v, first = x, false
			} else {
				v = f(v, x, 0)
			}
		}
		for l := w.mask; l != 0; l &= l - 1 {
			w.r32[r][bits.TrailingZeros32(l)&31] = uint32(v)
		}
		w.d32[r] |= w.mask
	}
	return nil
}
