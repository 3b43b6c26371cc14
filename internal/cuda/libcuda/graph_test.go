// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/clib"
)

// graphStream is a stream of testdata/graphs.c with some versions of functions, and what that has been told since the
// last call.
func graphStream(t *testing.T, versions ...string) (s *stream, said func() string) {
	t.Helper()
	d, lib := driverOf(t, append([]string{"-pthread", "testdata/graphs.c"}, versions...)...)
	var tell uintptr
	require.NoError(t, lib.Bind(map[string]*uintptr{"said": &tell}))
	v := &device{d: d, ctx: 0x1234, capturing: lockOf(1 << 20)}
	return &stream{v: v, handle: 0x77}, func() string { return clib.Text(clib.Call(tell)) }
}

// TestGraphs compares what the driver is told with what it should be: in C, by the types of cuda.h. Drivers have the
// newer function that finds a kernel's node, the older one, or both.
func TestGraphs(t *testing.T) {
	for _, versions := range [][]string{
		{"-DCAPTURE_INFO_V2"}, {"-DCAPTURE_INFO_V3"}, {"-DCAPTURE_INFO_V2", "-DCAPTURE_INFO_V3"},
	} {
		testGraphs(t, versions)
	}
	s, _ := graphStream(t)
	_, err := s.Capture(func() error { panic("not called") })
	require.ErrorContains(t, err, "has no function cuStreamGetCaptureInfo_v3 or cuStreamGetCaptureInfo_v2")
}

func testGraphs(t *testing.T, versions []string) {
	s, said := graphStream(t, versions...)
	f := &function{v: s.v, name: "k", handle: 0x99}
	g, err := s.Capture(func() error {
		return errors.Join(s.Launch(f, [3]uint32{1, 2, 3}, [3]uint32{4, 5, 6}, 7, []byte{1, 2}), s.Fill(0x100, 3, 8),
			s.Launch(f, [3]uint32{11, 12, 13}, [3]uint32{14, 15, 16}, 17, []byte{8, 9, 10}))
	})
	require.NoError(t, err)
	require.Equal(t, `begin 0x77, mode 1
launch 0x99 1 2 3 of 4 5 6, shared 7, stream 0x77: 01 02
set 100 3 8, stream 0x77
launch 0x99 11 12 13 of 14 15 16, shared 17, stream 0x77: 08 09 0a
end 0x77
instantiate 0xa, flags 0
`, said())
	require.NoError(t, g.SetParams(1, []byte{4, 5, 6}))
	require.NoError(t, g.SetParams(0, []byte{7, 8}))
	require.NoError(t, g.Launch(s))
	require.EqualError(t, g.SetParams(2, nil), "cuGraphExecKernelNodeSetParams: kernel 2 of 2")
	require.NoError(t, g.Close())
	require.Equal(t, `change 0x503 of 0xb: 0x99 11 12 13 of 14 15 16, shared 17: 04 05 06
change 0x501 of 0xb: 0x99 1 2 3 of 4 5 6, shared 7: 07 08
launch graph 0xb, stream 0x77
destroy exec 0xb
destroy graph 0xa
`, said())
}

// TestCapturesThatFail holds that a capture ends whatever happens in it, and leaves nothing.
func TestCapturesThatFail(t *testing.T) {
	s, said := graphStream(t, "-DCAPTURE_INFO_V3")
	_, err := s.Capture(func() error { return s.Record(&event{}) })
	require.ErrorContains(t, err, "cuEventRecord: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)")
	_, err = s.Capture(func() error {
		return s.Launch(&function{v: s.v, name: "k", handle: 0xbad}, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, nil)
	})
	require.ErrorContains(t, err, "kernel k of [1 1 1] blocks of [1 1 1] threads: cuLaunchKernel")
	require.Panics(t, func() { _, _ = s.Capture(func() error { panic("no") }) })
	require.Equal(t, 3, strings.Count(said(), "destroy graph 0xa\n"))

	var waits sync.WaitGroup
	_, err = s.Capture(func() error {
		waits.Go(func() { require.NoError(t, s.v.Sync(), "it waits for the capture") })
		return s.Fill(0x100, 0, 8)
	})
	require.NoError(t, err)
	waits.Wait()

	s.v.d.noGraphs = errors.New("an old driver")
	_, err = s.Capture(func() error { panic("not called") })
	require.EqualError(t, err, "an old driver")
}
