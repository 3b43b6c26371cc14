// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/nccl/engine"
	"github.com/lockstep-ml/lockstep/data"
	backend "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/internal/nccl"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

const vocabulary = 23

// machine opens devices that a fake driver has.
func machine(t *testing.T, n int, o fake.Options) (backends []*backend.Device, devices []*tensor.Device) {
	t.Helper()
	o.Devices = n
	return machineOf(t, fake.New(o), backend.Graphs{})
}

// machineOf opens the devices of a driver.
func machineOf(t *testing.T, driver *fake.Driver, g backend.Graphs) (backends []*backend.Device,
	devices []*tensor.Device) {
	t.Helper()
	library.watch(driver)
	n, err := driver.Devices()
	require.NoError(t, err)
	for i := range n {
		d, err := backend.Open(driver, i)
		require.NoError(t, err)
		d.SetGraphs(g)
		backends, devices = append(backends, d), append(devices, joint.Device[*tensor.Device](d))
		t.Cleanup(func() { require.NoError(t, devices[i].Close()) })
	}
	return backends, devices
}

// texts are sequences in which each token tells the next, except for some noise.
func texts(n int) data.Source {
	r := rand.New(rand.NewPCG(8, 1))
	list := make(data.Slice[[]int32], n)
	for i := range list {
		ids := make([]int32, 12)
		ids[0] = r.Int32N(vocabulary)
		for j := 1; j < len(ids); j++ {
			ids[j] = (3*ids[j-1] + 1 + r.Int32N(2)) % vocabulary
		}
		list[i] = ids
	}
	return data.NewSource(list, data.CausalLM(0))
}

func newGPT2(t *testing.T, dt tensor.DType) *gpt2.Model {
	t.Helper()
	return newGPT2In(t, nn.NewInit(tensor.CPU(), 1).As(dt))
}

func newGPT2In(t *testing.T, in *nn.Init) *gpt2.Model {
	t.Helper()
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = vocabulary, 12, 32, 2, 2
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0.1, 0.1, 0.1
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	m, err := gpt2.New(in, cfg)
	require.NoError(t, err)
	return m
}

// run trains a model and returns the records of its losses, and the bits of its parameters.
func run(t *testing.T, m *gpt2.Model, steps, ranks int, opts ...trainer.Option) (losses, norms []float64,
	bits map[string][]byte) {
	t.Helper()
	return runWith(t, func(*args.TrainingArguments) {}, m, steps, ranks, opts...)
}

// runWith is run with other arguments.
func runWith(t *testing.T, set func(*args.TrainingArguments), m *gpt2.Model, steps, ranks int,
	opts ...trainer.Option) (losses, norms []float64, bits map[string][]byte) {
	t.Helper()
	return runOn(t, texts(64), set, m, steps, ranks, opts...)
}

// runOn is runWith of any model and data.
func runOn(t *testing.T, source data.Source, set func(*args.TrainingArguments), m models.Model, steps, ranks int,
	opts ...trainer.Option) (losses, norms []float64, bits map[string][]byte) {
	t.Helper()
	a := args.Default(t.TempDir())
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas, a.MaxSteps = 2, 4, ranks, steps
	a.LearningRate, a.MaxGradNorm, a.LoggingSteps, a.SaveStrategy = 1e-2, 1, 1, args.StrategyNo
	a.SkipMemoryMetrics, a.Device = true, "cpu"
	set(a)
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	opts = append(opts, trainer.WithDisplay(nil), trainer.WithLogger(quiet),
		trainer.WithTrainData(source))
	tr := trainer.New(m, a, opts...)
	_, err := tr.Train()
	require.NoError(t, err)
	for _, rec := range tr.State().LogHistory {
		if loss, ok := number(rec, "loss"); ok {
			norm, _ := number(rec, "grad_norm")
			losses, norms = append(losses, loss), append(norms, norm)
		}
	}
	require.Len(t, losses, steps)
	bits = map[string][]byte{}
	for _, p := range nn.NamedParameters(m) {
		bits[p.Name] = tensor.ReadBytes(tensor.NewCtx(p.Device()).NoGrad(), p.Tensor)
	}
	return losses, norms, bits
}

func number(rec callbacks.Record, key string) (float64, bool) {
	x, ok := rec[key].(float64)
	return x, ok
}

// A run of GPT-2 on the device follows the CPU's: same dropout, losses that differ by roundings alone. All of it runs
// in kernels of the device.
func TestTraining(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, for which TestBits is enough
	}
	want, wantNorms, _ := run(t, newGPT2(t, tensor.Float32), 20, 1)
	require.Less(t, want[19], 0.9*want[0], "it learns")
	_, devices := machine(t, 1, fake.Options{Seed: 1})
	got, norms, bits := run(t, newGPT2(t, tensor.Float32), 20, 1, trainer.WithDevice(devices[0]))
	require.InDeltaSlice(t, want, got, 1e-3)
	require.InEpsilonSlice(t, wantNorms, norms, 1e-2)
	require.InDelta(t, want[0], got[0], 1e-5)
	require.Empty(t, devices[0].Composed(), "kernels that were composed of others")
	withoutGraphs(t, got, bits)
}

// withoutGraphs runs the same on devices that use no CUDA graphs, and on two that do.
func withoutGraphs(t *testing.T, losses []float64, bits map[string][]byte) {
	for _, k := range []struct {
		ranks int
		off   bool
	}{{1, true}, {2, false}} {
		backends, devices := machineOf(t, fake.New(fake.Options{Devices: k.ranks, Seed: 2}), backend.Graphs{Off: k.off})
		got, _, have := run(t, newGPT2(t, tensor.Float32), 20, k.ranks, devicesOf(devices)...)
		require.Equal(t, losses, got)
		require.Equal(t, bits, have)
		require.Equal(t, k.off, backends[0].Graphs().Launched == 0)
	}
}

// The argument tf32 rounds the inputs of float32's products, as the library does in that mode.
func TestTF32(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's
	}
	tf32 := func(a *args.TrainingArguments) { a.TF32 = true }
	losses := map[bool][]float64{}
	for _, on := range []bool{false, true} {
		set := func(*args.TrainingArguments) {}
		if on {
			set = tf32
		}
		_, devices := machine(t, 1, fake.Options{Seed: 1})
		losses[on], _, _ = runWith(t, set, newGPT2(t, tensor.Float32), 4, 1, trainer.WithDevice(devices[0]))
	}
	require.NotEqual(t, losses[false], losses[true])
	require.InDeltaSlice(t, losses[false], losses[true], 1e-2)
}

// A run that the device's memory is too small for continues with micro-batches that fit, and has the bits of a run that
// began with them.
func TestBatchSizeThatFitsTheDevice(t *testing.T) {
	const sample = 5 << 20 // elements that the step of a sample takes
	step := trainer.WithStep(func(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
		if c.Training {
			tensor.Zeros(c.Ctx, tensor.Float32, b.Size*sample)
		}
		return m.Forward(c, b), b.Count, nil
	})
	bits := map[int]map[string][]byte{}
	for batch, memory := range map[int]int64{2: 1 << 30, 4: 72 << 20} {
		_, devices := machine(t, 1, fake.Options{Seed: 1, Memory: memory})
		_, _, bits[batch] = runWith(t, func(a *args.TrainingArguments) {
			a.PerDeviceTrainBatchSize, a.AutoFindBatchSize = batch, batch == 4
		}, newGPT2(t, tensor.Float32), 2, 1, trainer.WithDevice(devices[0]), step)
	}
	require.Equal(t, bits[2], bits[4])
}

// The same in bfloat16, on the matrix units, to what bfloat16 rounds.
func TestTrainingInBFloat16(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, for which TestBits is enough
	}
	bf16 := func(a *args.TrainingArguments) { a.BF16 = true }
	want, _, _ := runWith(t, bf16, newGPT2(t, tensor.Float32), 10, 1)
	_, devices := machine(t, 1, fake.Options{Seed: 1})
	got, _, _ := runWith(t, bf16, newGPT2(t, tensor.Float32), 10, 1, trainer.WithDevice(devices[0]))
	require.InDeltaSlice(t, want, got, 5e-2)
	require.InDelta(t, want[0], got[0], 2e-3)
	require.Empty(t, devices[0].Composed(), "kernels that were composed of others")
}

// library is the NCCL that ranks on devices find.
var library = &recordingNCCL{NCCL: fake.NewNCCL()}

// recordingNCCL notes what a device had loaded when its first communicator was made.
type recordingNCCL struct {
	*fake.NCCL
	driver *fake.Driver

	mu     sync.Mutex
	loaded map[string]int // by the device's UUID
}

func (l *recordingNCCL) watch(driver *fake.Driver) { l.driver, l.loaded = driver, map[string]int{} }

func (l *recordingNCCL) Init(dev cuda.Device, n, rank int, id nccl.ID, over func() error) (nccl.Comm, error) {
	l.mu.Lock()
	if uuid := dev.Info().UUID; l.loaded[uuid] == 0 {
		l.loaded[uuid] = l.driver.Loaded(rank)
	}
	l.mu.Unlock()
	return l.NCCL.Init(dev, n, rank, id, over)
}

func init() {
	nccl.Open = func() (nccl.Library, error) { return library, nil }
	comm.RegisterDeviceEngine("nccl", engine.New)
}

// Two ranks on two devices have the bits of one, and one has them again whatever the paces of streams: gradients and
// shards that go by NCCL, and through the host. With NCCL all kernels are loaded before the first collective call.
func TestBits(t *testing.T) {
	var first map[string][]byte
	for i, k := range []struct {
		name    string
		ranks   int
		set     func(*args.TrainingArguments)
		library bool
	}{
		{"alone", 1, func(*args.TrainingArguments) {}, false},
		{"again", 1, func(*args.TrainingArguments) {}, false},
		{"NCCL", 2, func(*args.TrainingArguments) {}, true},
		{"through the host", 2, func(a *args.TrainingArguments) { a.DDPBackend = args.BackendTCP }, false},
		{"sharded", 2, func(a *args.TrainingArguments) { a.ZeroStage = 3 }, true},
	} {
		if testing.Short() && k.name == "again" {
			continue // the race detector's run: the first has as many goroutines
		}
		driver := fake.New(fake.Options{Devices: k.ranks, Seed: uint64(i)})
		_, devices := machineOf(t, driver, backend.Graphs{})
		m, calls := newGPT2(t, tensor.Float32), library.Calls()
		_, _, bits := runWith(t, k.set, m, 2, k.ranks, devicesOf(devices)...)
		if k.library {
			for r := range k.ranks {
				before := library.loaded[fmt.Sprintf("GPU-fake-%d", r)]
				require.Positive(t, before)
				require.Equal(t, before, driver.Loaded(r), "%s: modules and kernels of device %d", k.name, r)
			}
		}
		if i == 0 {
			first = bits
		}
		require.Equal(t, first, bits, k.name)
		require.Equal(t, k.library, library.Calls() > calls, "%s: calls of NCCL", k.name)
		require.Zero(t, library.Live(), "%s: communicators that were not given back", k.name)
	}
}

// Stages on two devices have the bits of the whole model on one, which each rank has again when training ends. What
// flows between stages goes through host memory, and collective calls by NCCL.
func TestBitsOfAPipeline(t *testing.T) {
	var first map[string][]byte
	schedules := []string{"", "1f1b", "zbv"}
	if testing.Short() {
		schedules = schedules[:2] // the race detector's run: another schedule sends as the first does
	}
	for i, schedule := range schedules {
		ranks := min(1+i, 2)
		_, devices := machine(t, ranks, fake.Options{Seed: uint64(i)})
		m, calls := newGPT2(t, tensor.Float32), library.Calls()
		_, _, bits := runWith(t, func(a *args.TrainingArguments) {
			if a.PerDeviceTrainBatchSize = 1; ranks > 1 {
				a.PPSize, a.PPSchedule = 2, schedule
			}
		}, m, 2, ranks, devicesOf(devices)...)
		if i == 0 {
			first = bits
			continue
		}
		require.Equal(t, first, bits, schedule)
		require.Greater(t, library.Calls(), calls, "%s: calls of NCCL", schedule)
		require.Zero(t, library.Live(), "%s: communicators that were not given back", schedule)
	}
}

// devicesOf gives each rank of the process a device.
func devicesOf(devices []*tensor.Device) []trainer.Option {
	if len(devices) == 1 {
		return []trainer.Option{trainer.WithDevice(devices[0])}
	}
	var names []string
	for i := range devices {
		open[i] = devices[i]
		names = append(names, nameOf(i))
	}
	return []trainer.Option{trainer.WithDevices(names...)}
}

var open [2]*tensor.Device

func nameOf(i int) string { return []string{"cuda:0", "cuda:1"}[i] }

func init() {
	for i := range open {
		tensor.RegisterDevice(nameOf(i), func() (*tensor.Device, error) { return open[i], nil })
	}
}

// recorder looks at the device when a step begins and ends.
type recorder struct {
	callbacks.Base
	begin, end func()
}

func (r recorder) OnStepBegin(*callbacks.Event) error { r.begin(); return nil }
func (r recorder) OnStepEnd(*callbacks.Event) error   { r.end(); return nil }

// A step waits for the device once, takes no memory from the driver, and queues the same kernels, once the first has
// made the optimizer's state. Once it has run twice it is made of graphs, except for dropout's seeds and what waits.
func TestAStepWaitsOnceAndAllocatesNothing(t *testing.T) {
	driver := fake.New(fake.Options{})
	backends, devices := machineOf(t, driver, backend.Graphs{Patience: -1})
	d := backends[0]
	type counts struct{ waits, allocs, launches int64 }
	var last counts
	var steps []counts
	var graphs []backend.GraphCounts
	var calls []int64
	now := func() counts { return counts{d.HostWaits(), d.DeviceAllocs(), d.Launches()} }
	see := recorder{begin: func() {
		last = now()
		graphs, calls = append(graphs, d.Graphs()), append(calls, driver.Calls())
	}, end: func() {
		n := now()
		steps = append(steps, counts{n.waits - last.waits, n.allocs - last.allocs, n.launches - last.launches})
		g, was := d.Graphs(), &graphs[len(graphs)-1]
		*was = backend.GraphCounts{Made: g.Made - was.Made, Launched: g.Launched - was.Launched,
			Calls: g.Calls - was.Calls, Changed: g.Changed - was.Changed, Singles: g.Singles - was.Singles}
		calls[len(calls)-1] = driver.Calls() - calls[len(calls)-1]
	}}
	run(t, newGPT2(t, tensor.Float32), 6, 1, trainer.WithDevice(devices[0]), trainer.WithCallbacks(see))
	require.Len(t, steps, 6)
	for _, step := range steps[2:] {
		require.Equal(t, counts{1, 0, steps[1].launches}, step)
	}
	require.Less(t, steps[1].launches, int64(300), "two micro-batches of two layers")

	require.Less(t, 10*graphs[0].Calls, graphs[3].Calls, "the first step makes the optimizer's state")
	for _, g := range graphs[3:] {
		require.Equal(t, graphs[3], g)
		require.Zero(t, g.Made)
		require.LessOrEqual(t, g.Launched, int64(7), "8, 16, 32 and 64 calls at once")
		require.Greater(t, 20*g.Calls, 19*(g.Calls+g.Singles))
		require.Equal(t, int64(2*(2+2*7)), g.Changed, "dropout and attention of two micro-batches")
	}
	for _, n := range calls[3:] {
		require.Less(t, 2*n, calls[1], "calls of the driver: %v", calls)
	}
	t.Logf("calls of the driver in each step: %v; graphs: %+v", calls, graphs[5])
}
