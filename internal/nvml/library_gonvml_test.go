// SPDX-License-Identifier: Apache-2.0

//go:build nvml && cgo

package nvml

import (
	"testing"

	nvidia "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/stretchr/testify/require"
)

func TestGoNVML(t *testing.T) {
	l, err := openGoNVML(dgxh200.New())
	require.NoError(t, err)
	require.Equal(t, "go-nvml", l.Source())
	require.Equal(t, "550.54.15", l.Driver())
	require.Len(t, l.GPUs(), 8)
	for i, g := range l.GPUs() {
		require.Equal(t, i, g.Index)
		require.Equal(t, "NVIDIA H200 141GB HBM3e", g.Name)
		require.Equal(t, "9.0", g.Capability)
		require.Contains(t, g.UUID, "GPU-")
		require.Greater(t, g.Memory, int64(140e9))
	}
	require.NoError(t, l.Close())
}

// A figure that a device does not have is left out, and the others are read.
func TestGoNVMLUsage(t *testing.T) {
	device := &mock.Device{
		GetUtilizationRatesFunc: func() (nvidia.Utilization, nvidia.Return) {
			return nvidia.Utilization{Gpu: 97, Memory: 41}, nvidia.SUCCESS
		},
		GetMemoryInfoFunc: func() (nvidia.Memory, nvidia.Return) { return nvidia.Memory{Used: 5}, nvidia.SUCCESS },
		GetPowerUsageFunc: func() (uint32, nvidia.Return) { return 0, nvidia.ERROR_NOT_SUPPORTED },
		GetTemperatureFunc: func(nvidia.TemperatureSensors) (uint32, nvidia.Return) {
			return 58, nvidia.SUCCESS
		},
	}
	l := &goNVML{devices: []nvidia.Device{device}}
	usage, err := l.Usage()
	require.NoError(t, err)
	want := unknown
	want.Utilization, want.MemoryUtilization, want.MemoryUsed, want.Temperature = 97, 41, 5, 58
	require.InDelta(t, want.Utilization, usage[0].Utilization, 0)
	require.InDelta(t, want.MemoryUsed, usage[0].MemoryUsed, 0)
	require.InDelta(t, want.Temperature, usage[0].Temperature, 0)
	require.NotEqual(t, usage[0].Power, usage[0].Power, "NaN")

	device.GetUtilizationRatesFunc = func() (nvidia.Utilization, nvidia.Return) {
		return nvidia.Utilization{}, nvidia.ERROR_GPU_IS_LOST
	}
	_, err = l.Usage()
	require.Error(t, err)
}

// After an Init that fails no other call is made: one would end the process.
func TestGoNVMLAfterAFailedInit(t *testing.T) {
	for _, ret := range []nvidia.Return{nvidia.ERROR_LIBRARY_NOT_FOUND, nvidia.ERROR_DRIVER_NOT_LOADED} {
		api := &mock.Interface{InitFunc: func() nvidia.Return { return ret }} // any other call panics
		_, err := openGoNVML(api)
		require.Error(t, err)
		require.Equal(t, ret == nvidia.ERROR_LIBRARY_NOT_FOUND, err == ErrNone)
	}
}
