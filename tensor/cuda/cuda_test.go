// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package cuda

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestRegister(t *testing.T) {
	added := map[string]func() (*tensor.Device, error){}
	add := func(name string, open func() (*tensor.Device, error)) { added[name] = open }

	register(func() (cuda.Driver, error) { return fake.New(fake.Options{Devices: 2}), nil }, add)
	require.Len(t, added, 2)
	one, err := added["cuda:1"]()
	require.NoError(t, err)
	require.Equal(t, "cuda:1", one.Name())
	again, err := added["cuda:1"]()
	require.NoError(t, err)
	require.Same(t, one, again, "the process shares a device")
	require.False(t, one.HostMemory())
	require.NoError(t, one.Close())

	clear(added)
	register(func() (cuda.Driver, error) { return nil, errors.New("no driver") }, add)
	require.Len(t, added, 1)
	_, err = added["cuda"]()
	require.EqualError(t, err, "no driver")
}

// The device that every program with the tag has says what is missing, or works.
func TestOpen(t *testing.T) {
	names := tensor.DeviceNames()
	require.Contains(t, []string{"cuda", "cuda:0"}, names[len(names)-1][:min(6, len(names[len(names)-1]))])
	if names[len(names)-1] == "cuda" {
		_, err := tensor.OpenDevice("cuda")
		require.ErrorContains(t, err, "CUDA cannot be used")
	}
}
