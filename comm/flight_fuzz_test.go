// SPDX-License-Identifier: Apache-2.0

package comm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
)

// FuzzDiagnose: whatever the flight files of two ranks say, there is an error or a report on them.
func FuzzDiagnose(f *testing.F) {
	record := `{"version":2,"group":"g","rank":0,"size":2,"entries":[{"seq":1,"op":"all_reduce","dtype":"float32",` +
		`"state":"started"}]}`
	f.Add([]byte(record), []byte(`{"version":2,"group":"g","rank":1,"group_rank":1,"size":2}`))
	f.Add([]byte(record),
		[]byte(`{"version":2,"group":"g","rank":1,"group_rank":1,"size":9223372036854775807,"error":"x"}`))
	f.Add([]byte(record), []byte(`{"version":2,"group":"g","rank":7,"group_rank":1,"size":2,"members":[3,7]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "flight_0.json"), a, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "flight_1.json"), b, 0o600))
		report, err := comm.Diagnose(dir)
		if err != nil {
			require.ErrorContains(t, err, dir)
			return
		}
		require.Len(t, report.Records, 2)
		for _, finding := range report.Findings {
			require.NotEmpty(t, finding.String())
		}
	})
}

// A record that claims to be one of ever so many ranks is refused: each rank without a record would be listed.
func TestFlightRecordsMadeToExhaustMemoryAreRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "flight_0.json"),
		[]byte(`{"version":2,"group":"g","rank":0,"size":1000000000000}`), 0o600))
	_, err := comm.Diagnose(dir)
	require.ErrorContains(t, err, "rank 0 of 1000000000000: want version 2 and a rank below the size, which is at "+
		"most 65536")
}
