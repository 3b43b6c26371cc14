// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What waits for a tracker that does not answer is bounded: the oldest rows are dropped.
func TestBacklog(t *testing.T) {
	q := &queue{again: time.Now().Add(time.Hour)}
	for step := range int64(mostWaiting + 50) {
		require.NoError(t, q.put(Row{Step: step}))
	}
	require.Len(t, q.rows, mostWaiting)
	require.Equal(t, 50, q.lost)
	require.EqualValues(t, 50, q.rows[0].Step)
}
