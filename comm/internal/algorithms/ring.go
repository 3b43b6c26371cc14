// SPDX-License-Identifier: Apache-2.0

package algorithms

import "github.com/lockstep-ml/lockstep/comm/internal/window"

// ring sends and receives chunks in a ring: to the next rank and from the one before. Chunk t of one step continues as
// chunk t + width, in the next step.
type ring struct {
	x     *exchange
	steps int
	width int                // chunks of a step
	out   func(t int) []byte // what is sent; after the first step it is known when chunk t − width was taken
	in    func(t int) []byte // where is received
	busy  func(t int) int    // the chunk sent from there before; below 0: none
	took  func(t int)        // what is done with a chunk that was received
}

// run carries all steps out. That no rank waits for ever follows from the numbers: to take chunk t, a rank waits for
// the one before to take t − width, and for the next to take busy(t), which is below t.
func (g *ring) run() error {
	total := g.steps * g.width
	next, last := (g.x.me+1)%g.x.n, (g.x.me+g.x.n-1)%g.x.n
	rounds := make([]Round, total)
	begin := func(t int) {
		rounds[t] = round(g.x.l, []Part{{next, g.out(t)}}, []Part{{last, g.in(t)}})
	}
	for t := range g.width {
		begin(t)
	}
	for t := range total {
		if sent := g.busy(t); sent >= 0 {
			if err := rounds[sent].Sent(); err != nil {
				return err
			}
		}
		if err := rounds[t].Received(); err != nil {
			return err
		}
		g.took(t)
		if t+g.width < total {
			begin(t + g.width)
		}
	}
	return nil
}

// ringAllReduce adds partial sums up around the ring, each rank's slice ending at that rank, and then passes the
// results around it. Each rank sends 2(n−1)/n of the buffer, to its neighbour alone. All ranks have the same bits:
// those of a slice are made by the rank where it ends.
func (x *exchange) ringAllReduce() error {
	c, n := x.c, x.n
	keep(c.In, c.Out)
	widest := 0
	for r := range n {
		from, to := window.Share(c.Count, n, r, shareUnit)
		widest = max(widest, (to-from)*x.size)
	}
	width := chunks(widest, x.r.ChunkBytes)
	x.r.room(x.r.ChunkBytes)
	// part is chunk t%width of the slice that this rank receives in its step, or sends in the next
	part := func(t, slice int) []byte {
		from, to := window.Share(c.Count, n, (slice+2*n)%n, shareUnit)
		return chunk(c.Out[from*x.size:to*x.size], t%width, x.r.ChunkBytes)
	}
	step := func(t int) int { return t / width }
	taken := func(t int) []byte {
		if s := step(t); s < n-1 {
			return part(t, x.me-2-s)
		}
		return part(t, x.me-1-(step(t)-(n-1)))
	}
	return (&ring{
		x: x, steps: 2 * (n - 1), width: width,
		out: func(t int) []byte {
			if t < width {
				return part(t, x.me-1)
			}
			return taken(t - width)
		},
		in: func(t int) []byte {
			if step(t) < n-1 {
				return x.r.scratch[:len(taken(t))]
			}
			return taken(t)
		},
		busy: func(t int) int { return t - (n-1)*width },
		took: func(t int) {
			if step(t) < n-1 {
				x.combine(taken(t), taken(t), x.r.scratch[:len(taken(t))])
			}
		},
	}).run()
}

// ringReduceScatter is the first half of that. The input stays unchanged: partial sums lie in their own memory.
func (x *exchange) ringReduceScatter() error {
	c, n, block := x.c, x.n, x.c.Count*x.size
	width := chunks(block, x.r.ChunkBytes)
	x.r.room(2 * block)
	input := func(t, rank int) []byte {
		rank = (rank + 2*n) % n
		return chunk(c.In[rank*block:(rank+1)*block], t%width, x.r.ChunkBytes)
	}
	partial := func(t int) []byte {
		lo := t / width % 2 * block
		return chunk(x.r.scratch[lo:lo+block], t%width, x.r.ChunkBytes)
	}
	return (&ring{
		x: x, steps: n - 1, width: width,
		out: func(t int) []byte {
			if t < width {
				return input(t, x.me-1)
			}
			return partial(t - width)
		},
		in:   partial,
		busy: func(t int) int { return t - width },
		took: func(t int) {
			to := partial(t)
			if t/width == n-2 {
				to = chunk(c.Out, t%width, x.r.ChunkBytes)
			}
			x.combine(to, partial(t), input(t, x.me-2-t/width))
		},
	}).run()
}

// chunks is the number of chunks of so many bytes.
func chunks(n, chunkBytes int) int { return max(1, (n+chunkBytes-1)/chunkBytes) }

// chunk is chunk i of b; it may be short or empty.
func chunk(b []byte, i, chunkBytes int) []byte {
	return b[min(i*chunkBytes, len(b)):min((i+1)*chunkBytes, len(b))]
}
