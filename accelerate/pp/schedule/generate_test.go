// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

// unit is a stage whose passes take one tick each.
var unit = schedule.StageCosts{Forward: 1, Input: 1, Weight: 1, Activation: 1}

func generate(t *testing.T, name string, p, m, v int) *schedule.Schedule {
	t.Helper()
	s, err := schedule.New(name, schedule.Shape{Ranks: p, MicroBatches: m, StagesPerRank: v})
	require.NoError(t, err)
	return s
}

func simulate(t *testing.T, s *schedule.Schedule, c schedule.Costs) *schedule.Simulation {
	t.Helper()
	sim, err := s.Simulate(c)
	require.NoError(t, err)
	return sim
}

// lines are lists of actions as tables have them.
func lines(lists [][]schedule.Action) string {
	var out strings.Builder
	if err := (&schedule.Schedule{Ranks: lists}).WriteCSV(&out); err != nil {
		panic(err)
	}
	return out.String()
}

// passes is a schedule's table without empty cells and what is not computed.
func passes(s *schedule.Schedule) (out [][]schedule.Action) {
	for _, list := range s.Ranks {
		out = append(out, slices.DeleteFunc(slices.Clone(list), func(a schedule.Action) bool {
			return a.Op < schedule.F || a.Op > schedule.B
		}))
	}
	return out
}

// TestGeneratorsMatchPyTorch: the passes are PyTorch's, except that Looped BFS has its backward passes ascend.
func TestGeneratorsMatchPyTorch(t *testing.T) {
	seen := map[string]bool{}
	for file, text := range tables(t) {
		var name string
		var p, m, v int
		words := strings.ReplaceAll(strings.TrimSuffix(file, ".csv"), "-", " ")
		_, err := fmt.Sscanf(words, "%s p%d m%d v%d", &name, &p, &m, &v)
		require.NoError(t, err, file)
		if strings.Contains(file, "lowered") || name == "interleaved_zb" {
			continue
		}
		want := passes(parse(t, string(text)))
		for rank, list := range want {
			for i, a := range list {
				switch {
				case name == "looped_bfs" && a.Op == schedule.B:
					list[i].MicroBatch = m - 1 - a.MicroBatch
				case name == "1f1b" && a.Op == schedule.F && rank == p-1: // PyTorch's table counts these from 1
					list[i].MicroBatch--
				}
			}
		}
		s := generate(t, name, p, m, v)
		require.Equal(t, lines(want), lines(s.Ranks), file)
		seen[name] = true
	}
	require.Len(t, seen, len(schedule.Names()))
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		of   schedule.Shape
		want string
	}{
		{"zbw", schedule.Shape{}, `unknown schedule "zbw"; did you mean zbv?`},
		{"megatron", schedule.Shape{}, `unknown schedule "megatron"; the schedules are gpipe, 1f1b, ` +
			`interleaved_1f1b, looped_bfs, zb_h1, zbv, dualpipev`},
		{"1f1b", schedule.Shape{Ranks: 0, MicroBatches: -1, StagesPerRank: 2}, "schedule 1f1b:\n  0 ranks: want at " +
			"least 1\n  -1 micro-batches: want at least 1\n  2 stages per rank: want 1"},
		{"zbv", schedule.Shape{Ranks: 2, MicroBatches: 1, StagesPerRank: 3}, "schedule zbv: 3 stages per rank: want 2"},
		{"looped_bfs", schedule.Shape{Ranks: 2, MicroBatches: 1, StagesPerRank: 1},
			"schedule looped_bfs: 1 stage per rank: want at least 2"},
		{"interleaved_1f1b", schedule.Shape{Ranks: 4, MicroBatches: 10},
			"schedule interleaved_1f1b: 10 micro-batches on 4 ranks: want a multiple of 4"},
		{"dualpipev", schedule.Shape{Ranks: 4, MicroBatches: 4},
			"schedule dualpipev: 4 micro-batches on 4 ranks: want at least 8, two for each rank"},
		{"gpipe", schedule.Shape{Ranks: 1000, MicroBatches: 1 << 40}, "1000 ranks × 1 stages × 1099511627776 " +
			"micro-batches: want at most 16384 ranks and 262144 forward passes"},
	} {
		_, err := schedule.New(c.name, c.of)
		require.ErrorContains(t, err, c.want)
	}
}

// permits reports whether a schedule is defined for a shape.
func permits(name string, p, m int) bool {
	switch name {
	case "interleaved_1f1b":
		return m%p == 0
	case "dualpipev":
		return m >= 2*p
	}
	return true
}

// most is the peak of a rank in activations of its stages.
func most(name string, p, m, v, rank int) int {
	switch name {
	case "gpipe", "looped_bfs":
		return m * v
	case "1f1b":
		return min(m, p-rank)
	case "interleaved_1f1b":
		return min(m*v, (v-1)*p+2*(p-1-rank)+1)
	case "zb_h1":
		return min(m, p)
	case "zbv":
		return min(2*m, 2*p)
	case "dualpipev":
		return 2*p + 1
	}
	panic(name)
}

// TestGenerators: for random sizes, every schedule is valid, comes to its end with any costs, and has the peaks of its
// paper; so have the schedules of shorter steps, and the lowered ones.
func TestGenerators(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, name := range schedule.Names() {
		for range 60 {
			p, v := 1+random.IntN(9), 0
			m := 1 + random.IntN(4*p)
			if name == "interleaved_1f1b" || name == "looped_bfs" {
				v = 2 + random.IntN(3)
			}
			if !permits(name, p, m) {
				m = 2 * p
			}
			s := generate(t, name, p, m, v)
			v = s.Stages() / p
			at := fmt.Sprintf("%s p=%d m=%d v=%d", name, p, m, v)
			require.NoError(t, s.Validate(), at)
			n := 1 + random.IntN(m)
			short, err := s.Truncate(n)
			require.NoError(t, err)
			require.NoError(t, short.Validate(), "%s cut to %d", at, n)
			low, err := short.Lower()
			require.NoError(t, err)
			require.NoError(t, low.Validate(), "%s cut to %d", at, n)

			whole, cut := simulate(t, s, schedule.Uniform(s.Stages(), unit, 0)),
				simulate(t, low, randomCosts(random, s.Stages()))
			for rank := range p {
				if name == "dualpipev" || name == "zbv" && m < 2*p-1 {
					require.LessOrEqual(t, whole.Ranks[rank].Peak, float64(most(name, p, m, v, rank)), at)
				} else {
					require.Equal(t, float64(most(name, p, m, v, rank)), whole.Ranks[rank].Peak, "%s rank %d", at, rank)
				}
				require.LessOrEqual(t, cut.Ranks[rank].Peak, whole.Ranks[rank].Peak, at)
			}
		}
	}
}

// randomCosts have passes and messages of all lengths, and activations of 1.
func randomCosts(random *rand.Rand, stages int) schedule.Costs {
	c := schedule.Uniform(stages, unit, 0)
	for i := range c.Stages {
		for _, cost := range []*float64{&c.Stages[i].Forward, &c.Stages[i].Input, &c.Stages[i].Weight} {
			*cost = random.Float64()
		}
	}
	for i := range c.Transfer {
		c.Transfer[i] = 2 * random.Float64()
	}
	return c
}

// A step that a schedule has no order of its own for is told from one that it has.
func TestRefuses(t *testing.T) {
	for name, want := range map[string][]int{"dualpipev": {1, 2, 3}, "interleaved_1f1b": {1, 3, 5, 7}, "1f1b": nil,
		"zbv": nil} {
		s, refused := generate(t, name, 2, 8, 0), []int(nil)
		for n := 1; n <= 8; n++ {
			if s.Refuses(n) != nil {
				refused = append(refused, n)
			}
		}
		require.Equal(t, want, refused, name)
	}
	require.ErrorContains(t, generate(t, "dualpipev", 2, 4, 0).Refuses(2),
		"2 micro-batches on 2 ranks: want at least 4")
	require.NoError(t, (&schedule.Schedule{Name: "a.csv", Ranks: make([][]schedule.Action, 2)}).Refuses(1))
}

func TestTruncate(t *testing.T) {
	for _, name := range []string{"gpipe", "1f1b", "zb_h1"} {
		short, err := generate(t, name, 4, 12, 0).Truncate(5)
		require.NoError(t, err)
		require.Equal(t, generate(t, name, 4, 5, 0), short, "as if it were made for them")
	}
	s := generate(t, "dualpipev", 4, 8, 0)
	for _, n := range []int{0, 9} {
		_, err := s.Truncate(n)
		require.ErrorContains(t, err, fmt.Sprintf("schedule dualpipev for a step of %d micro-batches: want 1 to 8", n))
	}
	one, err := s.Truncate(1)
	require.NoError(t, err)
	for _, list := range one.Ranks {
		for _, a := range list {
			require.False(t, a.Overlap, "with nothing")
		}
	}
	require.NoError(t, one.Validate())
}

func TestForward(t *testing.T) {
	for _, name := range schedule.Names() {
		s := generate(t, name, 4, 8, 0)
		low, err := s.Lower()
		require.NoError(t, err)
		for _, e := range []*schedule.Schedule{s.Forward(), low.Forward()} {
			require.NoError(t, e.Validate(), name)
			sim := simulate(t, e, schedule.Uniform(e.Stages(), unit, 0))
			require.Equal(t, 1.0, sim.Peak(), "an evaluation keeps nothing for later")
			for _, r := range sim.Ranks {
				require.Equal(t, float64(8*e.Stages()/4), r.Busy, name)
			}
		}
		again, err := s.Forward().Lower()
		require.NoError(t, err)
		require.NoError(t, again.Validate(), name)
	}
}

func TestPlacements(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 0, 1, 2}, schedule.Loop(3, 2))
	require.Equal(t, []int{0, 1, 2, 2, 1, 0}, schedule.V(3, 2))
	require.Equal(t, []int{0, 1, 1, 0, 0, 1}, schedule.V(2, 3))
	s := generate(t, "zbv", 3, 6, 0)
	require.Equal(t, []int{1, 4}, s.StagesOf(1))
}
