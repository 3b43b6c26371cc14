// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/nn"
)

// Partition divides a model's parts into stages of consecutive parts, so that the most expensive stage costs as little
// as possible. Among such cuts it takes the one whose costs have the least sum of squares, then the one with the
// smaller earlier stages. costs are those of each part, see Measure. The result is the number of parts of each stage.
func Partition(costs []float64, stages int) ([]int, error) {
	n := len(costs)
	if err := enough(n, stages); err != nil {
		return nil, err
	}
	sums := make([]float64, n+1) // of the parts before each
	for i, c := range costs {
		if !(c >= 0) || math.IsInf(c, 0) {
			return nil, fmt.Errorf("pp: part %d costs %v: want a number that is not negative", i, c)
		}
		sums[i+1] = sums[i] + c
	}
	cost := func(from, to int) float64 { return sums[to] - sums[from] }
	most := best(n, stages, func(from, to int) float64 { return cost(from, to) }, math.Max)
	limit := most[stages][0].value
	squares := best(n, stages, func(from, to int) float64 {
		if c := cost(from, to); c <= limit {
			return c * c
		}
		return math.Inf(1)
	}, func(x, y float64) float64 { return x + y })
	split := make([]int, 0, stages)
	for from, left := 0, stages; left > 0; left-- {
		to := squares[left][from].to
		split, from = append(split, to-from), to
	}
	return split, nil
}

// choice is the best cut of the parts from one on: what it costs, and where its first stage ends.
type choice struct {
	value float64
	to    int
}

// best finds, for each number of stages and each part, the cheapest cut of the parts from there on into so many stages.
func best(parts, stages int, cost func(from, to int) float64, add func(x, y float64) float64) [][]choice {
	table := make([][]choice, stages+1)
	for left := range table {
		table[left] = slices.Repeat([]choice{{math.Inf(1), parts}}, parts+1)
	}
	table[0][parts].value = 0
	for left := 1; left <= stages; left++ {
		for from := parts - left; from >= 0; from-- {
			for to := from + 1; to <= parts-left+1; to++ {
				if v := add(cost(from, to), table[left-1][to].value); v < table[left][from].value {
					table[left][from] = choice{v, to}
				}
			}
		}
	}
	return table
}

// enough refuses more stages than parts.
func enough(parts, stages int) error {
	if stages < 1 || stages > parts {
		return fmt.Errorf("pp: %s of a model of %s: want 1 to %d stages, since each needs at least one part",
			quantity.Of(stages, "stage"), quantity.Of(parts, "part"), parts)
	}
	return nil
}

// Stages gives each stage its parts. split is the number of parts of each stage: that of Partition, or the user's.
func Stages(parts []nn.Part, split []int) ([][]nn.Part, error) {
	if err := enough(len(parts), len(split)); err != nil {
		return nil, err
	}
	sum := 0
	for _, n := range split {
		sum += n
	}
	if sum != len(parts) || slices.Min(split) < 1 {
		return nil, fmt.Errorf("pp: a split of %v, %s: want at least one part for each of the %s, %d in all", split,
			quantity.Of(sum, "part"), quantity.Of(len(split), "stage"), len(parts))
	}
	stages := make([][]nn.Part, len(split))
	for i, n := range split {
		stages[i], parts = parts[:n:n], parts[n:]
	}
	return stages, nil
}
