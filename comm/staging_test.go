// SPDX-License-Identifier: Apache-2.0

package comm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Every operation takes tensors where they lie: a device without host memory, whose kernels run later, gives the
// results of host memory. No rank waits for its device before a call.
func TestTensorsOfDevices(t *testing.T) {
	const n = 3
	calls := map[string]func(g *comm.Group, out, in comm.Buffer) []*comm.Handle{
		"all-reduce": func(g *comm.Group, _, in comm.Buffer) []*comm.Handle {
			return []*comm.Handle{g.AllReduce(in, comm.Sum)}
		},
		"reduce": func(g *comm.Group, _, in comm.Buffer) []*comm.Handle {
			return []*comm.Handle{g.Reduce(in, comm.Sum, 1)}
		},
		"broadcast": func(g *comm.Group, _, in comm.Buffer) []*comm.Handle {
			return []*comm.Handle{g.Broadcast(in, 2)}
		},
		"all-to-all": func(g *comm.Group, out, in comm.Buffer) []*comm.Handle {
			return []*comm.Handle{g.AllToAll(out, in)}
		},
		"messages": func(g *comm.Group, out, in comm.Buffer) []*comm.Handle {
			return []*comm.Handle{g.Send(in, (g.Rank()+1)%n), g.Recv(out, (g.Rank()+n-1)%n)}
		},
	}
	for name, call := range calls {
		for _, via := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, via), func(t *testing.T) {
				require.Equal(t, results(t, n, via, tensor.NewCPU(1), call),
					results(t, n, via, joint.Device[*tensor.Device](deferred.New(1)), call))
			})
		}
	}
}

// results are what a call leaves in both tensors of every rank. The ranks share the device.
func results(t *testing.T, n int, via bool, dev *tensor.Device,
	call func(g *comm.Group, out, in comm.Buffer) []*comm.Handle) [][]float32 {
	defer func() { require.NoError(t, dev.Close()) }()
	all := make([][]float32, n)
	require.NoError(t, local.Run(n, comm.Options{Timeout: 10 * time.Second}, func(g *comm.Group) error {
		c := tensor.NewCtx(dev)
		out, base := tensor.Zeros(c, tensor.Float32, 6), tensor.Arange(c, tensor.Float32, float64(g.Rank()+1), 0.1, 8)
		in := tensor.Slice(c, base, 0, 1, 7)
		for range 50 {
			tensor.ScaleInto(c, in, 1.01)
		}
		from, to := comm.OfTensor(c, in), comm.OfTensor(c, out)
		require.Equal(t, 6, from.Len())
		require.Equal(t, tensor.Float32, from.DType())
		if via {
			from, to = from.Via(comm.Aligned(24)), to.Via(comm.Aligned(24))
		}
		if err := comm.WaitAll(t.Context(), call(g, to, from)...); err != nil {
			return err
		}
		tensor.ScaleInto(c, in, 2)
		all[g.Rank()] = append(tensor.ToSlice[float32](c, base), tensor.ToSlice[float32](c, out)...)
		return g.Barrier().Wait(t.Context())
	}))
	return all
}

// A tensor that was freed under a call is the rank's error, and the group's end.
func TestFreedTensor(t *testing.T) {
	dev := joint.Device[*tensor.Device](deferred.New(1))
	defer dev.Close()
	groups := local.New(1, comm.Options{Timeout: time.Minute})
	c := tensor.NewCtx(dev)
	x := tensor.Zeros(c, tensor.Float32, 6)
	b := comm.OfTensor(c, x)
	x.Free()
	require.ErrorContains(t, groups[0].AllReduce(b, comm.Sum).Wait(t.Context()), "freed")
	require.ErrorContains(t,
		groups[0].AllReduce(comm.OfTensor(c, tensor.Zeros(c, tensor.Float32, 6)).Via(make([]byte, 8)),
			comm.Sum).Wait(t.Context()), "freed")
	require.NoError(t, groups[0].Close())
	groups = local.New(1, comm.Options{Timeout: time.Minute})
	short := comm.OfTensor(c, tensor.Zeros(c, tensor.Float32, 6)).Via(make([]byte, 8))
	require.ErrorContains(t, groups[0].AllReduce(short, comm.Sum).Wait(t.Context()),
		"8 bytes to stage a tensor of 24 bytes")
	require.NoError(t, groups[0].Close())
}
