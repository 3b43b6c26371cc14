// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package kernels

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/cpu"
)

// TestHostAgrees compares with what golang.org/x/sys/cpu finds on this machine.
func TestHostAgrees(t *testing.T) {
	x := &cpu.X86
	for f, want := range map[Feature]bool{
		FeatureAVX: x.HasAVX, FeatureAVX2: x.HasAVX2, FeatureFMA: x.HasFMA && x.HasAVX,
		FeatureF16C: x.HasF16C && x.HasAVX, FeatureBMI2: x.HasBMI2,
		FeatureAVX512F: x.HasAVX512F, FeatureAVX512BW: x.HasAVX512BW, FeatureAVX512DQ: x.HasAVX512DQ,
		FeatureAVX512VL: x.HasAVX512VL, FeatureAVX512BF16: x.HasAVX512BF16,
	} {
		require.Equal(t, want, Has(f), f)
	}
	// That package does not ask the operating system for tiles.
	require.True(t, x.HasAMXTile || !Has(FeatureAMXTile))
	require.True(t, x.HasAMXBF16 || !Has(FeatureAMXBF16))
	require.False(t, Has("3DNOW"))
}
