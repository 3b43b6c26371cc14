// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/backendtest"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
)

// Where there is no cuDNN, convolutions are products of unfolded windows.
func TestConvolutionsWithoutCuDNN(t *testing.T) {
	d := open(t, fake.Options{Seed: 1, NoDnn: true})
	backendtest.RunOps(t, d, backend.OpConv2D, backend.OpConv2DGrad, backend.OpConv2DParamGrad)
	require.NoError(t, d.Close())
}
