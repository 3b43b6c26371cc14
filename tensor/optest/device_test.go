// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package optest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
	"github.com/lockstep-ml/lockstep/tensor"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda"
)

// TestDevice runs the table on the machine's first device.
func TestDevice(t *testing.T) {
	if !slices.Contains(tensor.DeviceNames(), "cuda:0") {
		lacking.Skip(t, lacking.Tools, "gpu", "no device of CUDA")
	}
	d, err := tensor.OpenDevice("cuda:0") // one for all: it opens once
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	Run(t, func(*testing.T) *tensor.Device { return d })
}
