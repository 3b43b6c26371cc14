// SPDX-License-Identifier: Apache-2.0

package pp_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestPartition(t *testing.T) {
	gpt124M := []float64{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5.4}
	for _, k := range []struct {
		costs  []float64
		stages int
		want   []int
	}{
		{[]float64{0, 1, 1, 5}, 4, []int{1, 1, 1, 1}},
		{[]float64{0, 1, 1, 1, 1, 2}, 3, []int{3, 2, 1}},
		{gpt124M, 4, []int{5, 4, 4, 1}}, // the head alone
		{gpt124M, 2, []int{10, 4}},
		{[]float64{3, 3, 3}, 1, []int{3}},
	} {
		split, err := pp.Partition(k.costs, k.stages)
		require.NoError(t, err)
		require.Equal(t, k.want, split, "%v", k.costs)
	}
	_, err := pp.Partition([]float64{1, 1, 1, 1}, 8)
	require.EqualError(t, err,
		"pp: 8 stages of a model of 4 parts: want 1 to 4 stages, since each needs at least one part")
}

// No cut has a cheaper dearest stage: all cuts of small models are tried.
func TestPartitionIsOptimal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		costs := make([]float64, 1+r.IntN(8))
		for i := range costs {
			costs[i] = float64(r.IntN(6))
		}
		stages := 1 + r.IntN(len(costs))
		split, err := pp.Partition(costs, stages)
		require.NoError(t, err)
		dearest := func(split []int) (most float64) {
			from := 0
			for _, n := range split {
				sum := 0.0
				for _, c := range costs[from : from+n] {
					sum += c
				}
				most, from = max(most, sum), from+n
			}
			return most
		}
		var try func(split []int, left int)
		best := dearest(split)
		try = func(split []int, left int) {
			if len(split) == stages {
				if left == 0 {
					require.GreaterOrEqual(t, dearest(split), best, "%v: %v", costs, split)
				}
				return
			}
			for n := 1; n <= left; n++ {
				try(append(slices.Clone(split), n), left-n)
			}
		}
		try(nil, len(costs))
	}
}

func TestStagesRefused(t *testing.T) {
	parts := make([]nn.Part, 5)
	for _, k := range []struct {
		split []int
		want  string
	}{
		{[]int{2, 2}, "pp: a split of [2 2], 4 parts: want at least one part for each of the 2 stages, 5 in all"},
		{[]int{5, 0}, "pp: a split of [5 0], 5 parts: want at least one part for each of the 2 stages, 5 in all"},
		{[]int{1, 1, 1, 1, 1, 1},
			"pp: 6 stages of a model of 5 parts: want 1 to 5 stages, since each needs at least one part"},
	} {
		_, err := pp.Stages(parts, k.split)
		require.EqualError(t, err, k.want)
	}
}

// The operations of a part are those of its products, the head's among them: three forward passes' worth make
// FLOPsPerToken, apart from biases and norms. Nothing is allocated for it.
func TestMeasure(t *testing.T) {
	dev := tensor.NewCPU(1)
	cfg := gpt2.DefaultConfig()
	cfg.NLayer = 3
	m, err := gpt2.New(nn.NewInit(dev, 1).Deferred(), cfg)
	require.NoError(t, err)
	const length = 64
	batch := m.ExampleBatch(tensor.NewCtx(tensor.CPU()), 1, length)
	costs, err := pp.Measure(m, forward, batch)
	require.NoError(t, err)
	require.Len(t, costs, 5)
	require.Zero(t, costs[0])
	require.Equal(t, costs[1], costs[2])
	require.InDelta(t, 2*cfg.VocabSize*cfg.NEmbd*length, costs[4], 1)
	sum := 0.0
	for _, c := range costs {
		sum += c
	}
	require.InEpsilon(t, m.FLOPsPerToken(length), 3*sum/length, 0.01)
	require.InDelta(t, 5.4, costs[4]/costs[1], 0.3, "the head of GPT-2 is worth more than five of its blocks")
	require.Zero(t, dev.MemStats().InUse)
}

// partial is a model whose Parts leave something out or name it twice.
type partial struct {
	*mlp.Model
	parts []nn.Part
}

func (p *partial) Parts() []nn.Part { return p.parts }

func TestPartsHaveEveryParameterOnce(t *testing.T) {
	m, err := mlp.New(nn.NewInit(tensor.CPU(), 1), mlp.Config{Sizes: []int{2, 2, 2}})
	require.NoError(t, err)
	first, second := m.Layers[0], m.Layers[1]
	require.NoError(t, pp.CheckParts(&partial{m, []nn.Part{{first}, {second}}}))
	require.EqualError(t, pp.CheckParts(&partial{m, []nn.Part{{first}}}),
		"pp: the parts of *pp_test.partial: layers.1.weight is in no part; layers.1.bias is in no part")
	require.EqualError(t, pp.CheckParts(&partial{m, []nn.Part{{first}, {first, second}}}),
		"pp: the parts of *pp_test.partial: part 1 has a *nn.Linear that an earlier part has")
}
