// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"math/bits"
	"sync/atomic"
)

// block is the state of a block of threads. It is used for one block after the other.
type block struct {
	kernel *Kernel
	launch *Launch
	mem    *Memory
	run    *run
	index  [3]uint32
	linear uint32
	order  uint64 // position in the order of blocks

	params   []byte
	shared   []byte
	defined  []byte // shadow of shared
	accesses *accesses
	warps    []*warp
	threads  int
	phase    uint64
	counted  int64
	clock    uint64 // of %clock64
	barriers [16]barrier
}

// newBlock makes the state for blocks of a launch's shape.
func newBlock(k *Kernel, shape [3]uint32, shared int) *block {
	threads := int(shape[0] * shape[1] * shape[2])
	b := &block{kernel: k, threads: threads, shared: make([]byte, shared), defined: make([]byte, shared)}
	n := (threads + warpSize - 1) / warpSize
	b.accesses = newAccesses(shared)
	for id := range n {
		w := &warp{id: id, block: b, r32: make([][warpSize]uint32, k.n32), r64: make([][warpSize]uint64, k.n64),
			p: make([]uint32, k.np), d32: make([]uint32, k.n32), d64: make([]uint32, k.n64), dp: make([]uint32, k.np),
			local: make([]byte, warpSize*k.localBytes), shadow: make([]byte, warpSize*k.localBytes),
			clocks: make([]uint32, n)}
		w.members = fullMask
		if left := threads - id*warpSize; left < warpSize {
			w.members = 1<<left - 1
		}
		for lane := range warpSize {
			t := uint32(id*warpSize + lane)
			k.special(w, specialTidX, lane, t%shape[0])
			k.special(w, specialTidY, lane, t/shape[0]%shape[1])
			k.special(w, specialTidZ, lane, t/shape[0]/shape[1])
			k.special(w, specialLane, lane, uint32(lane))
			k.special(w, specialMaskEq, lane, 1<<lane)
			k.special(w, specialMaskLt, lane, 1<<lane-1)
			k.special(w, specialMaskLe, lane, 1<<lane-1|1<<lane)
			k.special(w, specialMaskGt, lane, ^uint32(1<<lane-1|1<<lane))
			k.special(w, specialMaskGe, lane, ^uint32(1<<lane-1))
		}
		k.specials(w, specialWarp, uint32(id))
		for _, c := range k.consts32 {
			set32(w, c.reg, uint32(c.value))
		}
		for _, c := range k.consts64 {
			set64(w, c.reg, c.value)
		}
		b.warps = append(b.warps, w)
	}
	return b
}

func set32(w *warp, r int, v uint32) {
	for i := range w.r32[r] {
		w.r32[r][i] = v
	}
}

func set64(w *warp, r int, v uint64) {
	for i := range w.r64[r] {
		w.r64[r][i] = v
	}
}

// prepare sets what is the same in all blocks of a launch.
func (b *block) prepare(r *run) {
	b.run, b.launch, b.mem, b.params = r, r.launch, r.mem, r.params
	k := b.kernel
	for _, w := range b.warps {
		w.near = nothing
		for i, s := range [3][2]specialRegister{{specialNTidX, specialNCtaX}, {specialNTidY, specialNCtaY},
			{specialNTidZ, specialNCtaZ}} {
			k.specials(w, s[0], r.launch.Block[i])
			k.specials(w, s[1], r.launch.Grid[i])
		}
		k.specials(w, specialNWarp, uint32(len(b.warps)))
		k.specials(w, specialDynamicShared, uint32(r.launch.SharedBytes))
		k.specials(w, specialTotalShared, uint32(len(b.shared)))
		for i, a := range r.symbols {
			set64(w, k.symbols[i].reg, a.base+uint64(k.symbols[i].offset))
		}
	}
}

// start begins a block.
func (b *block) start(linear uint32, order uint64) {
	g := b.launch.Grid
	b.index = [3]uint32{linear % g[0], linear / g[0] % g[1], linear / g[0] / g[1]}
	b.linear, b.order, b.phase = linear, order, 0
	copy(b.defined, b.kernel.sharedShadow)
	clear(b.defined[len(b.kernel.sharedShadow):])
	b.accesses.reset()
	for i := range b.barriers {
		clear(b.barriers[i].clocks)
		b.barriers[i] = barrier{clocks: b.barriers[i].clocks, waiting: b.barriers[i].waiting[:0]}
	}
	k := b.kernel
	for _, w := range b.warps {
		copy(w.d32, k.initial32)
		copy(w.d64, k.initial64)
		clear(w.dp)
		copy(w.p, k.initialP)
		for _, r := range k.definedP {
			w.dp[r] = fullMask
		}
		k.specials(w, specialCtaX, b.index[0])
		k.specials(w, specialCtaY, b.index[1])
		k.specials(w, specialCtaZ, b.index[2])
		clear(w.shadow)
		for i := range w.clocks {
			w.clocks[i] = 0
		}
		w.clocks[w.id] = 1
		w.mask, w.alive, w.at, w.least = w.members, w.members, 0, noStretch
		w.groups, w.copies = w.groups[:0], w.copies[:0]
		w.commits = [warpSize]int32{}
		w.waits = -1
		w.dcc = 0
	}
}

// count adds executed instructions; a fault if the launch has had too many.
func (b *block) count(w *warp, n int64) {
	b.counted += n
	if b.counted >= 1<<14 {
		b.flush(w)
	}
}

func (b *block) flush(w *warp) {
	total := b.run.executed.Add(b.counted)
	b.counted = 0
	if limit := b.launch.MaxInstructions; limit > 0 && total > limit && w != nil {
		w.fault(bits.TrailingZeros32(max(w.mask, 1)), Budget, "the launch has executed more than %d instructions",
			limit)
	}
	if w != nil && b.run.stopAt.Load() < b.order {
		panic(stopped{})
	}
}

// stopped ends a block because one that comes before it has faulted.
type stopped struct{}

// execute runs the block to its end.
func (b *block) execute() {
	n := len(b.warps)
	var turn [32]int
	for {
		b.permute(turn[:n])
		left, waiting := 0, 0
		for _, i := range turn[:n] {
			w := b.warps[i]
			if w.mask == 0 {
				continue
			}
			if w.waits < 0 {
				w.run()
			}
			if w.mask != 0 {
				left++
				if w.waits >= 0 {
					waiting++
				}
			}
		}
		if left == 0 {
			return
		}
		if !b.release() && waiting == left {
			b.deadlock()
		}
		b.phase++
	}
}

// permute orders the warps as the seed decides.
func (b *block) permute(turn []int) {
	for i := range turn {
		turn[i] = i
	}
	if b.launch.Seed == 0 {
		return
	}
	x := mix(b.launch.Seed ^ uint64(b.linear)<<32 ^ b.phase)
	for i := len(turn) - 1; i > 0; i-- {
		x = mix(x)
		j := int(x % uint64(i+1))
		turn[i], turn[j] = turn[j], turn[i]
	}
}

// mix scrambles bits (SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// run is a launch under way.
type run struct {
	launch   *Launch
	mem      *Memory
	params   []byte
	symbols  []*allocation
	executed atomic.Int64
	stopAt   atomic.Uint64 // position of the first block that faulted
	races    *globalAccesses
}
