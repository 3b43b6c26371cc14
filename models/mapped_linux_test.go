// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/mapped"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// llama is a folder with a Llama, whose matrices are saved as they are.
const llama = "../examples/finetune/testdata/model"

// copied is a folder with the model on a disk of this machine.
func copied(t *testing.T) (dir, weights string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(llama)))
	return dir, filepath.Join(dir, models.WeightsFile)
}

// loadMapped loads a model with its parameters in the file, on its own device.
func loadMapped(t *testing.T, dir string, opts ...models.LoadOption) (models.Configured, *tensor.Device) {
	t.Helper()
	dev := tensor.NewCPU(1)
	m, err := models.LoadPretrained(dev, dir, append(opts, models.Mapped())...)
	require.NoError(t, err)
	return m, dev
}

func logitsOn(dev *tensor.Device, m models.Model) (out []float32) {
	c := nn.NewCtx(tensor.NewCtx(dev).NoGrad(), nn.Walk(m), false)
	g := m.(models.Generator)
	k := g.NewCache(c, 1)
	defer k.Free()
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		out = tensor.ToSlice[float32](c.Ctx, g.Next(c, tensor.FromSlice(c.Ctx, []int64{3, 1, 4, 1, 5}, 1, 5), k))
		return nil
	})
	return out
}

// A mapped model takes no memory and computes the same bits. What is written stays in the process, and a file that
// takes the place of the mapped one changes nothing.
func TestMappedWeights(t *testing.T) {
	dir, file := copied(t)
	now, err := models.LoadPretrained(tensor.CPU(), dir)
	require.NoError(t, err)
	m, dev := loadMapped(t, dir)
	require.True(t, mapped.Any())
	require.Zero(t, dev.MemStats().InUse)
	require.Equal(t, bits(now), bits(m))
	want := logitsOn(tensor.CPU(), now)
	require.Equal(t, want, logitsOn(dev, m))

	before, err := os.ReadFile(file)
	require.NoError(t, err)
	first := nn.NamedParameters(m)[0].Name
	set(m, first, 0, 7)
	set(now, first, 0, 7)
	require.Equal(t, bits(now), bits(m))
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.NoError(t, models.SaveWeights(m, dir), "in place of the file that has them")
	require.Equal(t, bits(now), bits(m))
	again, _ := loadMapped(t, dir)
	require.Equal(t, bits(now), bits(again))

	half, dev := loadMapped(t, dir, models.WithDType(tensor.BFloat16))
	require.Positive(t, dev.MemStats().InUse, "another dtype is read")
	read, err := models.LoadPretrained(tensor.CPU(), dir, models.WithDType(tensor.BFloat16))
	require.NoError(t, err)
	require.Equal(t, bits(read), bits(half))
}

// A mapped file that is cut short ends what computes with it, and not the process.
func TestMappedFileIsCutShort(t *testing.T) {
	dir, file := copied(t)
	m, dev := loadMapped(t, dir)
	require.NoError(t, os.Truncate(file, 4096))
	err := tensor.Recover(func() { logitsOn(dev, m) })
	require.ErrorContains(t, err, file+": its memory at byte ")
	require.ErrorContains(t, err, "cannot be accessed: the file was cut short")
}

// The file is given up with the model, and not before.
func TestMappedFileIsGivenUp(t *testing.T) {
	runtime.GC() // the models of other tests
	require.Eventually(t, func() bool { runtime.GC(); return !mapped.Any() }, time.Minute, time.Millisecond)
	dir, file := copied(t)
	m, dev := loadMapped(t, dir)
	require.NoError(t, os.Remove(file))
	one := nn.NamedParameters(m)[0].Tensor
	want := tensor.ReadBytes(tensor.NewCtx(dev), one)
	for range 3 {
		runtime.GC()
	}
	require.True(t, mapped.Any())
	require.Equal(t, want, tensor.ReadBytes(tensor.NewCtx(dev), one))
	require.Eventually(t, func() bool { runtime.GC(); return !mapped.Any() }, time.Minute, time.Millisecond)
}

// A file that cannot be mapped is an error, after which it is read.
func TestMapPrivate(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer f.Close()
	_, err = mapped.MapPrivate(f)
	require.ErrorContains(t, err, "has 0 bytes: unsupported operation")
}
