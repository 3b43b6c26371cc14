// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
)

// tables are PyTorch's own, by file name: see testdata/torch/schedules.py.
func tables(t *testing.T) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/torch/*.csv")
	require.NoError(t, err)
	out := map[string][]byte{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		out[filepath.Base(name)] = text
	}
	require.Len(t, out, 50)
	return out
}

func parse(t *testing.T, text string) *schedule.Schedule {
	t.Helper()
	s, err := schedule.ReadCSV(strings.NewReader(text))
	require.NoError(t, err)
	return s
}

func TestTablesOfPyTorchRoundTrip(t *testing.T) {
	for name, text := range tables(t) {
		var again bytes.Buffer
		require.NoError(t, parse(t, string(text)).WriteCSV(&again))
		require.Equal(t, string(text), again.String(), name)
	}
}

func TestReadCSV(t *testing.T) {
	s := parse(t, "\ufeff0F0,, 0B0 \n\"1F0\",1B0\n") // with a mark of the byte order, as spreadsheets write it
	require.Equal(t, 1, s.MicroBatches)
	require.Equal(t, []int{0, 1}, s.StageToRank)
	require.Equal(t, [][]schedule.Action{{{Op: schedule.F}, {}, {Op: schedule.B}},
		{{Op: schedule.F, Stage: 1}, {Op: schedule.B, Stage: 1}}}, s.Ranks)
	require.NoError(t, s.Validate())

	s = parse(t, "0F0,(0F1;0B0)OVERLAP_F_B,0B1\r\n\r\n\"\"\r\n")
	require.Equal(t, []schedule.Action{{Op: schedule.F}, {Op: schedule.F, MicroBatch: 1, Overlap: true},
		{Op: schedule.B}, {Op: schedule.B, MicroBatch: 1}}, s.Ranks[0])
	require.Empty(t, s.Ranks[1])
	require.Len(t, s.Ranks[2], 1)
	var text bytes.Buffer
	require.NoError(t, s.WriteCSV(&text))
	require.Equal(t, "0F0,(0F1;0B0)OVERLAP_F_B,0B1\r\n\r\n\"\"\r\n", text.String())
}

func TestReadCSVRefuses(t *testing.T) {
	long := strings.Repeat("9", 1000)
	for text, want := range map[string]string{
		"":                            "no actions: want a line for each rank",
		",,\n,":                       "no actions: want a line for each rank",
		"0F0\n1F0,x":                  `line 2, column 5: "x" is not an action: want a stage, an op and a micro-batch`,
		"0F0, 0G0":                    `line 1, column 5: "0G0": unknown op "G": want one of F, I, W, B, SEND_F`,
		"F0":                          `line 1, column 1: "F0" is not an action`,
		"0F":                          `line 1, column 1: "0F": F works on a micro-batch: want its number at the end`,
		"0F-1":                        `"0F-1" is not an action`,
		"0f1":                         `"0f1" is not an action`,
		"0F1x":                        `"0F1x" is not an action`,
		"0UNSHARD1":                   `"0UNSHARD1": UNSHARD works on a whole stage: want no micro-batch`,
		"0F1048576":                   `micro-batch "1048576": want at most 1048575`,
		long + "F0":                   `stage "` + long[:40] + `"…: want at most 1048575`,
		"(0F0;0B1":                    `column 1: "(0F0;0B1": want passes that overlap such as (1F4;6B0)OVERLAP_F_B`,
		"(0F0)OVERLAP_F_B":            `want passes that overlap`,
		"(0F0;0B1)OVERLAP":            `want passes that overlap`,
		"(0F0;)OVERLAP_F_B":           `"" is not an action`,
		"(0F0;0SEND_F1)OVERLAP_F_B":   `0SEND_F1 overlaps with another action: want F, I, W or B`,
		"0F0,2F0,0B0":                 "stage 1 has no pass: want those of 3 stages",
		"0F0,900000F0":                "2 actions: want at least one for each of 900001 stages and 1 micro-batch",
		"0F0,0B900000":                "2 actions: want at least one for each of 1 stages and 900,001 micro-batches",
		strings.Repeat("\n", 20000):   "more than 16384 lines: want one for each rank",
		strings.Repeat(",", 1<<22):    "4194304 commas: want at most 2097152 cells",
		strings.Repeat("x", 32<<20+1): "more than 33554432 bytes: want a schedule's table",
	} {
		_, err := schedule.ReadCSV(strings.NewReader(text))
		require.ErrorContains(t, err, want, "%.40q", text)
		require.Less(t, len(err.Error()), 4000)
	}
	_, err := schedule.ReadCSV(strings.NewReader("a,b\n" + strings.Repeat("c,", 100)))
	require.ErrorContains(t, err, "line 1, column 3")
	require.ErrorContains(t, err, "line 2, column 1:")
	require.ErrorContains(t, err, "and 82 more", "of 102, the first 20 are listed")
}

func TestReadFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "mine.csv")
	_, err := schedule.ReadFile(name)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(name, []byte("0F0,0B"), 0o644))
	_, err = schedule.ReadFile(name)
	require.ErrorContains(t, err, "mine.csv: line 1, column 5: ")
	require.NoError(t, os.WriteFile(name, []byte("0F0,0B0"), 0o644))
	s, err := schedule.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, name, s.Name)
	require.NoError(t, s.Validate())
}

// FuzzReadCSV: whatever a file holds, reading, checking, lowering and simulating it end with a result or an error, and
// what is read is written so that it reads the same.
func FuzzReadCSV(f *testing.F) {
	for _, name := range []string{"1f1b-p2-m4-v1.csv", "zbv-p2-m4-v2.lowered.csv", "dualpipev-p2-m4-v2.csv"} {
		text, err := os.ReadFile(filepath.Join("testdata/torch", name))
		require.NoError(f, err)
		f.Add(text)
	}
	for _, text := range []string{"", "\r\n", "\"\"", "0F0,0B0\n1F0,1B0", "(0F0;0B0)OVERLAP_F_B",
		"0UNSHARD,0RESHARD,0W0", "1048575F1048575", "0F0,1F0,0B0,1B0\n,",
		"0RECV_F0,0SEND_F0\n1SEND_B0,1RECV_B0,1F0\n0F0"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := schedule.ReadCSV(bytes.NewReader(text))
		if err != nil {
			return
		}
		var first, second bytes.Buffer
		require.NoError(t, s.WriteCSV(&first))
		again, err := schedule.ReadCSV(bytes.NewReader(first.Bytes()))
		require.NoError(t, err)
		require.NoError(t, again.WriteCSV(&second))
		require.Equal(t, first.String(), second.String())
		valid := s.Validate() == nil
		sim, err := s.Simulate(schedule.Uniform(s.Stages(), unit, 1))
		if valid {
			require.NoError(t, err)
			_ = sim.Text(80)
		}
		low, err := s.Lower()
		if valid && !s.Lowered() {
			require.NoError(t, err)
			require.NoError(t, low.Validate(), fmt.Sprintf("%q", text))
		}
	})
}
