// SPDX-License-Identifier: Apache-2.0

package timeline_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/pp/timeline"
)

// lowered is a schedule on p ranks.
func lowered(t *testing.T, name string, p, m int) *schedule.Schedule {
	s, err := schedule.Load(name, schedule.Shape{Ranks: p, MicroBatches: m})
	require.NoError(t, err)
	s, err = s.Lower()
	require.NoError(t, err)
	return s
}

// A step that runs as the simulator has it, some time after its clock began, has the simulator's costs and idle time.
func TestMeasuredAsPredicted(t *testing.T) {
	for _, name := range schedule.Names() {
		s := lowered(t, name, 4, 8)
		costs := schedule.Uniform(s.Stages(), schedule.StageCosts{Forward: 1, Input: 1.25, Weight: 0.75}, 0.125)
		costs.Stages[s.Stages()-1].Forward = 2
		sim, err := s.Simulate(costs)
		require.NoError(t, err)
		late := make([][]schedule.Span, len(sim.Timeline))
		for r, list := range sim.Timeline {
			for _, span := range list {
				late[r] = append(late[r], schedule.Span{Start: span.Start + 100, End: span.End + 100})
			}
		}
		got, err := timeline.New(s, late)
		require.NoError(t, err)
		require.InDelta(t, sim.Time, got.Measured.Time, 1e-9, name)
		require.InDelta(t, sim.Idle(), got.Measured.Idle(), 1e-9, name)
		require.InDelta(t, sim.Time, got.Predicted.Time, 1e-9, name)
		require.InDelta(t, sim.Idle(), got.Predicted.Idle(), 1e-9, name)
		for i, x := range costs.Stages {
			require.InDelta(t, x.Forward, got.Costs.Stages[i].Forward, 1e-9, name)
			require.InDelta(t, x.Input+x.Weight, got.Costs.Stages[i].Input+got.Costs.Stages[i].Weight, 1e-9, name)
		}
		require.InDelta(t, 0.125, got.Costs.Transfer[0], 1e-9, name)
	}
}

// A rank that pauses is idle for longer than predicted.
func TestPause(t *testing.T) {
	s := lowered(t, "gpipe", 2, 4)
	sim, err := s.Simulate(schedule.Uniform(2, schedule.StageCosts{Forward: 1, Input: 1, Weight: 1}, 0))
	require.NoError(t, err)
	spans := sim.Timeline
	for i, a := range s.Ranks[0] {
		if a.Op == schedule.B && a.MicroBatch == 3 {
			spans[0][i].Start += 4
			spans[0][i].End += 4
		}
	}
	got, err := timeline.New(s, spans)
	require.NoError(t, err)
	require.InDelta(t, 19, got.Measured.Time, 1e-9)
	require.InDelta(t, 7.0/19, got.Measured.Idle(), 1e-9)
	require.InDelta(t, 15, got.Predicted.Time, 1e-9)
	require.InDelta(t, 0.2, got.Predicted.Idle(), 1e-9)
	require.Equal(t, "gpipe: a step of 19 s, 36.8 % idle; predicted 15 s, 20.0 % idle", got.String())
}

// The files are a Chrome trace, whose events do not overlap in a row of passes, and two pictures.
func TestWrite(t *testing.T) {
	s := lowered(t, "zbv", 2, 4)
	sim, err := s.Simulate(schedule.Uniform(4, schedule.StageCosts{Forward: 1, Input: 1, Weight: 1}, 0.5))
	require.NoError(t, err)
	got, err := timeline.New(s, sim.Timeline)
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "step")
	require.NoError(t, got.Write(name))
	text, err := os.ReadFile(name + ".json")
	require.NoError(t, err)
	var trace struct {
		OtherData map[string]any `json:"otherData"`
		Events    []struct {
			Name, Ph string
			TS, Dur  float64
			PID, TID int
			Args     map[string]any
		} `json:"traceEvents"`
	}
	require.NoError(t, json.Unmarshal(text, &trace))
	require.Equal(t, "zbv", trace.OtherData["schedule"])
	passes, end := map[int]int{}, map[[2]int]float64{}
	for _, e := range trace.Events {
		if row := [2]int{e.PID, e.TID}; e.Ph == "X" && e.TID%2 == 0 {
			passes[e.TID]++
			require.GreaterOrEqual(t, e.TS, end[row]-1, "%s of rank %d", e.Name, e.PID)
			end[row] = e.TS + e.Dur
			require.Contains(t, e.Name, e.Args["op"])
		}
	}
	require.Equal(t, map[int]int{0: 48, 2: 48}, passes, "F, I and W of 4 micro-batches on 4 stages")
	for _, theme := range []string{"light", "dark"} {
		text, err := os.ReadFile(name + "-" + theme + ".svg")
		require.NoError(t, err)
		require.Contains(t, string(text), "measured")
		require.NotContains(t, string(text), "Drawn by")
		for d := xml.NewDecoder(bytes.NewReader(text)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				require.NoError(t, err)
			}
		}
	}
	require.ErrorContains(t, got.Write(filepath.Join(name, "no", "folder")), "timeline: open")
}

func TestNewRefuses(t *testing.T) {
	s, err := schedule.Load("1f1b", schedule.Shape{Ranks: 2, MicroBatches: 2})
	require.NoError(t, err)
	_, err = timeline.New(s, nil)
	require.ErrorContains(t, err, "lists no messages")
	s, err = s.Lower()
	require.NoError(t, err)
	_, err = timeline.New(s, [][]schedule.Span{nil, nil})
	require.ErrorContains(t, err, "want a time for each")
	spans := [][]schedule.Span{make([]schedule.Span, len(s.Ranks[0])), make([]schedule.Span, len(s.Ranks[1]))}
	_, err = timeline.New(s, spans)
	require.ErrorContains(t, err, "no pass took any time")
}
