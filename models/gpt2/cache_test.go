// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Feeding tokens in pieces through the cache gives the logits of the whole sequence.
func TestCacheEqualsForward(t *testing.T) {
	c := evaluation()
	cfg := smallConfig()
	cfg.InitializerRange = 0.2
	m := newModel(t, tensor.CPU(), cfg)
	const rows, length = 2, 12
	ids := tokens(rows, length, cfg.VocabSize)
	full := tensor.ToSlice[float32](c.Ctx, m.Forward(c, batch(c.Ctx, ids, rows, false)).Logits)
	for _, pieces := range [][]int{{12}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {5, 1, 1, 5}, {1, 11}, {11, 1}} {
		t.Run(fmt.Sprint(pieces), func(t *testing.T) {
			cache := m.NewCache(c, rows)
			defer cache.Free()
			require.Equal(t, cfg.NPositions, cache.Cap())
			for round := range 2 { // Reset forgets
				at := 0
				for _, n := range pieces {
					var part []int64
					for r := range rows {
						part = append(part, ids[r*length+at:r*length+at+n]...)
					}
					at += n
					c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
						y := m.Next(c, tensor.FromSlice(c.Ctx, part, rows, n), cache)
						require.Equal(t, []int{rows, cfg.VocabSize}, y.Shape())
						got := tensor.ToSlice[float32](c.Ctx, y)
						for r := range rows {
							want := full[(r*length+at-1)*cfg.VocabSize:][:cfg.VocabSize]
							require.InDeltaSlice(t, want, got[r*cfg.VocabSize:][:cfg.VocabSize], 2e-5,
								"round %d, after %d tokens", round, at)
						}
						return nil
					})
					require.Equal(t, at, cache.Len())
				}
				cache.Reset()
				require.Zero(t, cache.Len())
			}
		})
	}
}

// otherCache is a cache that gpt2 did not make.
type otherCache struct{}

func (otherCache) Len() int  { return 0 }
func (otherCache) Cap() int  { return 0 }
func (otherCache) Reset()    {}
func (otherCache) Pad([]int) {}
func (otherCache) Free()     {}

func TestCacheRefuses(t *testing.T) {
	c := evaluation()
	m := newModel(t, tensor.CPU(), smallConfig())
	cache := m.NewCache(c, 1)
	next := func(n int) error {
		return tensor.Try(func() { m.Next(c, tensor.FromSlice(c.Ctx, tokens(1, n, 61), 1, n), cache) })
	}
	require.NoError(t, next(10))
	require.EqualError(t, next(7), "gpt2.Forward: 7 tokens after 10: want at most n_positions = 16 in all (in "+
		"transformer)")
	require.Equal(t, 10, cache.Len())
	require.NoError(t, next(6))
	cache = otherCache{}
	require.ErrorContains(t, next(1), "a cache of type gpt2_test.otherCache: want one that NewCache made")
}

// The cache owns its memory until Free, whatever the scopes do.
func TestCacheMemory(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	cfg := smallConfig()
	m := newModel(t, dev, cfg)
	c := nn.NewCtx(tensor.NewCtx(dev).NoGrad(), nn.Walk(m), false)
	before := dev.MemStats().InUse
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		cache := m.NewCache(c, 3)
		for range 3 {
			c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
				m.Next(c, tensor.FromSlice(c.Ctx, tokens(3, 2, 61), 3, 2), cache)
				return nil
			})
		}
		require.EqualValues(t, 2*cfg.NLayer*3*cfg.NPositions*cfg.NEmbd*4, dev.MemStats().InUse-before)
		cache.Free()
		return nil
	})
	require.Equal(t, before, dev.MemStats().InUse)
}
