// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// A channel of so many segments that their sums are read several at once, and some that are left over.
func TestBatchNormOfLongChannels(t *testing.T) {
	d := fakeDevice(t, fake.Options{})
	r := rand.New(rand.NewPCG(1, 2))
	x, dy, each := drawn(r, dtype.Float32, -1, 3, 3, 2, 12500), drawn(r, dtype.Float32, -1, 1, 3, 2, 12500),
		blank(dtype.Float32, 2)
	mean, variance := drawn(r, dtype.Float32, 0, 2, 2), drawn(r, dtype.Float32, 1, 2, 2)
	requireCPU(t, d, backend.Call{Op: backend.OpBatchStats}, []array{each, each}, []array{x}, false)
	requireCPU(t, d, backend.Call{Op: backend.OpBatchNormGrad, Floats: [8]float64{1e-5}}, []array{x, each, each},
		[]array{x, mean, variance, dy}, false)
}
