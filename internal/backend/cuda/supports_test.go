// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// TestSupports launches every op on every dtype: it has kernels for those that Supports names, and for no others.
func TestSupports(t *testing.T) {
	holds := func(d *Device, stream backend.Stream, op backend.Op) {
		for _, dt := range dtype.All() {
			if testing.Short() && (dt == dtype.Float64 || dt == dtype.Float16) {
				continue // a short run has no samples of them
			}
			fault := backendtest.Launch(d, stream, op, dt)
			require.Equal(t, fault == nil, d.Supports(op, dt), "%s on %s: %v", op, dt, fault)
			if fault != nil {
				require.ErrorContains(t, fault, "no kernel for ")
			}
		}
		require.False(t, d.Supports(op, dtype.Invalid), "%s", op)
	}
	d := fakeDevice(t, fake.Options{})
	stream := d.NewStream()
	for op := backend.OpInvalid + 1; op < backend.NumOps; op++ {
		holds(d, stream, op)
	}
	require.False(t, d.Supports(backend.OpInvalid, dtype.Float32))
	require.False(t, d.Supports(backend.NumOps, dtype.Float32))
	d = withoutDnn(t, fake.Options{}) // convolutions are products of unfolded windows
	stream = d.NewStream()
	for _, op := range convolutionOps {
		holds(d, stream, op)
	}
}
