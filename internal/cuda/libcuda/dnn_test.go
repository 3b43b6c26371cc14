// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// noDriver is why the machine has no driver; nil if it has one. Tests that load their own driver come later.
var noDriver error

// noCompute is the error of the machine's driver in a container without the capability compute.
var noCompute error

func TestMain(m *testing.M) {
	_, noDriver = clib.Open(driverFile)
	if noDriver != nil {
		os.Setenv("NVIDIA_DRIVER_CAPABILITIES", "utility")
		_, noCompute = open()
		os.Unsetenv("NVIDIA_DRIVER_CAPABILITIES")
	}
	_, _ = New() // once for the process: with the machine's driver
	os.Exit(m.Run())
}

// needed are functions of the driver that cuDNN's own libraries look for.
var needed = []string{"cuCtxGetLimit", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuKernelGetAttribute",
	"cuKernelGetFunction", "cuKernelSetAttribute", "cuLaunchCooperativeKernel", "cuLaunchKernelEx",
	"cuLibraryGetKernel", "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryUnload", "cuLinkAddData",
	"cuLinkComplete", "cuLinkCreate", "cuLinkDestroy", "cuModuleLoadData", "cuModuleUnload",
	"cuOccupancyMaxPotentialClusterSize", "cuStreamGetCtx", "cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled"}

// fakeDriver is testdata/libcuda.c, which stays for good: libraries that look for the driver find it.
var fakeDriver = sync.OnceValues(func() (*driver, error) {
	dir, err := os.MkdirTemp("", "libcuda")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var f functions
	names := slices.Concat(needed, slices.Collect(maps.Keys(f.optional())))
	file, err := compileDriver(dir, names, "testdata/libcuda.c")
	if err != nil {
		return nil, err
	}
	if _, err := clib.OpenGlobal(file); err != nil {
		return nil, err
	}
	return open()
})

// driverForTest makes the fake driver the process's.
func driverForTest(t *testing.T) *driver {
	if noDriver == nil {
		t.Skip("this machine has a driver")
	}
	needCompiler(t)
	d, err := fakeDriver()
	require.NoError(t, err)
	return d
}

// fakeDnn is testdata/libcudnn.c on the fake driver's device.
type fakeDnn struct {
	lib      *dnnLibrary
	device   cuda.Device
	log      func() string
	alive    func() int
	setWrong func(how string)
}

func openFakeDnn(t *testing.T) *fakeDnn {
	d := driverForTest(t)
	dev, err := d.Open(0)
	require.NoError(t, err)
	file, err := compile(t.TempDir(), "libcudnn.so.9", "testdata/libcudnn.c")
	require.NoError(t, err)
	lib, err := loadDnn(file)
	require.NoError(t, err)
	own, err := clib.Open(file)
	require.NoError(t, err)
	var log, alive uintptr
	require.NoError(t, own.Bind(map[string]*uintptr{"fake_log": &log, "fake_alive": &alive}))
	setWrong := func(how string) { require.NoError(t, clib.Setenv("FAKE_CUDNN", how, true)) }
	setWrong("")
	t.Cleanup(func() { setWrong("") })
	return &fakeDnn{lib, dev, func() string { return clib.Text(clib.Call(log)) },
		func() int { return int(clib.Call(alive)) }, setWrong}
}

// strided is a convolution in which no two sizes are alike.
func strided(way cuda.Direction, dt cuda.DataType) cuda.Convolution {
	c := cuda.Convolution{Direction: way, Type: dt, N: 2, C: 9, H: 11, W: 8, K: 7, R: 4, S: 3, Stride: [2]int{2, 1},
		Padding: [2]int{3, 5}, Dilation: [2]int{1, 2}, Align: 16}
	places := c.Places()
	c.P, c.Q = places[0], places[1]
	return c
}

// The library is told what a convolution says, and is given its operands on its stream. The engine is the first that is
// deterministic, precise and there.
func TestConvolutionCalls(t *testing.T) {
	f := openFakeDnn(t)
	require.Equal(t, "9.1.2", f.lib.version())
	n, err := newDnn(f.lib, f.device.(*device))
	require.NoError(t, err)
	first, err := f.device.NewStream()
	require.NoError(t, err)
	second, err := f.device.NewStream()
	require.NoError(t, err)
	want := ""
	for _, k := range []struct {
		c         cuda.Convolution
		name      string
		types     [2]int // of operands, and to compute in
		beta      int
		engine    int
		workspace int
	}{
		{strided(cuda.Forward, cuda.R32F), "forward", [2]int{0, 0}, 0, 5, 4096},
		{strided(cuda.DataGrad, cuda.R16BF), "data", [2]int{9, 0}, 0, 1, 64},
		{strided(cuda.FilterGrad, cuda.R16F), "filter", [2]int{2, 0}, 1, 1, 64},
		{strided(cuda.Forward, cuda.R64F), "forward", [2]int{1, 1}, 1, 1, 64},
	} {
		k.c.Accumulate = k.beta == 1
		size, err := n.Workspace(k.c)
		require.NoError(t, err)
		require.Equal(t, k.workspace, size)
		tensor := func(name string, id int, dims, strides string) string {
			return fmt.Sprintf(" %s:%d=%s/%s/16/%d", name, id, dims, strides, k.types[0])
		}
		want += k.name + tensor("x", 1, "2,9,11,8", "792,88,8,1") + tensor("w", 2, "7,9,4,3", "108,12,3,1") +
			tensor("y", 3, "2,7,7,14", "686,98,14,1") + fmt.Sprintf(" compute %d mode 1 dims 2 strides 2,1 before 3,5 "+
			"after 3,5 dilations 1,2 alpha 1 beta %d\n", k.types[1], k.beta)
		require.Equal(t, want, f.log())
		for i, s := range []cuda.Stream{first, second, second} {
			o := cuda.ConvolutionOperands{X: 0x1000, W: cuda.Ptr(0x2000 + i), Y: 0x3000}
			require.NoError(t, n.Convolve(s, k.c, o, 0x4000))
			want += fmt.Sprintf("stream %x engine %d 1@1000 2@%x 3@3000 workspace 4000\n", s.Handle(), k.engine, o.W)
			require.Equal(t, want, f.log())
			runtime.GC()
		}
	}
	require.Greater(t, f.alive(), 1000)
	require.NoError(t, n.Close())
	require.Zero(t, f.alive(), "descriptors that are left")
}

// Where an engine will not do the next is taken, down to those for any shape. None at all is ErrNoAlgorithm, and
// trouble is no reason to look further.
func TestConvolutionsThatAreRefused(t *testing.T) {
	f := openFakeDnn(t)
	c := strided(cuda.Forward, cuda.R32F)
	for _, k := range []struct {
		wrong, err string
		workspace  int
	}{
		{wrong: "fallback"},
		{wrong: "none", workspace: -1},
		{wrong: "graph", workspace: -1},
		{wrong: "trouble", err: "cudnnBackendFinalize: CUDNN_STATUS_EXECUTION_FAILED (5000): the device is on fire"},
		{wrong: "create", err: "cuDNN 9.1.2: cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED (1001): no context"},
	} {
		f.setWrong(k.wrong)
		n, err := newDnn(f.lib, f.device.(*device))
		if k.wrong == "create" {
			require.EqualError(t, err, k.err)
			continue
		}
		require.NoError(t, err)
		for range 2 {
			size, err := n.Workspace(c)
			switch {
			case k.err != "":
				require.ErrorContains(t, err, k.err)
				require.NotErrorIs(t, err, cuda.ErrNoAlgorithm)
			case k.workspace < 0:
				require.ErrorIs(t, err, cuda.ErrNoAlgorithm, k.wrong)
				require.ErrorContains(t, err, "convolution {")
			default:
				require.NoError(t, err, k.wrong)
				require.Equal(t, k.workspace, size)
			}
		}
		require.NoError(t, n.Close())
		require.Zero(t, f.alive(), k.wrong)
	}
}

// A machine without cuDNN is told from one whose cuDNN cannot be used.
func TestWithoutCuDNN(t *testing.T) {
	_, err := loadDnn("off")
	require.ErrorIs(t, err, cuda.ErrNotFound)
	_, err = loadDnn("/nowhere/libcudnn.so.9")
	require.ErrorContains(t, err, "cuDNN of LOCKSTEP_CUDNN: /nowhere/libcudnn.so.9 cannot be opened")
	require.NotErrorIs(t, err, cuda.ErrNotFound, "it was asked for by name")
	_, err = loadDnn("libc.so.6")
	require.ErrorContains(t, err, "want cuDNN 9 or newer")
	if _, err = loadDnn(""); err != nil {
		require.ErrorIs(t, err, cuda.ErrNotFound)
		require.ErrorContains(t, err, "libcudnn.so.9 cannot be opened")
	}
}

// realDnn opens the library that the environment names.
func realDnn(t *testing.T) *dnnLibrary {
	if os.Getenv(EnvDnn) == "" {
		lacking.Skip(t, lacking.Tools, "cudnn", EnvDnn+" names no cuDNN")
	}
	lib, err := openDnn()
	require.NoError(t, err)
	require.Regexp(t, `^9\.\d+\.\d+$`, lib.version())
	runtime.LockOSThread() // which the library's last error belongs to
	t.Cleanup(runtime.UnlockOSThread)
	return lib
}

// gpus are devices that cuDNN's descriptor of one tells of (testdata/devices): from public figures, not from devices.
var gpus = []string{"a100", "h100"}

// deviceOf describes a device that is not there, for which cuDNN chooses algorithms all the same.
func deviceOf(t *testing.T, lib *dnnLibrary, name string) target {
	driverForTest(t)              // one of cuDNN's libraries needs to be linked with it
	if os.Getenv(EnvBlas) != "" { // or else cuDNN finds it beside itself
		_, err := openBlas()
		require.NoError(t, err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "devices", name+".json"))
	require.NoError(t, err)
	b := &builder{lib: lib}
	const kindDevice, deviceJSON, typeChar = 38, 2702, 24
	d := b.create(kindDevice)
	attribute(b, d, deviceJSON, typeChar, text...)
	b.finalize(d)
	require.NoError(t, b.err)
	t.Cleanup(b.discard)
	return target{device: d}
}

// convolutions are those of ResNet-50 at its largest and smallest, one of many images, and odd ones.
func convolutions() []cuda.Convolution {
	one, none := [2]int{1, 1}, [2]int{}
	var all []cuda.Convolution
	for _, s := range []struct {
		sizes                     [7]int // N, C, H, W, K, R, S
		stride, padding, dilation [2]int
	}{
		{[7]int{32, 3, 224, 224, 64, 7, 7}, [2]int{2, 2}, [2]int{3, 3}, one},
		{[7]int{256, 3, 224, 224, 64, 7, 7}, [2]int{2, 2}, [2]int{3, 3}, one},
		{[7]int{32, 64, 56, 56, 64, 1, 1}, one, none, one}, {[7]int{32, 64, 56, 56, 64, 3, 3}, one, one, one},
		{[7]int{32, 128, 56, 56, 128, 3, 3}, [2]int{2, 2}, one, one},
		{[7]int{32, 256, 56, 56, 512, 1, 1}, [2]int{2, 2}, none, one},
		{[7]int{32, 512, 7, 7, 512, 3, 3}, one, one, one}, {[7]int{32, 512, 7, 7, 2048, 1, 1}, one, none, one},
		{[7]int{1, 1, 1, 1, 1, 1, 1}, one, none, one}, {[7]int{3, 20, 17, 18, 70, 3, 3}, [2]int{2, 2}, one, one},
		{[7]int{2, 9, 9, 8, 7, 2, 3}, [2]int{2, 1}, [2]int{2, 4}, [2]int{3, 2}},
		{[7]int{1, 11, 3, 2, 2, 2, 4}, [2]int{3, 2}, [2]int{4, 5}, [2]int{1, 3}},
		{[7]int{1, 9, 4, 4, 3, 1, 1}, one, [2]int{1, 2}, one}, {[7]int{1, 1, 2, 1, 1, 3, 3}, one, [2]int{3, 4}, one},
		{[7]int{3, 2, 7, 5, 3, 3, 2}, [2]int{2, 3}, [2]int{1, 0}, one},
	} {
		for way := cuda.Forward; way <= cuda.FilterGrad; way++ {
			for dt := range dnnTypes {
				for _, tf32 := range []bool{false, true}[:1+map[cuda.DataType]int{cuda.R32F: 1}[dt]] {
					n := s.sizes
					c := cuda.Convolution{Direction: way, Type: dt, TF32: tf32, N: n[0], C: n[1], H: n[2], W: n[3],
						K: n[4], R: n[5], S: n[6], Stride: s.stride, Padding: s.padding, Dilation: s.dilation,
						Align: 16, Accumulate: way == cuda.Forward && n[0] == 3}
					if n[0] < 3 {
						c.Align = 8
					}
					places := c.Places()
					c.P, c.Q = places[0], places[1]
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// The real library has a deterministic algorithm for all of them on devices that it is told of, the same each time. It
// refuses a result of another size.
func TestAlgorithms(t *testing.T) {
	lib := realDnn(t)
	for _, gpu := range gpus {
		at := deviceOf(t, lib, gpu)
		for _, c := range convolutions() {
			var chosen [2]string
			for i := range chosen {
				p, err := lib.choose(c, at)
				require.NoError(t, err, "%s: %s %+v", gpu, c.Direction, c)
				require.LessOrEqual(t, p.workspace, int64(maxConvolutionWorkspace))
				chosen[i] = algorithm(t, p)
				notes := notesOf(t, p)
				require.NotContains(t, notes, int32(noteNondeterministic), "%s: %s %+v", gpu, c.Direction, c)
				units := slices.Contains(notes, noteTensorCore)
				require.False(t, units && c.Type == cuda.R32F && !c.TF32, "%s: %s %+v", gpu, c.Direction, c)
				if (c.C >= 64 || c.N >= 256 && gpu == "h100") && (c.Type == cuda.R16BF || c.Type == cuda.R16F) {
					require.True(t, units, "%s: %s %+v: without matrix units", gpu, c.Direction, c)
				}
				p.discard()
			}
			require.Equal(t, chosen[0], chosen[1], "%s: %s %+v", gpu, c.Direction, c)
		}
		for _, change := range []func(c *cuda.Convolution){func(c *cuda.Convolution) { c.P++ },
			func(c *cuda.Convolution) { c.Q-- }, func(c *cuda.Convolution) { c.Stride[0] = 0 },
			func(c *cuda.Convolution) { c.N = 0 }, func(c *cuda.Convolution) { c.Padding[0]++ }} {
			c := strided(cuda.Forward, cuda.R32F)
			_, err := lib.choose(c, at)
			require.NoError(t, err)
			change(&c)
			_, err = lib.choose(c, at)
			require.ErrorContains(t, err, "CUDNN_STATUS_BAD_PARAM", "%+v", c)
			require.False(t, errors.Is(err, cuda.ErrNoAlgorithm))
		}
	}
}

// notesOf are the library's notes on a plan's engine, which is made before the plan.
func notesOf(t *testing.T, p *dnnPlan) []int32 {
	b := builder{lib: p.lib}
	notes := attributes(&b, p.made[len(p.made)-2], engineNumericalNotes, typeNumericalNote, make([]int32, 32))
	require.NoError(t, b.err)
	return notes
}

// algorithm is what the library says of a plan, as JSON: engine, its settings, and operands.
func algorithm(t *testing.T, p *dnnPlan) string {
	b := builder{lib: p.lib}
	const planJSON, typeChar = 405, 24
	text := attributes(&b, p.plan, planJSON, typeChar, make([]byte, 1<<16))
	require.NoError(t, b.err)
	require.Contains(t, string(text), "engine")
	return string(text)
}

// TestCuDNNWithoutADevice holds that the library's refusal is an error with its name.
func TestCuDNNWithoutADevice(t *testing.T) {
	lib := realDnn(t)
	if noDriver == nil {
		t.Skip("this machine has a driver")
	}
	var handle uintptr
	err := lib.result("cudnnCreate", clib.Call(lib.create, clib.Address(&handle)))
	require.ErrorContains(t, err, "cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED (1001)")
}
