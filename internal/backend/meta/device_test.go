// SPDX-License-Identifier: Apache-2.0

package meta_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/cpu"
	"github.com/lockstep-ml/lockstep/internal/backend/meta"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// A device that stands for another has its kernels: those that are missing are composed, which takes memory.
func TestLike(t *testing.T) {
	host := cpu.New(1)
	defer func() { require.NoError(t, host.Close()) }()
	for op := backend.OpInvalid + 1; op < backend.NumOps; op++ {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			require.True(t, meta.New().Supports(op, dt))
			require.Equal(t, host.Supports(op, dt), meta.Like(host).Supports(op, dt), "%s %s", op, dt)
		}
	}
	require.False(t, meta.Like(host).Supports(backend.OpConv2D, dtype.BFloat16))
	require.True(t, meta.Like(host).Supports(backend.OpConv2D, dtype.Float32))
	require.Equal(t, backend.TraitsOf(host), meta.Like(host).Traits())
}

func TestDevice(t *testing.T) {
	d := meta.New()
	x, err := d.Alloc(1 << 50) // no memory is behind it
	require.NoError(t, err)
	y, err := d.Alloc(8)
	require.NoError(t, err)
	require.Equal(t, 8, y.Bytes())
	d.Free(x)
	require.Equal(t, backend.Stats{InUse: 8, Peak: 1<<50 + 8, Reserved: 1<<50 + 8, Allocs: 2}, d.Stats())
	_, err = d.Alloc(-1)
	require.Error(t, err)
	require.Panics(t, func() { d.Free(x) }, "twice")
	require.Panics(t, func() { meta.New().Free(y) }, "another device's")

	s := d.NewStream()
	s.Launch(&backend.Call{})
	s.Write(y, 0, []byte{1, 2, 3})
	got := []byte{9, 9}
	s.Read(got, y, 0)
	require.Equal(t, []byte{0, 0}, got)
	e := s.Record()
	s.Wait(e)
	e.Sync()
	require.True(t, e.Done())
	s.Sync()
	require.NoError(t, d.Close())
}
