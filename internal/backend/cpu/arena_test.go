// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// check holds what must be true of an arena at any time: extents fill their segments, free neighbours are of different
// kinds, lists and counts agree.
func (a *arena) check(t *testing.T) {
	t.Helper()
	listed := map[*extent]bool{}
	for k := range a.idle {
		for e := a.idle[k]; e != nil; e = e.next {
			require.True(t, e.state == idle && binOf(e.size) == k && !listed[e])
			listed[e] = true
		}
	}
	for e := a.hollow; e != nil; e = e.next {
		require.True(t, e.state == hollow && !listed[e])
		listed[e] = true
	}
	recents := 0
	for _, e := range a.recent {
		require.True(t, e.state == recent && !listed[e])
		listed[e] = true
		recents += e.size
	}
	require.Equal(t, recents, a.recentBytes)
	require.LessOrEqual(t, recents, recentBytes)
	var idleBytes, taken int64
	free := 0
	for _, s := range a.segments {
		at, given := 0, 0
		var below *extent
		for e := s.first; e != nil; below, e = e, e.above {
			require.True(t, e.seg == s && e.at == at && e.size > 0 && e.below == below)
			require.False(t, below != nil && below.state == e.state && e.state > recent, "free neighbours are one")
			at += e.size
			switch e.state {
			case used:
				given += e.size
			case idle, recent:
				idleBytes += int64(e.size)
			}
			if e.state != used {
				free++
				require.True(t, listed[e])
			}
			if e.state != hollow {
				taken += int64(e.size)
				require.LessOrEqual(t, at, s.committed)
			}
		}
		require.Equal(t, len(s.mem), at)
		require.Equal(t, s.used, given)
	}
	require.Len(t, listed, free)
	require.Equal(t, idleBytes, a.idleBytes)
	require.Equal(t, taken, a.taken)
}

// Blocks of any sizes that come and go, with memory given back in between, never overlap and keep what is written to
// them.
func TestArena(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var a arena
	defer a.close()
	type block struct {
		e    *extent
		mark byte
	}
	var live []block
	for i := range 4000 {
		switch n := len(live); {
		case n < 60 && r.IntN(2) == 0 || n == 0:
			e, err := a.alloc(1 + r.IntN(40*a.page+4096))
			require.NoError(t, err)
			b := block{e, byte(i)}
			e.bytes()[0], e.bytes()[e.size-1] = b.mark, b.mark
			live = append(live, b)
		case r.IntN(40) == 0:
			a.trim(int64(r.IntN(100)) * int64(a.page))
		default:
			k := r.IntN(n)
			b := live[k]
			require.Equal(t, [2]byte{b.mark, b.mark}, [2]byte{b.e.bytes()[0], b.e.bytes()[b.e.size-1]})
			a.free(b.e)
			live[k] = live[n-1]
			live = live[:n-1]
		}
		a.check(t)
	}
	for _, b := range live {
		a.free(b.e)
	}
	a.check(t)
	a.trim(0)
	require.Empty(t, a.segments, "nobody uses them")
	require.Zero(t, a.taken)
}

// A block comes from the smallest free extent that holds it, and new memory is only touched if there is none.
func TestArenaTakesTheBestFit(t *testing.T) {
	var a arena
	defer a.close()
	alloc := func(pages int) *extent {
		e, err := a.alloc(pages * a.page)
		require.NoError(t, err)
		return e
	}
	a.page = 1 << 16
	first, _, second, _, third := alloc(8), alloc(1), alloc(4), alloc(1), alloc(6)
	at := second.pointer()
	a.free(first)
	a.free(second)
	taken := a.taken
	require.Equal(t, at, alloc(3).pointer(), "of eight and four")
	require.EqualValues(t, taken, a.taken)
	top := third.pointer()
	a.free(third)
	last := alloc(10)
	require.Equal(t, top, last.pointer(), "the last free block is made larger")
	require.EqualValues(t, taken+4*int64(a.page), a.taken)
	require.Zero(t, uintptr(at)%alignment)
	a.check(t)
}

// A block of the size of one that was freed a moment ago is that one, until too much was freed since or another size
// needs the room.
func TestArenaGivesWhatIsInTheCache(t *testing.T) {
	var a arena
	defer a.close()
	alloc := func(mib int) *extent {
		e, err := a.alloc(mib << 20)
		require.NoError(t, err)
		a.check(t)
		return e
	}
	blocks := []*extent{alloc(1), alloc(2), alloc(1), alloc(2)}
	for _, e := range blocks {
		a.free(e)
		a.check(t)
	}
	for i := 3; i >= 0; i-- {
		require.Same(t, blocks[i], alloc(blocks[i].size>>20))
	}
	taken := a.taken
	for _, e := range blocks {
		a.free(e)
	}
	alloc(6)
	require.Equal(t, taken, a.taken)
	a.free(alloc(recentBytes>>20 + 1))
	require.Empty(t, a.recent, "more than caches hold")
	a.check(t)
}

// When new memory is taken, what lies idle in too small pieces goes back to the system, which has then given little
// more than was ever used at once; what was given back is taken again before new address space.
func TestArenaBound(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only whole segments are given back here")
	}
	var a arena
	defer a.close()
	const mib = 1 << 20
	alloc := func(mib int) *extent {
		e, err := a.alloc(mib << 20)
		require.NoError(t, err)
		a.check(t)
		require.LessOrEqual(t, a.taken, a.most+slackBytes)
		return e
	}
	var pieces []*extent
	for range 8 {
		pieces = append(pieces, alloc(2))
		alloc(2) // a wall
	}
	pieces[3].bytes()[5] = 1
	for _, e := range pieces {
		a.free(e)
	}
	require.EqualValues(t, 32*mib, a.most)
	large := alloc(8)
	require.EqualValues(t, 36*mib, a.taken, "24 used, and 12 idle")
	committed := large.seg.committed
	for range 8 {
		require.Less(t, uintptr(alloc(2).pointer()), uintptr(large.pointer()), "idle, or where memory was given back")
	}
	require.Equal(t, committed, large.seg.committed)
	require.EqualValues(t, 40*mib, a.taken)
}

// A step in which a large block comes when what is free lies in pieces does not make memory grow, and neither do
// the steps after it.
func TestArenaOfManySteps(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only whole segments are given back here")
	}
	var a arena
	defer a.close()
	r := rand.New(rand.NewPCG(3, 4))
	var state []*extent
	for range 200 {
		var live []*extent
		for range 60 {
			e, err := a.alloc(int(float64(a.page+4096) * math.Exp2(12*r.Float64())))
			require.NoError(t, err)
			require.LessOrEqual(t, a.taken, a.most+a.slack())
			if live = append(live, e); len(state) < 300 && r.IntN(10) == 0 {
				state, live = append(state, e), live[:len(live)-1]
			}
		}
		for _, e := range live {
			a.free(e)
		}
		a.check(t)
	}
}

// Steps that are all alike soon keep their memory: what they gave back would only be taken, and zeroed, again.
func TestArenaOfEqualSteps(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only whole segments are given back here")
	}
	var a arena
	defer a.close()
	step := func() (moved bool) {
		before := a.taken
		var pieces, walls []*extent
		take := func(list *[]*extent, mib int) {
			e, err := a.alloc(mib << 20)
			require.NoError(t, err)
			*list = append(*list, e)
			moved = moved || a.taken != before
		}
		for range 32 {
			take(&pieces, 1)
			take(&walls, 3)
		}
		for _, e := range pieces {
			a.free(e)
		}
		take(&walls, 14) // none of the pieces holds it
		for _, e := range walls {
			a.free(e)
		}
		a.check(t)
		return moved
	}
	require.True(t, step())
	for range 5 {
		step()
	}
	for range 20 {
		require.False(t, step())
	}
	require.LessOrEqual(t, a.taken, a.most+smallSlack)
}

// Where no address space is left, a smaller segment will do; where there is no memory, the error says so and nothing is
// lost.
func TestArenaWithoutMemory(t *testing.T) {
	var a arena
	defer a.close()
	_, err := a.alloc(1 << 60)
	require.Error(t, err)
	a.check(t)
	e, err := a.alloc(segmentBytes + 1)
	require.NoError(t, err, "larger than what is reserved at a time")
	require.Zero(t, *(*byte)(unsafe.Add(e.pointer(), segmentBytes)))
	a.free(e)
	a.check(t)
}

// Where address space is limited, less of it is reserved at a time.
func TestLittleAddressSpace(t *testing.T) {
	for _, k := range []struct{ limit, n, want int }{
		{math.MaxInt, 1, segmentBytes}, {math.MaxInt, segmentBytes + 1, segmentBytes + 1},
		{segmentBytes - 1, 1, segmentBytes >> 8}, {segmentBytes - 1, segmentBytes>>8 + 1, segmentBytes>>8 + 1},
		{5, 5, 5}, {5, 6, 0},
	} {
		got := 0
		_, err := generously(func(n int) ([]byte, error) {
			if n > k.limit {
				return nil, errors.New("too much")
			}
			got = n
			return nil, nil
		}, k.n)
		require.Equal(t, k.want == 0, err != nil)
		require.Equal(t, k.want, got, "%+v", k)
	}
}
