// SPDX-License-Identifier: Apache-2.0

package schedule

// line is the list of one rank in the making. Its methods take the rank's stages by number, 0 for the first, and give
// each pass of a stage the next micro-batch: within a stage and an op, micro-batches ascend.
type line struct {
	actions []Action
	stages  []int
	next    []passes // by number of the stage
}

// passes counts the micro-batches of which a stage has had a pass.
type passes struct{ f, i, w int }

func newLine(stages []int, microBatches int) *line {
	return &line{make([]Action, 0, 3*len(stages)*microBatches), stages, make([]passes, len(stages))}
}

func (l *line) add(op Op, stage int, count *int) {
	l.actions = append(l.actions, Action{Op: op, Stage: l.stages[stage], MicroBatch: *count})
	*count++
}

// f adds a forward pass.
func (l *line) f(stage int) { l.add(F, stage, &l.next[stage].f) }

// i adds a backward pass to the input's gradient.
func (l *line) i(stage int) { l.add(I, stage, &l.next[stage].i) }

// w adds a backward pass to the weights' gradients.
func (l *line) w(stage int) { l.add(W, stage, &l.next[stage].w) }

// b adds a whole backward pass.
func (l *line) b(stage int) {
	l.add(B, stage, &l.next[stage].i)
	l.next[stage].w++
}

// overlap lets the last action and the next one run at the same time.
func (l *line) overlap() { l.actions[len(l.actions)-1].Overlap = true }

// waits is the number of micro-batches whose weight gradients a stage has not computed, though it could.
func (l *line) waits(stage int) int { return l.next[stage].i - l.next[stage].w }

// times repeats steps.
func times(n int, steps ...func()) {
	for range n {
		for _, step := range steps {
			step()
		}
	}
}

// breadthFirst is GPipe, and Looped BFS where ranks have several stages: all micro-batches pass through a stage before
// the rank turns to its next one. PyTorch's Looped BFS runs backward passes in descending order; here they ascend,
// which takes the same time.
func breadthFirst(l *line, _ int, of Shape) {
	for stage := range l.stages {
		times(of.MicroBatches, func() { l.f(stage) })
	}
	for stage := len(l.stages) - 1; stage >= 0; stage-- {
		times(of.MicroBatches, func() { l.b(stage) })
	}
}

// oneForwardOneBackward is PipeDream-Flush: a rank runs as many forward passes as there are ranks behind it, then
// alternates between one forward and one backward pass, so that it holds the activations of at most ranks − rank
// micro-batches.
func oneForwardOneBackward(l *line, rank int, of Shape) {
	first := func(int) int { return 0 }
	alternate(l, of.Ranks-1-rank, of.MicroBatches, first, first)
}

// interleaved is the schedule of Megatron-LM: 1F1B over several stages per rank. A rank turns to its next stage after
// as many micro-batches as there are ranks.
func interleaved(l *line, rank int, of Shape) {
	v := of.StagesPerRank
	forward := func(n int) int { return n / of.Ranks % v }
	backward := func(n int) int { return v - 1 - forward(n) }
	alternate(l, (v-1)*of.Ranks+2*(of.Ranks-1-rank), v*of.MicroBatches, forward, backward)
}

// alternate runs warmUp forward passes, then alternates between forward and backward passes, then runs the remaining
// backward passes, of n each. The functions give the stage of the n-th pass.
func alternate(l *line, warmUp, n int, forward, backward func(n int) int) {
	warmUp = min(warmUp, n)
	for k := range warmUp {
		l.f(forward(k))
	}
	for k := range n {
		if warmUp+k < n {
			l.f(forward(warmUp + k))
		}
		l.b(backward(k))
	}
}

// zeroBubbleH1 is ZB-H1: 1F1B with the backward pass in two parts, of which the rank before waits for the first part
// only. Rank r runs its W passes r micro-batches late, which fills the end of the step. Every rank then holds the
// activations of as many micro-batches as rank 0 does under 1F1B.
func zeroBubbleH1(l *line, rank int, of Shape) {
	warmUp := min(of.Ranks-1-rank, of.MicroBatches)
	times(warmUp, func() { l.f(0) })
	for k := range of.MicroBatches {
		if warmUp+k < of.MicroBatches {
			l.f(0)
		}
		l.i(0)
		if k >= rank {
			l.w(0)
		}
	}
	times(l.waits(0), func() { l.w(0) })
}

// zeroBubbleV is ZBV: two stages per rank, placed as a V. It has no idle time beyond the trip of the first micro-batch
// to the last rank where F, I and W take the same time, and holds the activations of 1F1B.
func zeroBubbleV(l *line, rank int, of Shape) {
	const a, b = 0, 1 // the stages down and up the V
	fa, fb := func() { l.f(a) }, func() { l.f(b) }
	iw := func(stage int) func() { return func() { l.i(stage); l.w(stage) } }
	behind := of.Ranks - rank // ranks from this one to the V's turn

	times(2*behind-1, fa)
	times(rank, fb, fa)
	times(behind, fb, iw(b))
	for l.next[b].f < of.MicroBatches {
		if l.next[a].f < of.MicroBatches {
			fa()
		}
		times(1, iw(a), fb, iw(b))
	}
	times(rank, func() { l.i(a); l.i(b) })
	times(behind, func() { l.i(a); l.w(a) })
	times(l.waits(b), func() { l.w(b) })
	times(l.waits(a), func() { l.w(a) })
}

// dualPipeV is the V half of DualPipe: most of its forward passes overlap with a backward pass of the other direction.
// The steps are those of DeepSeek's description.
func dualPipeV(l *line, rank int, of Shape) {
	const a, b = 0, 1 // the stages down and up the V
	fa, fb := func() { l.f(a) }, func() { l.f(b) }
	ba, bb := func() { l.b(a) }, func() { l.b(b) }
	var late []int // the stages of the W passes that are to come
	i := func(stage int) { l.i(stage); late = append(late, stage) }
	w := func() {
		if len(late) > 0 {
			l.w(late[0])
			late = late[1:]
		}
	}
	ahead, behind := rank+1, of.Ranks-rank-1

	times(2*behind, fa)
	times(ahead, fa, fb)
	times(behind, func() { i(b) }, w, fb)
	for k := range of.MicroBatches - 2*of.Ranks + rank + 1 {
		fa()
		if k > 0 || behind > 0 { // the last rank's first pair is shorter one after the other
			l.overlap()
		}
		times(1, bb, fb, l.overlap, ba)
	}
	times(behind, bb, fb, l.overlap, ba)
	// From the middle of what is left, W passes wait for the end, one stage earlier on odd ranks.
	half := ahead / 2
	for k := range ahead {
		if k > half || k == half && rank%2 == 1 {
			i(b)
		} else {
			bb()
		}
		if k >= half {
			i(a)
		} else {
			ba()
		}
	}
	times(behind, w, func() { i(a) })
	times(len(late), w)
}
