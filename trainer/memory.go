// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// memory holds the memory figures of the last record, unless skip_memory_metrics leaves
// them out.
type memory struct {
	rss     int64       // resident memory when training began
	largest int         // elements of the largest batch
	batch   *data.Batch // that batch, with tensors without values
	meta    *tensor.Ctx // of the tensors; nil: no figures are wanted
}

// watchMemory starts measuring if the arguments ask for it.
func (r *run) watchMemory() {
	if r.args.SkipMemoryMetrics {
		return
	}
	r.memory.meta = tensor.NewCtx(tensor.NewMeta()).NoGrad()
	r.memory.rss, _ = callbacks.ResidentMemory()
}

// see keeps the shapes of the largest batch.
func (m *memory) see(b *data.Batch) {
	if m.meta == nil {
		return
	}
	elements := 0
	for _, t := range b.Tensors {
		elements += t.Numel()
	}
	if elements <= m.largest {
		return
	}
	m.largest, m.batch = elements, zeros(m.meta, b)
}

// zeros is a batch like b, on c's device.
func zeros(c *tensor.Ctx, b *data.Batch) *data.Batch {
	like := &data.Batch{Tensors: map[string]*tensor.Tensor{}, Size: b.Size, Count: b.Count}
	for name, t := range b.Tensors {
		like.Tensors[name] = tensor.Zeros(c, t.DType(), t.Shape()...)
	}
	return like
}

// memoryMetrics returns the memory that training took, with HuggingFace's keys for resident memory:
// train_mem_cpu_alloc_delta is the growth since the start, and train_mem_cpu_peaked_delta how far the peak was above
// that. train_mem_peak is the peak of a rank's tensors in bytes (for ranks of a process that share a device, the mean),
// and train_mem_peak_estimated is the result of EstimateMemory, for models that can be created from their
// configuration.
func (r *run) memoryMetrics() map[string]float64 {
	out := map[string]float64{}
	if r.memory.meta == nil {
		return out
	}
	if rss, peak := callbacks.ResidentMemory(); rss > 0 {
		out["train_mem_cpu_alloc_delta"] = float64(rss - r.memory.rss)
		out["train_mem_cpu_peaked_delta"] = float64(max(0, peak-rss))
	}
	allocated := r.acc.DataRanks().Allocated()
	if m := r.acc.ShardMemory(); m.Parameters > 0 {
		allocated = m.Allocated
	}
	measured := r.acc.Device().MemStats().Peak/int64(r.sharing) + allocated
	out["train_mem_peak"] = float64(measured)
	if e, err := r.estimate(); err != nil {
		r.log.Warn("memory could not be estimated", "error", err)
	} else if e != nil {
		out["train_mem_peak_estimated"] = float64(max(e.Start, e.Peak))
	}
	return out
}

// estimate is EstimateMemory for this run and its largest batch; nil for a model that is not made from a configuration,
// for a run that keeps something on disk or is a pipeline, or whose model or tokens are divided, or if there was no
// batch.
func (r *run) estimate() (*MemoryEstimate, error) {
	m, ok := r.model.(models.Configured)
	disk := r.args.OffloadOptimizer == args.OffloadDisk || r.args.OffloadParams == args.OffloadDisk
	if !ok || r.memory.batch == nil || disk || r.acc.PipelineRanks().WorldSize() > 1 || r.acc.Divided() ||
		r.acc.DividesTokens() {
		return nil, nil
	}
	config, err := models.ConfigJSON(m)
	if err != nil {
		return nil, err
	}
	fresh := func(in *nn.Init) (models.Model, error) {
		if ps := r.acc.Params(); len(ps) > 0 {
			in = in.As(ps[0].DType())
		}
		return models.FromConfig(in, config)
	}
	batch := func(c *tensor.Ctx, _ int) *data.Batch { return zeros(c, r.memory.batch) }
	held := r.acc.ShardMemory()
	played := playedRanks{replicas: r.acc.DataRanks().WorldSize(), mesh: comm.Mesh{DPShard: 1, CP: 1, TP: 1}}
	if held.Parameters > 0 {
		played.sharded, played.mesh.DPShard = true, r.acc.ShardRanks().WorldSize()
	}
	return estimateMemory(r.args, r.acc.Device(), played, held.Shared, fresh, batch,
		func(t *Trainer) {
			t.loss, t.stepFunc, t.options = r.loss, r.stepFunc, r.options
			t.newOptim, t.newSched = r.newOptim, r.newSched
		})
}
