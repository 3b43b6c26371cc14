// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// patient is Graphs whose sequences do not depend on the host's pace.
var patient = Graphs{Patience: -1}

// withGraphs opens a device of which streams use graphs in a certain way.
func withGraphs(t *testing.T, g Graphs, o fake.Options) *Device {
	t.Helper()
	fakeAlone(t, "it counts what a device is asked for")
	d := fakeDevice(t, o)
	d.SetGraphs(g)
	return d
}

func flat(b *buffer, dt dtype.DType) backend.View {
	return backend.View{Buf: b, DType: dt, NDim: 1, Shape: [6]int{b.n / dt.Size()}, Stride: [6]int{1}}
}

// op launches an op whose operands are flat float32.
func op(s *stream, c backend.Call, out *buffer, ins ...*buffer) {
	c.NOut, c.NIn, c.Out[0] = 1, len(ins), flat(out, dtype.Float32)
	for i, b := range ins {
		c.In[i] = flat(b, dtype.Float32)
	}
	s.Launch(&c)
}

func fillWith(s *stream, b *buffer, x float64) {
	op(s, backend.Call{Op: backend.OpFill, Floats: [8]float64{x}}, b)
}

func add(s *stream, out, a, b *buffer) { op(s, backend.Call{Op: backend.OpAdd}, out, a, b) }

func float32s(n int, first uint32) []byte {
	var raw []byte
	for i := range n {
		raw = binary.LittleEndian.AppendUint32(raw, 0x3f800000+first<<8+uint32(i))
	}
	return raw
}

// program is a random list of calls; passes of it differ in seeds, numbers and what the host writes.
type program struct {
	d       *Device
	streams [2]*stream
	on      int // the stream that works now
	buffers []*buffer
	seen    [][]byte
}

const wide = 64 // elements of a program's buffers

func newProgram(t *testing.T, d *Device) *program {
	p := &program{d: d, streams: [2]*stream{newStream(d), newStream(d)}}
	for i := range 5 {
		p.buffers = append(p.buffers, get(t, p.streams[0], 4*wide))
		fillWith(p.streams[0], p.buffers[i], float64(i))
	}
	return p
}

// pass makes the calls of one part of the program, which is always the same part for the same seed.
func (p *program) pass(t *testing.T, seed, pass uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	for range 20 + r.IntN(40) {
		s, b := p.streams[p.on], func() *buffer { return p.buffers[r.IntN(len(p.buffers))] }
		switch k := r.IntN(100); {
		case k < 15:
			fillWith(s, b(), float64(r.IntN(3)*int(1+pass%2)))
		case k < 30:
			op(s, backend.Call{Op: backend.OpCopy}, b(), b())
		case k < 55:
			add(s, b(), b(), b())
		case k < 75:
			op(s, backend.Call{Op: backend.OpDropout, Floats: [8]float64{0.5}, Key: pass, Ints: [8]int{int(pass)}}, b(),
				b())
		case k < 85:
			tmp := get(t, s, 4*wide)
			add(s, tmp, b(), b())
			op(s, backend.Call{Op: backend.OpCopy}, b(), tmp)
			p.d.Free(tmp)
		case k < 92:
			e := s.Record()
			p.on = 1 - p.on
			p.streams[p.on].Wait(e)
		case k < 95:
			s.Write(b(), 0, float32s(wide, uint32(pass)))
		case k < 98:
			p.seen = append(p.seen, read(s, b()))
		default:
			s.Sync()
		}
	}
}

// Random programs leave the same in memory with and without graphs, whichever are cached.
func TestProgramsHaveTheSameResults(t *testing.T) {
	for seed := range uint64(3) {
		var want [][]byte
		for i, g := range []Graphs{{Off: true}, patient, {Limit: 3, Patience: -1}, {}} {
			d := withGraphs(t, g, fake.Options{Seed: seed, Delay: 1})
			p := newProgram(t, d)
			r := rand.New(rand.NewPCG(seed, 9))
			for pass := range uint64(24) {
				p.pass(t, 10*seed+r.Uint64N(3), pass)
			}
			for _, b := range p.buffers {
				p.seen = append(p.seen, read(p.streams[p.on], b))
			}
			if i == 0 {
				want = p.seen
				require.Zero(t, d.Graphs().Made+d.Graphs().Launched)
				continue
			}
			require.Equal(t, want, p.seen)
			require.Greater(t, d.Graphs().Launched, int64(10))
			if g.Limit > 0 {
				require.Greater(t, d.Graphs().Made, int64(g.Limit), "some went and came again")
			}
		}
	}
}

// chain is a sequence of calls that depend on one another.
func chain(s *stream, b []*buffer, n int, x float64) {
	fillWith(s, b[0], x)
	fillWith(s, b[1], 1)
	for i := range n {
		add(s, b[i%2], b[0], b[1])
	}
}

func buffers(t *testing.T, s *stream, n, bytes int) (list []*buffer) {
	for range n {
		list = append(list, get(t, s, bytes))
	}
	return list
}

// The first time calls are made one by one, the second time they are captured, later one launch makes them; a number
// that differs is set.
func TestCallsThatRepeat(t *testing.T) {
	driver := fake.New(fake.Options{})
	d, err := Open(driver, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	d.SetGraphs(patient)
	s := newStream(d)
	b := buffers(t, s, 2, 4*wide)
	s.Sync()
	for round, want := range []GraphCounts{
		{0, 0, 0, 0, 8}, {1, 1, 8, 0, 8}, {1, 2, 16, 0, 8}, {1, 3, 24, 1, 8}, {1, 4, 32, 1, 8},
	} {
		before := driver.Calls()
		chain(s, b, 6, []float64{1, 1, 1, 2, 2}[round])
		require.Equal(t, want, d.Graphs())
		if round == 4 {
			require.Equal(t, int64(1), driver.Calls()-before)
		}
		s.Sync()
		require.Equal(t, read(s, b[0]), read(s, b[0]))
	}
	require.Equal(t, int64(40), d.Launches(), "graphs or not")
}

// Sequences are short after a host wait, then longer, and end where the host or another stream must see the work.
func TestSequences(t *testing.T) {
	d := withGraphs(t, Graphs{Patience: 1 << 50}, fake.Options{})
	s := newStream(d)
	b := buffers(t, s, 2, 4*wide)
	s.Sync()
	chain(s, b, 8+16+32+64+64+3-2, 1)
	require.Equal(t, GraphCounts{1, 1, 64, 0, 8 + 16 + 32 + 64}, d.Graphs(), "the second long one is as the first")
	require.Len(t, s.q.now.tasks, 3)
	s.Write(b[0], 0, float32s(wide, 0))
	require.Empty(t, s.q.now.tasks)
	fillWith(s, b[0], 1)
	e := s.Record()
	require.Empty(t, s.q.now.tasks)
	fillWith(s, b[0], 1)
	s.Wait(e)
	require.Empty(t, s.q.now.tasks)
	fillWith(s, b[0], 1)
	d.Sync()
	require.Empty(t, s.q.now.tasks)
	fillWith(s, b[0], 1)
	late(s) // the host does something else
	require.Empty(t, s.q.now.tasks)
	fillWith(s, b[0], 1)
	Native(s)
	require.Empty(t, s.q.now.tasks)
	fillWith(s, b[0], 1)
	require.Empty(t, s.q.now.tasks, "another library queues work on the stream")
}

// late lets the time pass in which something may be added to a sequence.
func late(s *stream) {
	s.q.late()
	s.q.late()
}

// A sequence that stands still is ended, but not one that continues.
func TestPatience(t *testing.T) {
	d := withGraphs(t, Graphs{Patience: 1 << 50}, fake.Options{})
	s := newStream(d)
	b := buffers(t, s, 2, 4*wide)
	s.Sync()
	chain(s, b, 6+3, 1)
	require.True(t, s.q.armed)
	require.Len(t, s.q.now.tasks, 3)
	s.q.late()
	require.Len(t, s.q.now.tasks, 3, "a sequence has ended since: there is work")
	s.q.late()
	require.Empty(t, s.q.now.tasks)
	require.False(t, s.q.armed)
}

// A fault in a graph is named as anywhere.
func TestAFaultInAGraph(t *testing.T) {
	d := withGraphs(t, patient, fake.Options{})
	s := newStream(d)
	table, ids, out := get(t, s, 4*4*2), get(t, s, 8*3), get(t, s, 4*3*2)
	fillWith(s, table, 1)
	view := func(b *buffer, dt dtype.DType, shape ...int) backend.View {
		v := flat(b, dt)
		if len(shape) == 2 {
			v.NDim, v.Shape, v.Stride = 2, [6]int{shape[0], shape[1]}, [6]int{shape[1], 1}
		}
		return v
	}
	look := func(id uint64) {
		var raw []byte
		for _, x := range []uint64{1, id, 3} {
			raw = binary.LittleEndian.AppendUint64(raw, x)
		}
		s.Write(ids, 0, raw)
		for range 5 {
			s.Launch(&backend.Call{Op: backend.OpEmbedding, NOut: 1, NIn: 2,
				Out: [4]backend.View{view(out, dtype.Float32, 3, 2)},
				In:  [8]backend.View{view(table, dtype.Float32, 4, 2), view(ids, dtype.Int64)}})
		}
		s.Sync()
	}
	for range 4 {
		look(2)
	}
	before := d.Graphs()
	for range 2 {
		require.PanicsWithError(t, "cuda:0: embedding: index 9 at element 1 is out of range [0, 4)",
			func() { look(9) })
		look(0)
	}
	require.Equal(t, before.Launched+4, d.Graphs().Launched)
	require.Equal(t, before.Singles+2, d.Graphs().Singles, "what clears the fault")
}

// An error of the driver names the op whose call it was, though others came in between.
func TestAnErrorNamesItsOp(t *testing.T) {
	d := withGraphs(t, Graphs{Patience: 1 << 50}, fake.Options{})
	s := newStream(d)
	b := buffers(t, s, 2, 4*wide)
	s.Sync()
	s.q.op = backend.OpSoftmax
	require.NoError(t, s.q.library("broken", func(cuda.Stream) error { return errors.New("will not") }))
	s.q.op = backend.OpInvalid
	fillWith(s, b[0], 1)
	require.PanicsWithError(t, "cuda:0: softmax: will not", s.Sync)
	s.Sync()
	s.q.op = backend.OpSoftmax
	require.NoError(t, s.q.library("broken", func(cuda.Stream) error { return errors.New("will not") }))
	late(s)
	require.PanicsWithError(t, "cuda:0: softmax: will not", func() { fillWith(s, b[0], 1) }, "nobody saw it before")
}

// Addresses are part of a call: memory that was freed and given out again to others makes another sequence.
func TestMemoryThatMoves(t *testing.T) {
	d := withGraphs(t, patient, fake.Options{})
	s := newStream(d)
	keep := get(t, s, 4*wide)
	sum := func() []byte {
		b := buffers(t, s, 2, 4*wide)
		chain(s, b, 5, 1)
		op(s, backend.Call{Op: backend.OpCopy}, keep, b[0])
		d.Free(b[0])
		d.Free(b[1])
		return read(s, keep)
	}
	want := sum()
	for range 3 {
		require.Equal(t, want, sum())
	}
	launched := d.Graphs().Launched
	require.Positive(t, launched)
	in := get(t, s, 4*wide) // where sum had its first buffer
	fillWith(s, in, 7)
	had := read(s, in)
	for range 3 {
		require.Equal(t, want, sum())
		require.Equal(t, had, read(s, in))
	}
	require.Greater(t, d.Graphs().Launched, launched)
	require.NoError(t, d.mem.trim())
	require.Equal(t, want, sum())
	require.Equal(t, had, read(s, in))
	require.Empty(t, s.q.graphs.made, "the driver got memory back")
}

// Memory that another stream used comes back when the host waits, behind that stream's use of it.
func TestMemoryOfOthersComesBackAtAHostWait(t *testing.T) {
	d := withGraphs(t, patient, fake.Options{})
	s, other := newStream(d), newStream(d)
	x, y := get(t, s, 4), get(t, other, 4)
	s.Write(x, 0, one32)
	other.Wait(s.Record())
	release := hold(t, other)
	op(other, backend.Call{Op: backend.OpCopy}, y, x)
	d.Free(x)
	require.NotEqual(t, x.at, get(t, s, 4).at)
	s.Sync()
	z := get(t, s, 4)
	require.Equal(t, x.at, z.at)
	s.Write(z, 0, four32)
	release()
	require.Equal(t, one32, read(other, y))
	require.Equal(t, four32, read(s, z))
}

// Shapes that change each time cost no graphs.
func TestShapesThatChange(t *testing.T) {
	d := withGraphs(t, patient, fake.Options{})
	s := newStream(d)
	for n := range 30 {
		b := buffers(t, s, 2, 4*(n+1))
		chain(s, b, 20, 1)
		raw := read(s, b[0])
		require.Equal(t, raw[:4], raw[4*n:])
		d.Free(b[0])
		d.Free(b[1])
	}
	require.Zero(t, d.Graphs().Made)
}

// Where nothing comes again, calls are made at once after a while, and now and then graphs are tried again.
func TestNothingComesAgain(t *testing.T) {
	g := &graphs{limit: 2}
	q := newQueue(&Device{}, none{}, patient)
	sequences := 0
	play := func(n int) {
		s := &sequence{calls: 8, tasks: make([]task, 8), ops: make([]backend.Op, 8),
			runs: make([]func(cuda.Stream) error, 8)}
		for i := range s.tasks {
			s.tasks[i] = task{kind: fills, n: n}
		}
		sequences++
		require.NoError(t, g.perform(q, s))
	}
	for n := range hopeful {
		require.Zero(t, g.pause)
		play(n)
	}
	require.Equal(t, pause, g.pause)
	for range pause / 8 {
		play(1 << 30)
	}
	require.Zero(t, g.pause)
	require.Zero(t, g.launched)
	require.LessOrEqual(t, len(g.seen), mostNew)
	for n := range 300 { // each twice, and never again
		play(1<<20 + n)
		play(1<<20 + n)
		require.LessOrEqual(t, len(g.made)+len(g.old), 2*g.limit)
		if n%2 == 0 {
			g.takeOld()
		}
	}
	require.Equal(t, g.captured, g.launched)
	require.Less(t, g.captured, 50)
	for range 3 {
		for _, old := range g.takeOld() {
			require.NoError(t, old.Close())
		}
		play(1 << 21)
	}
	require.Positive(t, g.launched, "what comes again finds room")
}

// none is a stream that does nothing.
type none struct{ cuda.Stream }

func (none) Fill(cuda.Ptr, byte, int) error { return nil }
func (none) Capture(f func() error) (cuda.Graph, error) {
	return noGraph{}, f()
}

type noGraph struct{}

func (noGraph) Launch(cuda.Stream) error    { return nil }
func (noGraph) SetParams(int, []byte) error { return nil }
func (noGraph) Close() error                { return nil }

// refusing is a stream of a driver that captures nothing, or sets no parameters.
type refusing struct {
	cuda.Stream
	captures bool
}

func (r refusing) Capture(f func() error) (cuda.Graph, error) {
	if !r.captures {
		return nil, errors.New("no captures")
	}
	g, err := r.Stream.Capture(f)
	return fixed{g, r.Stream}, err
}

// fixed is a graph whose parameters cannot be set.
type fixed struct {
	cuda.Graph
	on cuda.Stream
}

func (f fixed) Launch(cuda.Stream) error { return f.Graph.Launch(f.on) }
func (fixed) SetParams(int, []byte) error {
	return errors.New("no parameters")
}

// A driver that cannot do it is asked no more, and the work is done.
func TestDriversWithoutGraphs(t *testing.T) {
	for _, captures := range []bool{false, true} {
		d := withGraphs(t, patient, fake.Options{})
		s := newStream(d)
		b := buffers(t, s, 2, 4)
		s.Sync()
		s.q.q = refusing{s.q.q, captures}
		for x := range 8 {
			require.Equal(t, !captures && x > 2 || x > 6, s.q.direct, "%d", x)
			fillWith(s, b[0], 0)
			for range 7 {
				fillWith(s, b[1], float64(max(2, x)-1))
				add(s, b[0], b[0], b[1])
			}
			require.Equal(t, float32(7*max(1, x-1)), math.Float32frombits(binary.LittleEndian.Uint32(read(s, b[0]))))
		}
	}
}

// Two sequences of one hash are not taken for one another.
func TestSequencesAreCompared(t *testing.T) {
	d := withGraphs(t, patient, fake.Options{})
	s := newStream(d)
	b := buffers(t, s, 2, 4*wide)
	s.Sync()
	round := func(n int) []byte {
		chain(s, b, n, 1)
		return read(s, b[0])
	}
	want := round(5)
	round(5)
	require.NotEqual(t, want, round(7))
	require.Len(t, s.q.graphs.made, 1)
	launched := int64(1)
	for _, have := range s.q.graphs.made {
		for _, other := range []func(by int){ // sequences, as far as anybody can see
			func(by int) { have.tasks[2].n += by },
			func(by int) { have.params[0] += byte(by) },
			func(by int) { have.places[0].at += by },
		} {
			other(1)
			require.Equal(t, want, round(5))
			require.Equal(t, launched, d.Graphs().Launched)
			other(-1)
			require.Equal(t, want, round(5))
			launched++
			require.Equal(t, launched, d.Graphs().Launched)
		}
	}
}

// logged is a stream that notes waits, and what becomes of its graphs.
type logged struct {
	none
	log *[]string
}

func (l logged) Sync() error { *l.log = append(*l.log, "sync"); return nil }

func (l logged) Capture(f func() error) (cuda.Graph, error) { return loggedGraph{log: l.log}, f() }

type loggedGraph struct {
	noGraph
	log *[]string
}

func (l loggedGraph) Close() error { *l.log = append(*l.log, "close"); return nil }

// Graphs beyond the limit go, those that were launched last stay, and none is destroyed before its launches are done.
func TestEviction(t *testing.T) {
	var log []string
	q := newQueue(&Device{}, logged{log: &log}, Graphs{Limit: 4, Patience: -1})
	play := func(n int) (launched bool) {
		before := q.d.Graphs().Launched
		for range firstTasks {
			require.NoError(t, q.Fill(8, 0, n))
		}
		require.NoError(t, q.flush())
		return q.d.Graphs().Launched > before
	}
	for n := range 4 {
		require.False(t, play(n))
		require.True(t, play(n), "captured")
	}
	require.True(t, play(0))
	require.False(t, play(4))
	require.True(t, play(4))
	require.Len(t, q.graphs.made, 4)
	require.Empty(t, log)
	require.True(t, play(0))
	require.True(t, play(2))
	require.False(t, play(1), "the one that was launched first")
	require.NoError(t, q.Sync())
	require.Equal(t, []string{"sync", "close"}, log)
	q.drop()
	require.NoError(t, q.Sync())
	require.Equal(t, []string{"sync", "close", "sync", "close", "close", "close", "close"}, log)
}

func TestSwitch(t *testing.T) {
	for text, off := range map[string]bool{"": false, "1": false, "0": true, "false": true} {
		t.Setenv(EnvGraphs, text)
		d := fakeDevice(t, fake.Options{})
		require.Equal(t, off, newStream(d).q.direct)
	}
	t.Setenv(EnvGraphs, "maybe")
	_, err := Open(fake.New(fake.Options{}), 0)
	require.EqualError(t, err, `LOCKSTEP_CUDA_GRAPHS is "maybe": want 0 or 1`)
}

func (none) Launch(cuda.Function, [3]uint32, [3]uint32, int, []byte) error { return nil }
func (none) Sync() error                                                   { return nil }

// BenchmarkQueue measures what the host does for a kernel before a driver that costs nothing: calls made at once, and
// calls compared with a graph's.
func BenchmarkQueue(b *testing.B) {
	for name, g := range map[string]Graphs{"at once": {Off: true}, "graphs": {}} {
		b.Run(name, func(b *testing.B) {
			q := newQueue(&Device{}, none{}, g)
			b.ReportAllocs()
			for i := range b.N {
				var a args
				for k := range 15 {
					a.ptr(cuda.Ptr(i % 500 * k))
				}
				if err := q.launch(nil, [3]uint32{1, 1, 1}, block256, 0, &a); err != nil {
					b.Fatal(err)
				}
				if i%500 == 499 {
					require.NoError(b, q.Sync())
				}
			}
		})
	}
}
