// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// maxList is LIST of kernels/many.cuh, and maxListed the largest number of operands of a listed group.
const (
	maxList   = 64
	maxListed = 4
)

// listed is how a call is a member of a list: what it has in common with calls that one launch can work on together,
// and its own operands. The zero value is a call that has nothing to do.
type listed struct {
	listKey
	n  int
	at [maxListed]cuda.Ptr
}

// listKey are what one launch has once.
type listKey struct {
	kernel   string
	operands int
	chunk    int // of elements that a block takes
	bytes    int // what operands are aligned to where loads are wide
	narrow   int // operands at the beginning of which that is not asked
	ending   ending
	bits     uint64
	step     step
	flag     cuda.Ptr
}

// ending is what follows the list in a kernel's parameter block.
type ending uint8

const (
	endsAtOnce   ending = iota
	endsWithFlag        // the flag
	endsWithBits        // bits, flag
	endsWithStep        // the numbers of a step, with the flag
)

// step are the numbers of an optimizer's step, as Numbers of kernels/adam.cu.
type step struct {
	floats         [8]float64
	factor, others cuda.Ptr
}

// list is List of kernels/many.cuh.
type list struct {
	listKey
	count int
	n     [maxList]int
	at    [maxListed][maxList]cuda.Ptr
}

func (l *list) add(m *listed) {
	l.n[l.count] = m.n
	for k := range l.operands {
		l.at[k][l.count] = m.at[k]
	}
	l.count++
}

// listOf finds how a call can be part of a list.
func (s *stream) listOf(c *backend.Call) (m listed, ok bool) {
	switch c.Op {
	case backend.OpCopy:
		return s.listCopy(c)
	case backend.OpFill:
		return s.listFill(c)
	case backend.OpSumSq:
		return s.listSumSq(c), true
	case backend.OpAdamW:
		return s.listAdamW(c), true
	}
	return m, false
}

// LaunchMany queues the calls of one op, many in one kernel where there is one for them.
func (s *stream) LaunchMany(calls []backend.Call) {
	defer s.done()
	var lists []*list
	for i := range calls {
		c := &calls[i]
		s.check(c)
		m, ok := s.listOf(c)
		if !ok {
			table[c.Op].launch(s, c)
			continue
		}
		if m.n == 0 {
			continue
		}
		var into *list
		for _, l := range lists {
			if l.listKey == m.listKey {
				into = l
			}
		}
		if into == nil {
			into = &list{listKey: m.listKey}
			lists = append(lists, into)
		}
		into.add(&m)
		if into.count == maxList {
			s.launchList(into)
			into.count = 0
		}
	}
	for _, l := range lists {
		s.launchList(l)
	}
}

// launchListed queues one call alone.
func (s *stream) launchListed(m *listed) {
	if m.n == 0 {
		return
	}
	l := list{listKey: m.listKey}
	l.add(m)
	s.launchList(&l)
}

func (s *stream) launchList(l *list) {
	if l.count == 0 {
		return
	}
	var a args
	chunks := 0
	all := cuda.Ptr(0)
	a.u32(uint32(l.count))
	wide := a.n
	a.u32(0)
	a.u32(uint32(l.chunk))
	for i := range maxList + 1 {
		a.u32(uint32(chunks))
		if i < l.count {
			chunks += (l.n[i] + l.chunk - 1) / l.chunk
		}
	}
	for i := range maxList {
		if i < l.count {
			a.i64(l.n[i])
		} else {
			a.i64(0)
		}
	}
	for k := range l.operands {
		for i := range maxList {
			p := cuda.Ptr(0)
			if i < l.count {
				p = l.at[k][i]
			}
			a.ptr(p)
			if k >= l.narrow {
				all |= p
			}
		}
	}
	end := a.n
	a.n = wide
	a.aligned(all, l.bytes)
	a.n = end
	switch l.ending {
	case endsWithFlag:
		a.ptr(l.flag)
	case endsWithBits:
		a.number(l.bits)
		a.ptr(l.flag)
	case endsWithStep:
		a.step(&l.step, l.flag)
	}
	s.kernel(l.kernel, [3]uint32{min(blocksFor(chunks, 1), uint32(16*s.sms())), 1, 1}, block256, 0, &a)
}
