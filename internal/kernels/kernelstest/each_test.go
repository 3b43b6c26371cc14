// SPDX-License-Identifier: Apache-2.0

package kernelstest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

func TestEachVisitsAllAvailableVariants(t *testing.T) {
	before := kernels.Active()
	var seen []kernels.Variant
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		require.Equal(t, v, kernels.Active())
		seen = append(seen, v)
	})
	require.Equal(t, kernels.Available(), seen)
	require.Equal(t, before, kernels.Active())
}
