// SPDX-License-Identifier: Apache-2.0

package cp_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A pass whose context ends does not return, and free its tensors, while calls that read and write them wait for
// another rank.
func TestACancelledPassWaitsForItsCalls(t *testing.T) {
	for _, method := range []*cp.Method{cp.Gather, cp.Ulysses, cp.Ring} {
		t.Run(method.String(), func(t *testing.T) {
			r := run{chunks: 4, method: method}
			var met atomic.Bool
			require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
				dev := tensor.NewCPU(1)
				defer dev.Close()
				c, m := tensor.NewCtx(dev), r.newModel(nn.NewInit(dev, 7))
				b, tree := r.batch(c.NoGrad(), 0), nn.Walk(m)
				p, err := cp.New(cp.Config{Group: g, Chunks: r.chunks, Method: r.method, Params: tree.Parameters()})
				if err != nil {
					return err
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var last error
				_, err = r.context(c, m, tree, b).TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
					_, last = p.ForwardBackward(ctx, c, b, func(c *nn.Ctx, b *data.Batch) (cp.Output, error) {
						if g.Rank() == 0 {
							cancel()
						} else if !met.Load() {
							time.Sleep(50 * time.Millisecond)
							met.Store(true)
						}
						return plainLoss(0, m, c, b)
					}, 1, cp.Accumulate)
					return nil, nil
				})
				if g.Rank() == 0 {
					require.ErrorIs(t, last, context.Canceled)
					require.True(t, met.Load(), "the other rank was not there yet")
				}
				return err
			}))
		})
	}
}
