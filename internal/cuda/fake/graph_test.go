// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
)

// setter stores its second parameter where its first points to.
const setter = `
.version 8.0
.target sm_80
.address_size 64
.visible .entry set(.param .u64 at, .param .u64 value)
{
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [at];
	ld.param.u64 %rd2, [value];
	cvta.to.global.u64 %rd3, %rd1;
	st.global.u64 [%rd3], %rd2;
	ret;
}
`

func setKernel(t *testing.T, d cuda.Device) cuda.Function {
	t.Helper()
	m, err := d.Load([]byte(setter))
	require.NoError(t, err)
	f, err := m.Function("set")
	require.NoError(t, err)
	return f
}

func words(list ...uint64) (b []byte) {
	for _, x := range list {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

// What is captured does nothing until the graph is launched, each launch has the parameters of its time, and parameters
// are read when they are captured or set.
func TestGraph(t *testing.T) {
	d := device(t, fake.Options{Delay: time.Millisecond})
	s, f := stream(t, d), setKernel(t, d)
	p, dst := alloc(t, d, 24), pinned(t, d, 24)
	one := [3]uint32{1, 1, 1}
	params := words(uint64(p), 5)
	require.NoError(t, s.Fill(p, 1, 24))
	g, err := s.Capture(func() error {
		require.NoError(t, s.Launch(f, one, one, 0, params))
		return s.CopyOnDevice(p+8, p, 8)
	})
	require.NoError(t, err)
	copy(params, words(uint64(p), 6))
	look := func() []byte {
		require.NoError(t, s.CopyToHost(dst, p))
		require.NoError(t, s.Sync())
		return dst
	}
	const ones = 0x0101010101010101
	require.Equal(t, words(ones, ones, ones), look())
	release := hold(s)
	require.NoError(t, g.Launch(s))
	require.NoError(t, g.SetParams(0, words(uint64(p)+16, 7)))
	require.NoError(t, s.CopyToHost(dst, p))
	require.ErrorContains(t, g.Close(), "1 launches of the graph are not done")
	release()
	require.NoError(t, s.Sync())
	require.Equal(t, words(5, 5, ones), dst)
	require.NoError(t, s.Fill(p, 1, 8))
	require.NoError(t, g.Launch(s))
	require.Equal(t, words(ones, ones, 7), look())

	require.ErrorContains(t, g.SetParams(1, params), "kernel 1 of 1")
	require.ErrorContains(t, g.SetParams(0, params[:8]), "8 bytes of parameters: want 16")
	require.NoError(t, g.Close())
	require.ErrorContains(t, g.Launch(s), "destroyed")
	require.ErrorContains(t, g.Close(), "destroyed")
}

// A call that a capture does not take fails, and spoils it. Those of other goroutines are no matter.
func TestWhatCapturesDoNotTake(t *testing.T) {
	d := device(t, fake.Options{})
	s, other := stream(t, d), stream(t, d)
	p, host := alloc(t, d, 8), pinned(t, d, 8)
	e, err := d.NewEvent()
	require.NoError(t, err)
	for name, call := range map[string]func() error{
		"record":         func() error { return s.Record(e) },
		"wait":           func() error { return s.Wait(e) },
		"sync":           s.Sync,
		"sync of all":    d.Sync,
		"copy to device": func() error { return s.CopyToDevice(p, host) },
		"copy to host":   func() error { return s.CopyToHost(host, p) },
		"memory":         func() error { _, err := d.Alloc(8); return err },
		"free":           func() error { return d.Free(p) },
		"host memory":    func() error { _, err := d.AllocHost(8); return err },
		"module":         func() error { _, err := d.Load([]byte(setter)); return err },
		"capture":        func() error { _, err := s.Capture(func() error { return nil }); return err },
	} {
		_, err := s.Capture(func() error {
			require.NoError(t, s.Fill(p, 1, 8))
			err := call()
			require.ErrorContains(t, err, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)", name)
			return s.Fill(p, 1, 8)
		})
		require.ErrorContains(t, err, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)", name)
	}
	g, err := s.Capture(func() error {
		done := make(chan error)
		go func() {
			_, err := d.Alloc(8)
			require.NoError(t, err)
			require.NoError(t, other.Fill(p, 3, 8))
			done <- other.Sync()
		}()
		require.NoError(t, s.Fill(p, 2, 8))
		return <-done
	})
	require.NoError(t, err)
	require.NoError(t, g.Launch(s))
	require.NoError(t, s.CopyToHost(host, p))
	require.NoError(t, s.Sync())
	require.Equal(t, byte(2), host[0])
	require.ErrorContains(t, d.Close(), "fake: 1 graphs were not closed")
}

// An error of a kernel of a graph is the context's.
func TestAGraphThatFails(t *testing.T) {
	d := device(t, fake.Options{})
	s, f := stream(t, d), setKernel(t, d)
	one := [3]uint32{1, 1, 1}
	g, err := s.Capture(func() error { return s.Launch(f, one, one, 0, words(64, 5)) })
	require.NoError(t, err)
	require.NoError(t, g.Launch(s))
	require.ErrorContains(t, s.Sync(), "kernel set: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	require.ErrorContains(t, g.Launch(s), "kernel set: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	require.NoError(t, g.Close())
}
