// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

func Example() {
	s, err := schedule.New("1f1b", schedule.Shape{Ranks: 3, MicroBatches: 4})
	if err == nil {
		err = s.Validate()
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	each := schedule.StageCosts{Forward: 1, Input: 1, Weight: 1, Activation: 1}
	sim, err := s.Simulate(schedule.Uniform(s.Stages(), each, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%g ticks, %.0f %% idle, activations of %g micro-batches\n", sim.Time, 100*sim.Idle(), sim.Peak())
	fmt.Print(sim.Text(80))
	// Output:
	// 18 ticks, 33 % idle, activations of 3 micro-batches
	// rank 0 F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
	// rank 1 .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
	// rank 2 .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .
}

// TestText: stages are shown where ranks have several, and a step goes on below where a line ends.
func TestText(t *testing.T) {
	sim := simulate(t, generate(t, "zbv", 2, 4, 0), schedule.Uniform(4, unit, 0))
	require.Equal(t, `rank 0 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2
rank 1 .   1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1

rank 0 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3 .
rank 1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3
`, sim.Text(60))
	low, err := generate(t, "zbv", 2, 4, 0).Lower()
	require.NoError(t, err)
	require.Equal(t, sim.Text(60), simulate(t, low, schedule.Uniform(4, unit, 0)).Text(60), "messages are not shown")
	one := generate(t, "1f1b", 1, 1, 0)
	require.Equal(t, "rank 0 F0\n\nrank 0 B0\n\nrank 0 --\n", simulate(t, one, schedule.Uniform(1, unit, 0)).Text(0))
}

// TestTextOfOddCosts: any costs are drawn within bounds.
func TestTextOfOddCosts(t *testing.T) {
	s := generate(t, "1f1b", 2, 3, 0)
	for _, c := range []schedule.StageCosts{{}, {Forward: 1e-9, Input: 1, Weight: 1e9},
		{Forward: math.SmallestNonzeroFloat64}, {Forward: 1e18, Input: 1e18, Weight: 1e18},
		{Forward: 1, Input: 1.3, Weight: .7}} {
		text := simulate(t, s, schedule.Uniform(2, c, 0)).Text(100)
		require.Less(t, len(text), 100_000)
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len(strings.TrimRight(line, "\n")), 100)
		}
	}
}

// TestBars: a step fits into any columns, each with the pass that takes most of it.
func TestBars(t *testing.T) {
	s := generate(t, "1f1b", 2, 2, 0)
	sim := simulate(t, s, schedule.Uniform(2, schedule.StageCosts{Forward: 1, Input: 1, Weight: 1}, 0))
	require.Equal(t, 9.0, sim.Time)
	require.Equal(t, "rank 0 FF..BB.BB\nrank 1 .FBBFBB..\n", sim.Bars(len("rank 0 ")+9))
	require.Equal(t, "rank 0 F.BB\nrank 1 .BB.\n", sim.Bars(len("rank 0 ")+4))
	require.Equal(t, "rank 0 B\nrank 1 B\n", sim.Bars(0))
}
