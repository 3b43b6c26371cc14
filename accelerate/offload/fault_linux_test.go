// SPDX-License-Identifier: Apache-2.0

package offload_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/offload"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/lacking"
	"github.com/lockstep-ml/lockstep/tensor"
)

// cutShort cuts the mapped file of this process that lies in a folder, as a failing disk would take its pages.
func cutShort(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); strings.Contains(line, dir) {
			f, err := os.OpenFile(filepath.Join("/proc/self/map_files", fields[0]), os.O_RDWR, 0)
			if err != nil {
				lacking.Skip(t, lacking.Hosts, "namespaces", "a mapped file can only be opened by root: "+err.Error())
			}
			require.NoError(t, f.Truncate(4096))
			require.NoError(t, f.Close())
			return
		}
	}
	require.Fail(t, "no mapped file", "in %s:\n%s", dir, text)
}

// A file that cannot be read any more is an error that names the folder, not the end of the process: in a kernel that
// runs on its caller, in one that other goroutines share, and where elements are read and written one by one.
func TestFileThatCannotBeRead(t *testing.T) {
	for _, row := range []struct {
		name string
		n    int
		use  func(c *tensor.Ctx, x *tensor.Tensor)
	}{
		{"a kernel", 2048, func(c *tensor.Ctx, x *tensor.Tensor) { tensor.Sum(c, x, nil, false) }},
		{"a kernel of several goroutines", 1 << 22, func(c *tensor.Ctx, x *tensor.Tensor) { tensor.FillInto(c, x, 1) }},
		{"reading", 2048, func(c *tensor.Ctx, x *tensor.Tensor) { tensor.ReadBytes(c, x) }},
		{"writing", 2048, func(c *tensor.Ctx, x *tensor.Tensor) { tensor.WriteBytes(c, x, make([]byte, 4*2048)) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := offload.New(dir)
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			dev := tensor.NewCPU(2)
			defer dev.Close()
			c := tensor.NewCtx(dev).NoGrad()
			x, err := s.Zeros(c, tensor.Float32, row.n)
			require.NoError(t, err)
			row.use(c, x)
			cutShort(t, dir)
			err = tensor.Try(func() { row.use(c, x) })
			require.ErrorContains(t, err, fmt.Sprintf("offload: a file of %d bytes without a name in %s: its memory "+
				"at byte", 4*row.n, dir))
			_, ok := tensor.HostBytes(c, x)
			require.False(t, ok, "its memory would be read without a guard")
			require.ErrorContains(t, err, "cannot be accessed: the file was cut short, or its disk failed or is full")
			require.EqualValues(t, 3, tensor.Item(c, tensor.Sum(c, tensor.Full(c, tensor.Float32, 1, 3), nil, false)),
				"the device still works")
		})
	}
}

// Ranks that exchange such a tensor get the error of the file too: engines read copies, and no memory that may fail.
func TestFileThatRanksCannotRead(t *testing.T) {
	err := local.Run(2, comm.Options{}, func(g *comm.Group) error {
		dir := t.TempDir()
		s, err := offload.New(dir)
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, s.Close()) }()
		c := tensor.NewCtx(tensor.CPU()).NoGrad()
		x, err := s.Zeros(c, tensor.Float32, 2048)
		if err != nil {
			return err
		}
		tensor.FillInto(c, x, float64(1+g.Rank()))
		sum := func() error { return g.AllReduce(comm.OfTensor(c, x), comm.Sum).Wait(t.Context()) }
		if err := sum(); err != nil {
			return err
		}
		require.EqualValues(t, 3*2048, tensor.Item(c, tensor.Sum(c, x, nil, false)), "sums come back to the file")
		if g.Rank() == 0 {
			cutShort(t, dir)
			require.ErrorContains(t, sum(), "without a name in "+dir)
			return nil
		}
		require.Error(t, sum())
		return nil
	})
	require.NoError(t, err)
}
