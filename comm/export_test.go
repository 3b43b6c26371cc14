// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"testing"
	"time"
)

// SetPatience sets for one test when a rank asks for the others, for groups that begin after it.
func SetPatience(t *testing.T, tick, late, answer, busy time.Duration) {
	before := patience
	t.Cleanup(func() { patience = before })
	patience.tick, patience.late, patience.answer, patience.busy = tick, late, answer, busy
}
