// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
)

// aligned returns n bytes that begin at a multiple of 64.
func aligned(n int) []byte {
	mem := make([]byte, n+64)
	skip := -uintptr(unsafe.Pointer(&mem[0])) % 64
	return mem[skip : skip+uintptr(n)]
}

func TestHostMemoryIsShared(t *testing.T) {
	c := newCtx(t)
	before := inUse(c)
	mem := aligned(32)
	copy(mem, tensor.ReadBytes(c, vec(c, 1, 2, 3, 4)))
	x, ok := tensor.FromHost(c, mem, tensor.Float64, 2, 2)
	require.True(t, ok)
	require.Equal(t, []float64{1, 2, 3, 4}, values(c, x))
	tensor.ScaleInto(c, x, 2)
	shown, ok := tensor.HostBytes(c, tensor.Select(c, x, 0, 1))
	require.True(t, ok)
	require.Same(t, &mem[16], &shown[0])
	require.Len(t, shown, 16)
	require.Equal(t, tensor.ReadBytes(c, vec(c, 6, 8)), shown)
	_, ok = tensor.HostBytes(c, tensor.Transpose(c, x, 0, 1))
	require.False(t, ok, "gaps")

	x.Free()
	misuse(t, func() { values(c, x) })
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		tensor.FromHost(c, mem, tensor.Float32, 8)
		return nil
	})
	c.Device().Collect()
	require.Equal(t, before, inUse(c))
	require.Contains(t, misuse(t, func() { tensor.FromHost(c, mem, tensor.Float32, 7) }).Msg,
		"32 bytes do not fill float32[7]")
	require.ErrorContains(t, tensor.Try(func() { tensor.FromHost(c, mem[4:8], tensor.Float32, 1) }), "aligned")
}

func TestHostMemoryElsewhere(t *testing.T) {
	dev := joint.Device[*tensor.Device](deferred.New(1))
	defer func() { require.NoError(t, dev.Close()) }()
	c := tensor.NewCtx(dev)
	_, ok := tensor.FromHost(c, aligned(8), tensor.Float64, 1)
	require.False(t, ok)
	_, ok = tensor.HostBytes(c, vec(c, 1))
	require.False(t, ok)
}
