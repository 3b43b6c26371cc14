// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"testing"

	"go.uber.org/goleak"
)

// The workers of the process's device stay.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/lockstep-ml/lockstep/internal/parallel.(*worker).loop"))
}
