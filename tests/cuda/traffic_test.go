// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	core "github.com/lockstep-ml/lockstep/internal/backend"
	backend "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	driver "github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// null is a driver whose devices, an H100 by their figures, do nothing: they note what they are asked for. Device
// memory is addresses alone, and what the host reads is zero.
type null struct {
	memory   int64 // of a device; 0 means 80 GiB
	used     int64 // by other processes
	next     driver.Ptr
	kernels  []string
	products []driver.Product
}

func (*null) Version() string                     { return "null" }
func (*null) Devices() (int, error)               { return 1, nil }
func (n *null) Open(int) (driver.Device, error)   { return n, nil }
func (*null) Free(driver.Ptr) error               { return nil }
func (*null) AllocHost(bytes int) ([]byte, error) { return make([]byte, bytes), nil }
func (*null) FreeHost([]byte) error               { return nil }
func (n *null) NewStream() (driver.Stream, error) { return nullStream{n}, nil }
func (*null) NewEvent() (driver.Event, error)     { return nullEvent{}, nil }
func (*null) Load([]byte) (driver.Module, error)  { return nullModule{}, nil }
func (n *null) Blas() (driver.Blas, error)        { return nullBlas{n}, nil }
func (*null) Dnn() (driver.Dnn, error)            { return nil, driver.ErrNotFound }
func (*null) Do(f func() error) error             { return f() }
func (*null) Sync() error                         { return nil }
func (*null) Close() error                        { return nil }

func (n *null) Info() driver.Info {
	return driver.Info{Name: "null", Capability: [2]int{9, 0}, SMs: 132, SharedOpt: 227 << 10, Memory: n.total()}
}

func (n *null) total() int64 { return cmp.Or(n.memory, 80<<30) }

func (n *null) MemInfo() (free, total int64, err error) { return n.total() - n.used, n.total(), nil }

func (n *null) Alloc(bytes int) (driver.Ptr, error) {
	n.next += 1 << 20
	at := n.next
	n.next += driver.Ptr(bytes)
	n.next = (n.next + 255) &^ 255
	return at, nil
}

type nullModule struct{}

func (nullModule) Function(name string) (driver.Function, error) { return nullFunction(name), nil }

type nullFunction string

func (f nullFunction) Name() string         { return string(f) }
func (nullFunction) ParamBytes() int        { return -1 }
func (nullFunction) SetMaxShared(int) error { return nil }

type nullEvent struct{}

func (nullEvent) Sync() error         { return nil }
func (nullEvent) Done() (bool, error) { return true, nil }
func (nullEvent) Close() error        { return nil }

type nullStream struct{ n *null }

func (s nullStream) Launch(f driver.Function, _, _ [3]uint32, _ int, _ []byte) error {
	s.n.kernels = append(s.n.kernels, f.Name())
	return nil
}

func (nullStream) CopyToDevice(driver.Ptr, []byte) error        { return nil }
func (nullStream) CopyToHost(dst []byte, _ driver.Ptr) error    { clear(dst); return nil }
func (nullStream) CopyOnDevice(_, _ driver.Ptr, _ int) error    { return nil }
func (nullStream) Fill(driver.Ptr, byte, int) error             { return nil }
func (nullStream) Record(driver.Event) error                    { return nil }
func (nullStream) Wait(driver.Event) error                      { return nil }
func (nullStream) Sync() error                                  { return nil }
func (nullStream) Capture(f func() error) (driver.Graph, error) { return nil, nil }
func (nullStream) Handle() uintptr                              { return 0 }
func (nullStream) Close() error                                 { return nil }

type nullBlas struct{ n *null }

func (nullBlas) Workspace(driver.Product) (int, error) { return 4 << 20, nil }
func (b nullBlas) MatMul(_ driver.Stream, p driver.Product, _ driver.Operands, _ driver.Ptr) error {
	b.n.products = append(b.n.products, p)
	return nil
}
func (nullBlas) Close() error { return nil }

// traffic notes the calls that a backend's streams get.
type traffic struct {
	*backend.Device
	asked *null
	calls map[string]*sum
	done  bool // the step was

	args *args.TrainingArguments
	dev  *tensor.Device
}

// sum is what calls of a kind move.
type sum struct {
	calls, kernels int
	bytes          float64
}

func (t *traffic) NewStream() core.Stream {
	return trafficStream{t.Device.NewStream().(core.ManyLauncher), t}
}

type trafficStream struct {
	core.ManyLauncher
	t *traffic
}

func (s trafficStream) Launch(c *core.Call) {
	s.t.note([]core.Call{*c}, func() { s.ManyLauncher.Launch(c) })
}

func (s trafficStream) LaunchMany(calls []core.Call) {
	s.t.note(calls, func() { s.ManyLauncher.LaunchMany(calls) })
}

// note adds up calls of one op.
func (t *traffic) note(calls []core.Call, run func()) {
	before := len(t.asked.kernels)
	run()
	if t.done {
		return
	}
	for i := range calls {
		c := &calls[i]
		key := c.Op.String()
		if c.Op == core.OpCopy {
			key += " " + c.In[0].DType.String() + " " + c.Out[0].DType.String()
		}
		s := t.calls[key]
		if s == nil {
			s = &sum{}
			t.calls[key] = s
		}
		s.calls++
		_, bytes := c.Cost()
		s.bytes += bytes + again(c)
		if i == 0 {
			s.kernels += len(t.asked.kernels) - before
		}
	}
}

// again is what kernels read beyond what Cost counts.
func again(c *core.Call) float64 {
	size := func(v *core.View) float64 { return float64(v.Numel() * v.DType.Size()) }
	switch c.Op {
	case core.OpAdamW: // parameter and moments, which it updates
		return size(&c.Out[0]) + size(&c.Out[1]) + size(&c.Out[2])
	case core.OpCrossEntropy: // for the slopes, once the sum is known
		return size(&c.In[0])
	case core.OpAttentionGrad: // q, k, v and dout for dk and dv, dout for delta
		return size(&c.In[0]) + size(&c.In[1]) + size(&c.In[2]) + 2*size(&c.In[4])
	}
	return 0
}

// gpt2Step is what a step of a GPT-2 in bfloat16 asks of an H100, with batch × block tokens.
func gpt2Step(t *testing.T, cfg gpt2.Config, batch, block int, set func(*args.TrainingArguments)) *traffic {
	t.Helper()
	tr := &traffic{asked: &null{}, calls: map[string]*sum{}}
	var err error
	tr.Device, err = backend.Open(tr.asked, 0)
	require.NoError(t, err)
	tr.SetGraphs(backend.Graphs{Off: true})
	dev := joint.Device[*tensor.Device](tr)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	list := make(data.Slice[[]int32], 2*batch)
	for i := range list {
		list[i] = make([]int32, block)
	}
	m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
	require.NoError(t, err)
	a := args.Default(t.TempDir())
	a.PerDeviceTrainBatchSize, a.MaxSteps, a.BF16, a.SaveStrategy = batch, 2, true, args.StrategyNo
	a.SkipMemoryMetrics, a.Device = true, "cpu"
	set(a)
	tr.args, tr.dev = a, dev
	see := recorder{begin: func() {
		tr.asked.kernels, tr.asked.products = nil, nil
		clear(tr.calls)
		tr.done = false
	}, end: func() { tr.done = true }}
	_, err = trainer.New(m, a, trainer.WithDevice(dev), trainer.WithCallbacks(see), trainer.WithDisplay(nil),
		trainer.WithLogger(slog.New(slog.DiscardHandler)),
		trainer.WithTrainData(data.NewSource(list, data.CausalLM(0)))).Train()
	require.NoError(t, err)
	return tr
}

// TestTraffic counts what a step of GPT-2 124M moves through a device's memory, and with how many launches. Nothing is
// computed.
func TestTraffic(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's
	}
	cfg := gpt2.DefaultConfig() // 124M
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	tr := gpt2Step(t, cfg, 16, 1024, func(*args.TrainingArguments) {})
	total, kernels := 0., 0
	for _, key := range slices.Sorted(maps.Keys(tr.calls)) {
		s := tr.calls[key]
		total += s.bytes
		kernels += s.kernels
		t.Logf("%-24s %5d calls %5d kernels %8.2f GB", key, s.calls, s.kernels, s.bytes/1e9)
	}
	t.Logf("%.2f GB, %d kernels, %d products", total/1e9, len(tr.asked.kernels), len(tr.asked.products))
	require.Less(t, total, 60e9, "bytes: they were 90e9 once")
	require.Greater(t, total, 50e9, "bytes: the step is not a whole one")
	require.Equal(t, len(tr.asked.kernels), kernels, "kernels that no op asked for")
	require.LessOrEqual(t, kernels, 420)

	for _, op := range []core.Op{core.OpMatMul, core.OpLinear} { // operands as the library reads them, fused epilogues
		require.Zero(t, tr.calls[op.String()].kernels, "kernels of %s", op)
	}
	require.Equal(t, tr.calls["matmul"].calls+tr.calls["linear"].calls, len(tr.asked.products))
	for _, p := range tr.asked.products {
		for _, m := range []driver.Matrix{p.A, p.B, p.D} {
			size := map[driver.DataType]int{driver.R16BF: 2, driver.R32F: 4}[m.Type]
			require.NotZero(t, size, "%+v", p)
			require.Zero(t, m.LD*size%16, "%+v", p)
			require.Zero(t, m.Stride*size%16, "%+v", p)
			require.Zero(t, m.Rows*size%16, "%+v", p)
		}
		require.Equal(t, driver.R16BF, p.A.Type, "%+v", p)
		require.Zero(t, p.Align%16, "%+v", p)
	}
}

// Attention draws dropout's decisions in the forward pass alone, also in one that is computed again. An estimate of the
// memory counts them.
func TestDropoutIsDrawnOnce(t *testing.T) {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize = 2, 128, 2, 64
	for recomputed, want := range map[bool]int{false: cfg.NLayer, true: 2 * cfg.NLayer} {
		tr := gpt2Step(t, cfg, 2, 256, func(a *args.TrainingArguments) { a.GradientCheckpointing = recomputed })
		drawn := 0
		for _, kernel := range tr.asked.kernels {
			if kernel == "flash_keep" {
				drawn++
			}
		}
		require.Equal(t, want, drawn)
		e, err := trainer.EstimateMemory(tr.args, tr.dev, 1,
			func(in *nn.Init) (models.Model, error) { return gpt2.New(in, cfg) },
			func(c *tensor.Ctx, n int) *data.Batch {
				batch, err := data.CausalLM(0)(c, slices.Repeat([][]int32{make([]int32, 256)}, n))
				require.NoError(t, err)
				return batch
			})
		require.NoError(t, err)
		require.Equal(t, tr.dev.MemStats().Peak, e.Peak, "with memory for the decisions")
		require.Contains(t, tr.asked.kernels, "flash_dropout_dkdv_64_bf16")
	}
}
