// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/comm/nccl/engine"
	"github.com/lockstep-ml/lockstep/internal/backend"
	backendcuda "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/internal/nccl"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is one of several fake devices with a fake of NCCL.
type machine struct {
	lib     *fake.NCCL
	devices []*tensor.Device
	ways    map[*tensor.Device]chan *way // by device: those that nobody uses
}

// way is how host bytes come to a device and back.
type way struct {
	queue *tensor.Queue
	ctx   *tensor.Ctx
}

// ways is how many ways there are to each device. They are made before the suite counts goroutines.
const ways = 6

// spares are streams of each device for groups: one that fails keeps its own, which may have work that never ends. They
// are made before the suite counts goroutines, too.
const spares = 24

func newMachine(t *testing.T, n int) *machine {
	m := &machine{lib: fake.NewNCCL(), ways: map[*tensor.Device]chan *way{}}
	driver := fake.New(fake.Options{Devices: n})
	for i := range n {
		be, err := backendcuda.Open(driver, i)
		require.NoError(t, err)
		dev := joint.Device[*tensor.Device](be)
		m.devices, m.ways[dev] = append(m.devices, dev), make(chan *way, ways)
		var borrowed []backend.Stream
		for range ways {
			m.ways[dev] <- &way{dev.NewQueue(), tensor.NewCtx(dev).NoGrad()}
		}
		for range spares {
			borrowed = append(borrowed, backendcuda.Borrow(be))
		}
		for _, s := range borrowed {
			backendcuda.GiveBack(s)
		}
	}
	t.Cleanup(func() {
		for _, d := range m.devices {
			require.NoError(t, d.Close())
		}
		require.Zero(t, m.lib.Live(), "communicators that were not given back")
	})
	return m
}

// onDevices lets all collective calls of host buffers go through tensors on a rank's device, so that the suite of
// package commtest tests the device engine.
type onDevices struct {
	comm.Engine
	m       *machine
	dev     *tensor.Device
	devices comm.DeviceEngine
}

func (m *machine) wrap(t *testing.T, e comm.Engine, dev *tensor.Device, name string) *onDevices {
	devices, err := engine.Over(m.lib)(name, e)
	require.NoError(t, err)
	return &onDevices{Engine: e, m: m, dev: dev, devices: devices}
}

func (e *onDevices) Describe() comm.Info { return comm.Info{Name: "nccl", Path: e.devices.Describe()} }

func (e *onDevices) Run(c *comm.Call) error {
	if c.Op.PointToPoint() {
		return e.Engine.Run(c)
	}
	if err := comm.Meet(e.Engine, c); err != nil {
		return err
	}
	if !e.devices.Carries(c.Signature, e.dev) {
		return e.Engine.Run(c)
	}
	var err error
	way := <-e.m.ways[e.dev]
	defer func() { e.m.ways[e.dev] <- way }()
	fault := tensor.Try(func() {
		in, out := way.upload(c)
		if err = e.devices.Run(c, in, out); err != nil {
			return
		}
		if out != nil {
			way.queue.Read(c.Out, out)
		}
	})
	return errors.Join(err, fault)
}

// upload makes tensors of a call's buffers, one of which may be part of the other.
func (w *way) upload(c *comm.Call) (in, out *tensor.Memory) {
	whole := func(b []byte) *tensor.Tensor {
		if b == nil {
			return nil
		}
		t := tensor.Zeros(w.ctx, c.DType, len(b)/c.DType.Size())
		w.queue.Write(t.Memory(w.ctx), b)
		return t
	}
	memory := func(t *tensor.Tensor) *tensor.Memory {
		if t == nil {
			return nil
		}
		return t.Memory(w.ctx)
	}
	part := func(t *tensor.Tensor, of, b []byte) *tensor.Tensor { // nil if b is no part of what t was made of
		if len(b) == 0 || len(b) > len(of) {
			return nil
		}
		at := uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&of[0]))
		if at > uintptr(len(of)-len(b)) {
			return nil
		}
		lo := int(at) / c.DType.Size()
		return tensor.Slice(w.ctx, t, 0, lo, lo+len(b)/c.DType.Size())
	}
	switch {
	case len(c.Out) <= len(c.In):
		t := whole(c.In)
		if p := part(t, c.In, c.Out); p != nil {
			if len(c.Out) == len(c.In) {
				m := memory(t)
				return m, m
			}
			return memory(t), memory(p)
		}
		return memory(t), memory(whole(c.Out))
	default:
		t := whole(c.Out)
		if p := part(t, c.Out, c.In); p != nil {
			return memory(p), memory(t)
		}
		return memory(whole(c.In)), memory(t)
	}
}

func (e *onDevices) Split(name string, members []int) (comm.Engine, error) {
	sub, err := e.Engine.Split(name, members)
	if err != nil {
		return nil, err
	}
	devices, err := engine.Over(e.m.lib)(name, sub)
	if err != nil {
		return nil, err
	}
	return &onDevices{Engine: sub, m: e.m, dev: e.dev, devices: devices}, nil
}

func (e *onDevices) Abort(err error) {
	e.Engine.Abort(err)
	e.devices.Abort(err)
}

func (e *onDevices) Close() error { return errors.Join(e.devices.Close(), e.Engine.Close()) }

func TestConformance(t *testing.T) {
	m := newMachine(t, 8)
	commtest.Run(t, commtest.Engine{
		Name: "nccl", Path: "NCCL fake", Ranks: []int{2, 3, 5}, Slow: true,
		Start: func(t *testing.T, n int, opts comm.Options) []*comm.Group {
			groups := make([]*comm.Group, n)
			for r, e := range local.Engines(n) {
				groups[r] = comm.New(m.wrap(t, e, m.devices[r], "world"), opts)
			}
			return groups
		},
	})
	require.Positive(t, m.lib.Calls())
}

// Nobody but the call refers to its tensors, and the garbage collector runs all the time.
func TestTensorsLiveUntilTheirCallEnds(t *testing.T) {
	const ranks, calls, count = 2, 30, 33
	m, stop := newMachine(t, ranks), make(chan struct{})
	var collector, all sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	for r, e := range local.Engines(ranks) {
		g := comm.New(m.wrap(t, e, m.devices[r], "world"), comm.Options{Timeout: time.Minute})
		all.Go(func() {
			defer func() { assert.NoError(t, g.Close()) }()
			for range calls {
				in, out := make([]byte, 2*ranks*count), make([]byte, 2*count)
				h := g.ReduceScatter(comm.Bytes(out, tensor.BFloat16), comm.Bytes(in, tensor.BFloat16), comm.Sum)
				if !assert.NoError(t, h.Wait(context.Background())) {
					return
				}
			}
		})
	}
	all.Wait()
	close(stop)
	collector.Wait()
}

var register sync.Once

// current is the library that groups get by name.
var current nccl.Library

// groups are those of n ranks with tensors on devices of their own.
func groups(t *testing.T, n int, opts comm.Options) (*machine, []*comm.Group, []*tensor.Ctx) {
	register.Do(func() {
		comm.RegisterDeviceEngine("nccl", func(group string, control comm.Engine) (comm.DeviceEngine, error) {
			return engine.Over(current)(group, control)
		})
	})
	m := newMachine(t, n)
	current = m.lib
	opts.Devices, opts.Log = "nccl", slog.New(slog.NewTextHandler(io.Discard, nil))
	list := local.New(n, opts)
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for _, g := range list {
			closing.Go(func() { _ = g.Close() })
		}
		closing.Wait()
	})
	contexts := make([]*tensor.Ctx, n)
	for r, d := range m.devices {
		require.NoError(t, backendcuda.Prepare(joint.Backend(d))) // which takes as long as some timeouts
		contexts[r] = tensor.NewCtx(d).NoGrad()
	}
	return m, list, contexts
}

// sums starts an all-reduce of a vector of ones on each rank that has one.
func sums(list []*comm.Group, contexts []*tensor.Ctx, vectors []*tensor.Tensor) []*comm.Handle {
	var handles []*comm.Handle
	for r, g := range list {
		if vectors[r] != nil {
			h := g.AllReduce(comm.OfTensor(contexts[r], vectors[r]), comm.Sum, comm.Label("bucket 0"))
			handles = append(handles, h)
		}
	}
	return handles
}

// Calls that do not overlap have ended when the method that issues them returns; others wait for nobody.
func TestOverlap(t *testing.T) {
	_, list, contexts := groups(t, 3, comm.Options{Timeout: time.Minute})
	vectors := ones(contexts, 100)
	var all sync.WaitGroup
	for r, g := range list {
		require.True(t, g.Overlaps())
		g.Overlap(false)
		all.Go(func() {
			for range 5 {
				h := g.AllReduce(comm.OfTensor(contexts[r], vectors[r]), comm.Sum)
				select {
				case <-h.Done():
					assert.NoError(t, h.Wait(context.Background()))
				default:
					assert.Fail(t, "the call is under way")
				}
			}
		})
	}
	all.Wait()
	for _, g := range list {
		g.Overlap(true)
	}
	for _, h := range sums(list, contexts, vectors) { // one rank after the other
		require.NoError(t, h.Wait(context.Background()))
	}
}

func ones(contexts []*tensor.Ctx, n int) []*tensor.Tensor {
	vectors := make([]*tensor.Tensor, len(contexts))
	for r, c := range contexts {
		vectors[r] = tensor.Full(c, tensor.Float32, float64(r+1), n)
	}
	return vectors
}

// Tensors of a group that has a device engine never visit the host, and the call waits for the kernels before it.
func TestTensorsStayOnTheirDevices(t *testing.T) {
	m, list, contexts := groups(t, 3, comm.Options{Timeout: time.Minute})
	require.True(t, list[0].OnDevice(m.devices[0]))
	require.False(t, list[0].OnDevice(tensor.CPU()))
	require.Contains(t, list[0].Describe().Path, "; between devices by NCCL fake")
	vectors := ones(contexts, 1000)
	for _, h := range sums(list, contexts, vectors) {
		require.NoError(t, h.Wait(context.Background()))
	}
	require.Positive(t, m.lib.Calls())
	for r, c := range contexts {
		require.Equal(t, []float32{6, 6}, tensor.ToSlice[float32](c, vectors[r])[998:])
	}
	calls := m.lib.Calls()
	host := []*comm.Handle{}
	for r, g := range list { // of the host, beside
		host = append(host, g.AllReduce(comm.Of([]float64{float64(r)}), comm.Sum))
	}
	for _, h := range host {
		require.NoError(t, h.Wait(context.Background()))
	}
	require.Equal(t, calls, m.lib.Calls())
}

// A rank that never comes is named at the deadline, as without devices.
func TestARankThatDoesNotComeIsNamed(t *testing.T) {
	_, list, contexts := groups(t, 3, comm.Options{Timeout: 300 * time.Millisecond})
	vectors := ones(contexts, 100)
	vectors[1] = nil
	for _, h := range sums(list, contexts, vectors) {
		var timeout *comm.TimeoutError
		require.ErrorAs(t, h.Wait(context.Background()), &timeout)
		require.Equal(t, []int{1}, timeout.Missing)
		require.Equal(t, "bucket 0", timeout.Label)
		require.Equal(t, comm.AllReduce, timeout.Op)
	}
}

// A transfer that stands still ends at the deadline on all ranks, with all of the library's work.
func TestATransferThatStandsStill(t *testing.T) {
	m, list, contexts := groups(t, 3, comm.Options{Timeout: 300 * time.Millisecond})
	m.lib.Stick(2)
	for _, h := range sums(list, contexts, ones(contexts, 100)) {
		err := h.Wait(context.Background())
		var timeout *comm.TimeoutError
		require.ErrorAs(t, err, &timeout)
		require.ErrorContains(t, err, "all ranks arrived, and the transfer did not end")
	}
}

// An asynchronous error of the library on one rank ends all, and names the rank.
func TestAnAsynchronousErrorIsNamed(t *testing.T) {
	m, list, contexts := groups(t, 3, comm.Options{Timeout: time.Minute})
	m.lib.Fail(1, errors.New("unhandled system error (2): a NIC went away"))
	for _, h := range sums(list, contexts, ones(contexts, 100)) {
		err := h.Wait(context.Background())
		require.ErrorContains(t, err, "a NIC went away")
		if r := h.Signature().Group; r == "" {
			t.Fatal("no group")
		}
	}
	var abort *comm.AbortError
	require.ErrorAs(t, list[0].Err(), &abort)
	require.Equal(t, 1, abort.Rank)
}

// A rank that leaves while the others are in a transfer is named, and they return.
func TestARankThatIsLost(t *testing.T) {
	m, list, contexts := groups(t, 3, comm.Options{Timeout: time.Minute})
	m.lib.Stick(2) // it came to the call, and its device does nothing
	handles := sums(list, contexts, ones(contexts, 100))
	time.Sleep(50 * time.Millisecond)
	list[2].Abort(errors.New("killed"))
	for _, h := range handles {
		var abort *comm.AbortError
		require.ErrorAs(t, h.Wait(context.Background()), &abort)
		require.Equal(t, 2, abort.Rank)
	}
}

// Ranks whose calls differ are told both sides before a byte moves.
func TestCallsThatDiffer(t *testing.T) {
	m, list, contexts := groups(t, 2, comm.Options{Timeout: time.Minute})
	a, b := tensor.Zeros(contexts[0], tensor.Float32, 10), tensor.Zeros(contexts[1], tensor.Float32, 11)
	first := list[0].AllReduce(comm.OfTensor(contexts[0], a), comm.Sum)
	second := list[1].AllReduce(comm.OfTensor(contexts[1], b), comm.Sum)
	for _, h := range []*comm.Handle{first, second} {
		var mismatch *comm.MismatchError
		require.ErrorAs(t, h.Wait(context.Background()), &mismatch)
		require.Contains(t, mismatch.A.Call, "float32 × 10")
		require.Contains(t, mismatch.B.Call, "float32 × 11")
	}
	require.Zero(t, m.lib.Calls())
}

// Without a device engine of that name a group says so in its first call.
func TestAnEngineThatTheProgramLacks(t *testing.T) {
	g := local.New(2, comm.Options{Devices: "rccl", Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	defer g[1].Close()
	defer g[0].Close()
	require.ErrorContains(t, g[0].Barrier().Wait(context.Background()), `no device engine "rccl" is built into`)
	require.False(t, comm.HasDeviceEngine("rccl"))
}

// ordered notes in which order each rank queues calls, by their sizes.
type ordered struct {
	nccl.Library
	mu    sync.Mutex
	sizes [2][]int
}

func (o *ordered) Init(dev cuda.Device, n, rank int, id nccl.ID, over func() error) (nccl.Comm, error) {
	c, err := o.Library.Init(dev, n, rank, id, over)
	return orderedComm{c, o, rank}, err
}

type orderedComm struct {
	nccl.Comm
	of   *ordered
	rank int
}

func (c orderedComm) AllGather(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType) error {
	c.of.mu.Lock()
	c.of.sizes[c.rank] = append(c.of.sizes[c.rank], count)
	c.of.mu.Unlock()
	return c.Comm.AllGather(s, out, in, count, dt)
}

// The work of several groups reaches a device in the order in which its rank issued the calls, on all ranks.
func TestGroupsTakeTurns(t *testing.T) {
	_, list, contexts := groups(t, 2, comm.Options{Timeout: time.Minute})
	o := &ordered{Library: current}
	current = o
	var all sync.WaitGroup
	var issued [2][]int
	for r, g := range list {
		all.Go(func() {
			subs, err := g.Split(comm.Partition{Name: "a", Color: []int{0, 0}},
				comm.Partition{Name: "b", Color: []int{0, 0}}, comm.Partition{Name: "c", Color: []int{0, 0}})
			if !assert.NoError(t, err) {
				return
			}
			c, draw := contexts[r], rand.New(rand.NewPCG(1, 2))
			var handles []*comm.Handle
			var tensors []*tensor.Tensor
			for i := range 40 {
				in, out := tensor.Zeros(c, tensor.Uint8, i+1), tensor.Zeros(c, tensor.Uint8, 2*i+2)
				tensors = append(tensors, in, out)
				issued[r] = append(issued[r], i+1)
				handles = append(handles, subs[draw.IntN(3)].AllGather(comm.OfTensor(c, out), comm.OfTensor(c, in)))
			}
			assert.NoError(t, comm.WaitAll(context.Background(), handles...))
			runtime.KeepAlive(tensors)
			for _, s := range subs {
				assert.NoError(t, s.Close())
			}
		})
	}
	all.Wait()
	require.Equal(t, issued, o.sizes)
}

// A call that ends before its turn, or before its work is queued, keeps none of another group waiting.
func TestTurnsThatAreNotTaken(t *testing.T) {
	_, list, contexts := groups(t, 2, comm.Options{Timeout: time.Minute})
	var all sync.WaitGroup
	for r, g := range list {
		all.Go(func() {
			subs, err := g.Split(comm.Partition{Name: "a", Color: []int{0, 0}},
				comm.Partition{Name: "b", Color: []int{0, 0}})
			if !assert.NoError(t, err) {
				return
			}
			c := contexts[r]
			vector := func() comm.Buffer { return comm.OfTensor(c, tensor.Full(c, tensor.Float32, 1, 100)) }
			var late *comm.Handle
			if r == 0 { // the other does not come
				late = subs[0].AllReduce(vector(), comm.Sum, comm.Timeout(200*time.Millisecond))
			}
			assert.NoError(t, subs[1].AllReduce(vector(), comm.Sum).Wait(context.Background()))
			if r == 0 {
				var timeout *comm.TimeoutError
				assert.ErrorAs(t, late.Wait(context.Background()), &timeout)
			}
			_ = subs[0].Close()
			assert.NoError(t, subs[1].Close())
		})
	}
	all.Wait()
}
