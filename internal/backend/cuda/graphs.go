// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// EnvGraphs names a variable: 0 turns CUDA graphs off.
const EnvGraphs = "LOCKSTEP_CUDA_GRAPHS"

// Graphs say how streams use CUDA graphs. The zero value is what is best for training.
type Graphs struct {
	Off      bool          // make each call at once
	Limit    int           // graphs of a stream; 0 means 512
	Patience time.Duration // how long a call may wait for others to come; 0 means 1 ms, a negative one for ever
}

func (g Graphs) limit() int { return cmp.Or(max(g.Limit, 0), 512) }

func (g Graphs) patience() time.Duration { return cmp.Or(g.Patience, time.Millisecond) }

// kind is what a task calls.
type kind uint8

const (
	launches kind = iota
	fills
	copies
	calls
	forgets
)

// task is a call of the driver, without the numbers that may differ from time to time.
type task struct {
	kind        kind
	value       byte
	grid, block [3]uint32
	shared      int
	f           cuda.Function
	from, to    int // its parameter block in the sequence's
	kernel      int // its number among the sequence's kernels
	dst, src    cuda.Ptr
	n           int
	key         any // of a library's call
}

// sequence are calls of a stream, one after the other.
type sequence struct {
	tasks   []task
	params  []byte   // parameter blocks, one after the other, with zeros where numbers are
	places  []place  // of the numbers
	numbers []uint64 // that do not matter to what is done where: seeds, positions, factors

	ops            []backend.Op              // of each task
	runs           []func(cuda.Stream) error // of a library's
	calls, kernels int                       // tasks that the real driver has, and kernels among them
}

// place is where a number is.
type place struct{ task, at int }

func (s *sequence) reset() {
	clear(s.runs)
	s.tasks, s.params, s.places, s.numbers = s.tasks[:0], s.params[:0], s.places[:0], s.numbers[:0]
	s.ops, s.runs, s.calls, s.kernels = s.ops[:0], s.runs[:0], 0, 0
}

// hide takes a number out of the parameters.
func (s *sequence) hide(task, at int) {
	s.places = append(s.places, place{task, at})
	s.numbers = append(s.numbers, binary.LittleEndian.Uint64(s.params[at:]))
	clear(s.params[at : at+8])
}

// show puts the numbers back.
func (s *sequence) show() {
	for i, p := range s.places {
		binary.LittleEndian.PutUint64(s.params[p.at:], s.numbers[i])
	}
}

// same reports whether two sequences differ in numbers alone.
func (s *sequence) same(o *sequence) bool {
	return slices.Equal(s.tasks, o.tasks) && slices.Equal(s.places, o.places) && string(s.params) == string(o.params)
}

// make makes the calls one by one.
func (s *sequence) make(to cuda.Stream) error {
	for i := range s.tasks {
		if err := s.tasks[i].make(to, s.params, s.runs[i]); err != nil {
			return &opError{s.ops[i], err}
		}
	}
	return nil
}

func (t *task) make(to cuda.Stream, params []byte, run func(cuda.Stream) error) error {
	switch t.kind {
	case launches:
		return to.Launch(t.f, t.grid, t.block, t.shared, params[t.from:t.to])
	case fills:
		return to.Fill(t.dst, t.value, t.n)
	case copies:
		return to.CopyOnDevice(t.dst, t.src, t.n)
	case calls:
		return run(to)
	}
	return to.(forgetter).Forget(t.dst, t.n)
}

// clone keeps what is compared, which lives as long as a graph.
func (s *sequence) clone() sequence {
	return sequence{tasks: slices.Clone(s.tasks), params: slices.Clone(s.params), places: slices.Clone(s.places),
		numbers: slices.Clone(s.numbers), calls: s.calls}
}

const (
	fewest   = 4     // calls that are worth a graph
	mostNew  = 4096  // sequences that came once, whose hashes are kept
	rare     = 64    // of so many sequences one may be captured, if no graph ever comes again
	hopeful  = 2048  // sequences in a row none of which came again, after which nothing more is expected
	pause    = 32768 // calls until it is tried again
	refusals = 3     // refusals of the driver, after which it is asked no more
)

// graphs are those of a queue. A sequence that comes for the first time leaves its hash; the second time its calls are
// captured; from then on the graph is launched, when all has been compared and the numbers that differ have been set.
// The queue's lock guards it.
type graphs struct {
	limit int
	seen  map[uint64]struct{} // hashes of sequences that came once
	made  map[uint64]*graph
	old   []cuda.Graph // that nobody will launch again, and that may still run

	launched, captured, single int // sequences so far
	refused                    int // graphs, by the driver: another thread may have spoiled a capture
	idle                       int // sequences since a graph was launched last
	pause                      int // calls that are made at once until graphs are tried again
}

// graph is a sequence that was captured.
type graph struct {
	sequence // its numbers are those that the graph has
	g        cuda.Graph
	used     int // graphs that had been launched when it was launched last
}

var seed = maphash.MakeSeed()

func (s *sequence) hash() uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for i := range s.tasks {
		maphash.WriteComparable(&h, s.tasks[i])
	}
	_, _ = h.Write(s.params) // which cannot fail
	return h.Sum64()
}

// perform makes the calls of a sequence.
func (g *graphs) perform(q *queue, s *sequence) error {
	if q.direct || g.pause > 0 || s.calls < fewest {
		g.pause = max(0, g.pause-s.calls)
		return g.one(q, s)
	}
	hash := s.hash()
	have := g.made[hash]
	_, again := g.seen[hash]
	switch {
	case have != nil && have.same(s):
		if changed := have.changed(s); 2*len(changed) <= s.calls {
			return g.launch(q, hash, have, s, changed)
		}
	case have != nil: // another one of the same hash
	case again && g.worth():
		return g.capture(q, hash, s)
	default:
		if len(g.seen) >= mostNew {
			clear(g.seen)
		}
		if g.seen == nil {
			g.seen, g.made = map[uint64]struct{}{}, map[uint64]*graph{}
		}
		g.seen[hash] = struct{}{}
	}
	g.single++
	if g.idle++; g.idle >= hopeful {
		g.idle, g.pause = 0, pause
	}
	return g.one(q, s)
}

// one makes the calls one by one.
func (g *graphs) one(q *queue, s *sequence) error {
	q.d.counters.singles.Add(int64(s.calls))
	s.show()
	return s.make(q.q)
}

// without makes the calls of a sequence that the driver makes no graph of: they work, or say why not.
func (g *graphs) without(q *queue, s *sequence) error {
	if g.refused++; g.refused == refusals {
		q.direct = true
	}
	return g.one(q, s)
}

// worth reports whether another graph may be made. It costs more than its calls: so there may be as many as the limit
// says, and then more if those that were made have come again as often.
func (g *graphs) worth() bool {
	again := g.launched - g.captured
	return g.captured < g.limit+again+g.single/rare && len(g.made)+len(g.old) < 2*g.limit
}

// capture makes a graph of a sequence, and launches it.
func (g *graphs) capture(q *queue, hash uint64, s *sequence) error {
	have := &graph{sequence: s.clone()}
	s.show()
	var err error
	if have.g, err = q.q.Capture(func() error { return s.make(q.q) }); err != nil {
		return g.without(q, s)
	}
	g.captured++
	q.d.counters.graphs.Add(1)
	delete(g.seen, hash)
	g.evict()
	g.made[hash] = have
	return g.launch(q, hash, have, s, nil)
}

// changed lists the tasks whose numbers are not the graph's.
func (h *graph) changed(s *sequence) (tasks []int) {
	for i, n := range s.numbers {
		if t := s.places[i].task; n != h.numbers[i] && (len(tasks) == 0 || tasks[len(tasks)-1] != t) {
			tasks = append(tasks, t)
		}
	}
	return tasks
}

// launch launches a graph with the numbers of a sequence.
func (g *graphs) launch(q *queue, hash uint64, have *graph, s *sequence, changed []int) error {
	c := &q.d.counters
	if len(changed) > 0 {
		s.show()
	}
	for _, i := range changed {
		t := &s.tasks[i]
		if err := have.g.SetParams(t.kernel, s.params[t.from:t.to]); err != nil {
			delete(g.made, hash)
			g.old = append(g.old, have.g)
			return g.without(q, s)
		}
	}
	copy(have.numbers, s.numbers)
	g.launched++
	g.idle, have.used = 0, g.launched
	c.graphLaunches.Add(1)
	c.inGraphs.Add(int64(s.calls))
	c.changed.Add(int64(len(changed)))
	if err := have.g.Launch(q.q); err != nil {
		return &opError{s.ops[0], err}
	}
	return nil
}

// evict makes room for a graph: those go that have not been launched for the longest time.
func (g *graphs) evict() {
	if len(g.made) < g.limit {
		return
	}
	hashes := slices.SortedFunc(maps.Keys(g.made), func(a, b uint64) int {
		return cmp.Compare(g.made[a].used, g.made[b].used)
	})
	for _, hash := range hashes[:(g.limit+3)/4] {
		g.old = append(g.old, g.made[hash].g)
		delete(g.made, hash)
	}
}

// drop gives all graphs up.
func (g *graphs) drop() {
	for _, have := range g.made {
		g.old = append(g.old, have.g)
	}
	clear(g.made)
	clear(g.seen)
}

// takeOld returns those that may be destroyed once the stream has done what it has now.
func (g *graphs) takeOld() []cuda.Graph {
	old := g.old
	g.old = nil
	return old
}
