// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/accelerate/flatten"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

func TestMain(m *testing.M) {
	// The workers of the process's device stay.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/lockstep-ml/lockstep/internal/parallel.(*worker).loop"))
}

var options = comm.Options{Timeout: 10 * time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}

// onRanks runs body on n goroutine ranks.
func onRanks(t *testing.T, n int, body func(g *comm.Group) error) {
	t.Helper()
	require.NoError(t, local.Run(n, options, body))
}

// shapes are the parameters of most tests: several dtypes, odd sizes, one that is empty.
var shapes = []struct {
	dtype tensor.DType
	shape []int
}{
	{tensor.Float32, []int{7}}, {tensor.Float64, []int{3, 5}}, {tensor.Float32, []int{1000}},
	{tensor.BFloat16, []int{33}},
	{tensor.Float32, nil}, {tensor.Float16, []int{9}}, {tensor.Float32, []int{0, 4}}, {tensor.Float32, []int{20, 10}},
	{tensor.Float64, []int{64}},
}

func newParams(c *tensor.Ctx) []tensor.Named {
	var list []tensor.Named
	for i, s := range shapes {
		list = append(list, tensor.Named{Name: fmt.Sprintf("p%d", i),
			Tensor: tensor.Zeros(c.NoGrad(), s.dtype, s.shape...).SetRequiresGrad(true)})
	}
	return list
}

// gradDType is the dtype of a parameter's gradient.
func gradDType(i int) tensor.DType {
	if shapes[i].dtype.IsHalf() {
		return tensor.Float32
	}
	return shapes[i].dtype
}

// gradient makes the bytes of a gradient: numbers of many sizes, whose sum depends on the order.
func gradient(step, rank, i int) []byte {
	dt, n := gradDType(i), 1
	for _, s := range shapes[i].shape {
		n *= s
	}
	r := rand.New(rand.NewPCG(uint64(step), uint64(rank*100+i)))
	out := make([]byte, 0, n*dt.Size())
	for range n {
		x := r.NormFloat64() * math.Pow(10, float64(r.IntN(6)-4))
		switch dt {
		case tensor.Float32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(x)))
		case tensor.Float64:
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(x))
		}
	}
	return out
}

// negativeZeros stands for no gradient in a sum.
func negativeZeros(i int) []byte {
	out := gradient(0, 0, i)
	size := gradDType(i).Size()
	clear(out)
	for at := size - 1; at < len(out); at += size {
		out[at] = 0x80
	}
	return out
}

// give makes a gradient p's, in the buffer that p has for it.
func give(c *tensor.Ctx, p tensor.Named, data []byte) {
	g := p.SwapGrad(nil, false)
	if g == nil {
		g = tensor.Zeros(c.NoGrad(), p.GradDType(), p.Shape()...)
	}
	tensor.WriteBytes(c, g, data)
	p.SwapGrad(g, true)
}

// want is the specified sum of parameter i over the ranks that have, nil if none does.
func want(step, i, n int, has func(rank, i int) bool) []byte {
	var inputs [][]byte
	any := false
	for r := range n {
		if has(r, i) {
			any = true
			inputs = append(inputs, gradient(step, r, i))
			continue
		}
		inputs = append(inputs, negativeZeros(i))
	}
	if !any {
		return nil
	}
	return commtest.Combine(inputs, gradDType(i), comm.Sum)
}

// check compares the gradients after Finish with the specified sums.
func check(t *testing.T, c *tensor.Ctx, params []tensor.Named, step, n int, has func(rank, i int) bool) {
	for i, p := range params {
		sum := want(step, i, n, has)
		if sum == nil {
			require.Nil(t, p.Grad(), "step %d: %s has a gradient on no rank", step, p.Name)
			continue
		}
		require.NotNil(t, p.Grad(), "step %d: %s", step, p.Name)
		require.Equal(t, sum, tensor.ReadBytes(c, p.Grad()), "step %d: %s", step, p.Name)
	}
}

// exchange runs a step in which each rank has the gradients that has says, complete in the order of the parameters.
func exchange(t *testing.T, r *Reducer, step int, has func(rank, i int) bool) error {
	if _, err := r.Rebuild(t.Context()); err != nil {
		return err
	}
	for i, p := range r.params {
		p.ZeroGrad()
		if has(r.group.Rank(), i) {
			give(r.c, p, gradient(step, r.group.Rank(), i))
			r.Ready(i)
		}
	}
	return r.Finish(t.Context())
}

func always(int, int) bool { return true }

// Every sum has the bits of the specified tree, in buckets of any size, before and after
// they are rebuilt, whatever the order in which each rank's gradients become complete.
func TestSumsFollowTheTree(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4} {
		for _, limit := range []int{1, 300, 4096, 0} {
			onRanks(t, n, func(g *comm.Group) error {
				c := tensor.NewCtx(tensor.CPU())
				params := newParams(c)
				r, err := New(c, g, params, Options{Exchange: strategy.Exchange{BucketBytes: limit}})
				require.NoError(t, err)
				orders := rand.New(rand.NewPCG(9, uint64(g.Rank())))
				for step := range 4 {
					rebuilt, err := r.Rebuild(t.Context())
					require.NoError(t, err)
					require.Equal(t, step == 1, rebuilt)
					for i, p := range params {
						p.ZeroGrad()
						give(c, p, gradient(step, g.Rank(), i))
					}
					for _, i := range orders.Perm(len(params))[:len(params)-step] { // the rest by Finish
						r.Ready(i)
					}
					require.NoError(t, r.Finish(t.Context()))
					check(t, c, params, step, n, always)
				}
				return errors.Join(g.Barrier().Wait(t.Context()), r.Close())
			})
		}
	}
}

// A parameter that some ranks do not use gets the others' sum; one that no rank uses has no
// gradient, and has one again when it is used. A rank may have none at all.
func TestUnusedParameters(t *testing.T) {
	const n = 3
	uses := []func(rank, i int) bool{
		func(rank, i int) bool { return (rank+i)%3 != 0 },
		func(rank, i int) bool { return i%2 == 0 && rank != 1 }, // rank 1's window is empty
		func(rank, i int) bool { return i == 2 && rank == 2 },
		func(int, int) bool { return false },
		always,
	}
	onRanks(t, n, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		params := newParams(c)
		r, err := New(c, g, params, Options{Exchange: strategy.Exchange{BucketBytes: 600}})
		require.NoError(t, err)
		for step, has := range uses {
			if err := exchange(t, r, step, has); err != nil {
				return err
			}
			check(t, c, params, step, n, has)
		}
		return nil
	})
}

// The buckets follow rank 0's order, on all ranks, once; a step in which rank 0 had nothing
// teaches nothing.
func TestRebuildTakesRankZerosOrder(t *testing.T) {
	order := []int{3, 0, 8, 7, 1, 2, 6, 5, 4}
	onRanks(t, 2, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		params := newParams(c)
		r, err := New(c, g, params, Options{Exchange: strategy.Exchange{BucketBytes: 1}})
		require.NoError(t, err)
		require.Len(t, r.Buckets(), len(params))
		require.Equal(t, [][]int{{8}, {7}, {6}, {5}, {4}, {3}, {2}, {1}, {0}}, contents(r.buckets))
		for step := range 4 {
			rebuilt, err := r.Rebuild(t.Context())
			require.NoError(t, err)
			require.Equal(t, step == 2, rebuilt)
			for _, p := range params {
				p.ZeroGrad()
			}
			if g.Rank() == 1 || step > 0 {
				for k := range params {
					i := (k + g.Rank()*step) % len(params) // rank 1 has an order of its own
					if g.Rank() == 0 {
						i = order[k]
					}
					give(c, params[i], gradient(step, g.Rank(), i))
					r.Ready(i)
				}
			}
			require.NoError(t, r.Finish(t.Context()))
			check(t, c, params, step, 2, func(rank, _ int) bool { return rank == 1 || step > 0 })
		}
		require.Equal(t, [][]int{{3}, {0}, {8}, {7}, {1}, {2}, {6}, {5}, {4}}, contents(r.buckets))
		return nil
	})
}

// A gradient's place is a view of the group's memory: on a device that computes there
// nothing is copied, and each place is aligned.
func TestGradientsAreViews(t *testing.T) {
	onRanks(t, 2, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		params := newParams(c)
		r, err := New(c, g, params, Options{})
		require.NoError(t, err)
		require.True(t, r.host)
		for _, b := range r.buckets {
			at := b.offset
			for _, i := range b.List {
				p := params[i]
				give(c, p, gradient(1, g.Rank(), i))
				require.Same(t, r.views[i], p.Grad())
				mem, ok := tensor.HostBytes(c, p.Grad())
				require.True(t, ok)
				require.Equal(t, mem, r.memory.Bytes[at:at+p.Grad().Bytes()])
				if len(mem) > 0 {
					require.Same(t, &mem[0], &r.memory.Bytes[at])
				}
				at += flatten.Bytes(p)
			}
		}
		require.NoError(t, r.Finish(t.Context()))
		for i, p := range params {
			require.Same(t, r.views[i], p.Grad())
		}
		require.NoError(t, g.Barrier().Wait(t.Context()))
		require.NoError(t, r.Close())
		for _, p := range params {
			require.Nil(t, p.SwapGrad(nil, false))
		}
		return nil
	})
}

// A gradient that lies elsewhere is copied to its place.
func TestForeignGradientsAreCopied(t *testing.T) {
	onRanks(t, 2, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		params := newParams(c)
		r, err := New(c, g, params, Options{})
		require.NoError(t, err)
		for i, p := range params {
			p.SwapGrad(nil, false)
			give(c, p, gradient(1, g.Rank(), i))
			require.NotSame(t, r.views[i], p.Grad())
		}
		require.NoError(t, r.Finish(t.Context()))
		check(t, c, params, 1, 2, always)
		require.Same(t, r.views[0], params[0].Grad())
		return nil
	})
}

// A device with an address space of its own, which runs behind: buckets are copied.
func TestDeviceThatIsNotHostMemory(t *testing.T) {
	const n = 3
	onRanks(t, n, func(g *comm.Group) error {
		dev := joint.Device[*tensor.Device](deferred.New(1))
		defer dev.Close()
		c := tensor.NewCtx(dev)
		params := newParams(c)
		parameters := dev.MemStats().InUse
		r, err := New(c, g, params, Options{Exchange: strategy.Exchange{BucketBytes: 600}})
		require.NoError(t, err)
		require.False(t, r.host)
		has := func(rank, i int) bool { return i != 2 && (rank+i)%3 != 0 }
		for step := range 3 {
			if err := exchange(t, r, step, has); err != nil {
				return err
			}
			check(t, c, params, step, n, has)
		}
		require.Equal(t, parameters+int64(total(r.Buckets())), dev.MemStats().InUse, "those of the first step are gone")
		err = errors.Join(g.Barrier().Wait(t.Context()), r.Close())
		require.Equal(t, parameters, dev.MemStats().InUse)
		return err
	})
}

func total(list []int) (sum int) {
	for _, n := range list {
		sum += n
	}
	return sum
}

// A bucket's sum is under way as soon as its last gradient is there, in the order of the
// buckets on every rank.
func TestBucketsAreSentWhenComplete(t *testing.T) {
	onRanks(t, 2, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		params := sized(16, 16, 16, 16)
		r, err := New(c, g, params, Options{Exchange: strategy.Exchange{BucketBytes: 128}})
		require.NoError(t, err)
		require.Equal(t, [][]int{{3, 2}, {1, 0}}, contents(r.buckets))
		sent := func() (labels []string) {
			for _, e := range g.Flight().Entries {
				if e.Op == comm.AllReduce {
					labels = append(labels, e.Label)
				}
			}
			return labels
		}
		first, second := "bucket 0 (p3 … p2)", "bucket 1 (p1 … p0)"
		r.Ready(3)
		require.Empty(t, sent())
		r.Ready(0)
		r.Ready(1)
		require.Empty(t, sent(), "bucket 1 waits for bucket 0")
		r.Ready(2)
		require.Equal(t, []string{first, second}, sent())
		require.NoError(t, r.Finish(t.Context()))
		require.Equal(t, []string{first, second, "parameters in use"}, sent())
		r.Ready(3)
		r.Ready(2)
		require.Equal(t, []string{first, second, "parameters in use", first}, sent())
		return r.Finish(t.Context())
	})
}

func TestAnnouncedTwice(t *testing.T) {
	err := local.Run(2, options, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		r, err := New(c, g, sized(4, 4), Options{})
		require.NoError(t, err)
		r.Ready(1)
		if g.Rank() == 1 {
			r.Ready(1)
		}
		return r.Finish(t.Context())
	})
	require.EqualError(t, err, "rank 1: ddp: the gradient of p1 was announced twice in one step, the second time "+
		"after it may have been sent")
}

// Ranks whose buckets differ get an error that names both sides, not sums of other things.
func TestDifferentBucketsAreAnError(t *testing.T) {
	groups := local.New(2, options)
	errs := make([]error, 2)
	done := make(chan struct{}, 2)
	for rank, g := range groups {
		go func() {
			defer func() { done <- struct{}{} }()
			defer g.Close()
			c := tensor.NewCtx(tensor.CPU())
			r, err := New(c, g, sized(16, 16), Options{Exchange: strategy.Exchange{BucketBytes: 64 << rank}})
			if err == nil {
				err = r.Finish(context.Background())
			}
			errs[rank] = err
		}()
	}
	<-done
	<-done
	for _, err := range errs {
		var mismatch *comm.MismatchError
		require.ErrorAs(t, err, &mismatch)
		require.ErrorContains(t, err, `"bucket 0 (p1)"`)
		require.ErrorContains(t, err, `"bucket 0 (p1 … p0)"`)
	}
}

// A context that ends gives up waiting; a rank that is lost is an error that names the bucket.
func TestFinishEnds(t *testing.T) {
	groups := local.New(2, options)
	c := tensor.NewCtx(tensor.CPU())
	made := make(chan error, 1)
	go func() {
		_, err := New(c, groups[1], sized(16), Options{})
		made <- err
	}()
	r, err := New(c, groups[0], sized(16), Options{})
	require.NoError(t, err)
	require.NoError(t, <-made)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Finish(ended), context.Canceled)
	require.NoError(t, groups[1].Close())
	err = r.Finish(t.Context())
	var lost *comm.RankLostError
	require.ErrorAs(t, err, &lost)
	require.ErrorContains(t, err, "ddp: bucket 0 (p0): ")
	require.NoError(t, groups[0].Close())
	require.NoError(t, r.Close())
}

// Steps leave no memory behind: what a reducer holds is its buckets.
func TestMemoryIsReleased(t *testing.T) {
	onRanks(t, 2, func(g *comm.Group) error {
		dev := tensor.NewCPU(1)
		c := tensor.NewCtx(dev)
		params := newParams(c)
		dev.Collect()
		before := dev.MemStats().InUse
		r, err := New(c, g, params, Options{})
		require.NoError(t, err)
		for step := range 3 {
			if _, err := r.Rebuild(t.Context()); err != nil {
				return err
			}
			for i, p := range params {
				p.ZeroGrad()
				give(c, p, gradient(step, g.Rank(), i))
			}
			require.NoError(t, r.Finish(t.Context()))
			require.Equal(t, before, dev.MemStats().InUse)
		}
		require.NoError(t, g.Barrier().Wait(t.Context()))
		require.NoError(t, r.Close())
		require.Nil(t, r.memory.Bytes)
		return dev.Close()
	})
}

func TestTrace(t *testing.T) {
	onRanks(t, 2, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		var spans []trace.Span
		var listeners trace.Listeners
		r, err := New(c, g, sized(16, 16, 16), Options{Exchange: strategy.Exchange{BucketBytes: 64}, Trace: &listeners})
		require.NoError(t, err)
		listeners.Listen(func(s trace.Span) { spans = append(spans, s) })
		for step := range 2 {
			begin := time.Now()
			require.NoError(t, r.Finish(t.Context()))
			require.Len(t, spans, 3)
			for i, s := range spans {
				require.Equal(t, trace.Span{Rank: g.Rank(), Name: "bucket",
					Detail: fmt.Sprintf("bucket %d (p%d)", i, 2-i), Bytes: 64,
					Queued: s.Queued, Start: s.Start, End: s.End}, s, "step %d", step)
				times := []time.Time{begin, s.Queued, s.Start, s.End, time.Now()}
				require.True(t, slices.IsSortedFunc(times, time.Time.Compare), "%v", times)
			}
			spans = nil
		}
		return nil
	})
}
