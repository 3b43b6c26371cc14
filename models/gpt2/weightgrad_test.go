// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Weight gradients that are computed later than those of activations, with other micro-batches in between, have the
// bits of one backward pass: with dropout, gradient checkpointing, tied weights and Autocast.
func TestDelayWeightGrads(t *testing.T) {
	const micro = 3
	passes := func(lower tensor.DType, recompute, tied, split bool) string {
		dev := tensor.NewCPU(2)
		defer dev.Close()
		cfg := stepConfig()
		cfg.TieWordEmbeddings = tied
		r := newRig(t, dev, cfg, 2, 24)
		before := dev.MemStats().InUse
		var store tensor.WeightGradStore
		type pass struct {
			c     *tensor.Ctx
			close func(...*tensor.Tensor)
			loss  *tensor.Tensor
		}
		var open []pass
		forward := func(m int) {
			root, end := r.c.WithRandom(3, int64(m*r.rows)).Autocast(lower).OpenScope()
			c := nn.NewCtx(root, r.tree, true).WithLossOnly()
			if recompute {
				c = c.WithRecompute(r.m.RecomputeUnits())
			}
			open = append(open, pass{root, end, r.m.Forward(c, batch(root, r.ids, r.rows, true)).Loss})
		}
		backward := func(opts ...tensor.BackwardOption) {
			p := open[0]
			open = open[1:]
			tensor.Backward(p.c, []*tensor.Tensor{p.loss}, nil, nil, opts...)
			p.close()
		}
		input := func() { backward(tensor.DelayWeightGrads(&store)) }
		weight := func() { store.Pop(r.c) }
		if !split {
			for m := range micro {
				forward(m)
				backward()
			}
			return r.digest()
		}
		forward(0)
		forward(1)
		input()
		forward(2)
		input()
		weight()
		weight()
		input()
		weight()
		require.NoError(t, store.Close())
		digest := r.digest()
		for _, p := range r.tree.Parameters() {
			p.ZeroGrad()
			p.DropLowered()
		}
		require.Equal(t, before, dev.MemStats().InUse)
		return digest
	}
	for _, lower := range []tensor.DType{tensor.Invalid, tensor.BFloat16} {
		for _, recompute := range []bool{false, true} {
			for _, tied := range []bool{false, true} {
				require.Equal(t, passes(lower, recompute, tied, false), passes(lower, recompute, tied, true),
					fmt.Sprintf("autocast %v, checkpointing %v, tied %v", lower, recompute, tied))
			}
		}
	}
}
