// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
)

// EnvDevice names an environment variable. If it is set, tests that are built with the tag cuda run on the machine's
// device instead of the fake, except for those of what the fake alone can do. bench/gpu/day.sh says which.
const EnvDevice = "LOCKSTEP_TEST_DEVICE"

// TestDriver makes the driver of tests.
var TestDriver = func(o fake.Options) cuda.Driver { return fake.New(o) }
