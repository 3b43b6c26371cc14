// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/hashes"
)

// hashRecorder records hashes of the steps of this rank. All methods of nil do nothing.
type hashRecorder struct {
	r      *run
	w      *hashes.Writer
	parts  []part // that the optimizer of this rank updates
	step   *hashes.Step
	window *accelerate.PendingStep
	micro  int      // that is computed
	remove []func() // of hooks; nil: there are none
	// computing: the passes of a step whose modules are recorded are under way
	computing bool
}

// part is what this rank has of a parameter.
type part struct {
	tensor.Named
	tensor.Placement
}

// recordHashes begins a record if the arguments ask for one. The optimizer is made, and the weights are those to train.
func (r *run) recordHashes() error {
	if r.args.RecordHashes == args.RecordNo {
		return nil
	}
	h := &hashRecorder{r: r}
	head := hashes.Header{Rank: r.acc.Rank(), Ranks: r.acc.WorldSize(), Program: os.Args, Launched: r.launched(),
		FromStep: r.state.GlobalStep, Versions: map[string]string{"device": r.acc.Device().Name(),
			"kernels": r.acc.Kernels(), "model": fmt.Sprintf("%T", r.model)}}
	var err error
	if head.Dir, err = os.Getwd(); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	text, err := r.args.JSON()
	if err == nil {
		err = json.Unmarshal(text, &head.Settings)
	}
	if err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	for _, p := range r.acc.Params() {
		whole := p.Placed().Placement
		q, at := part{p, whole}, ""
		if s := r.acc.Shards(); s != nil {
			if own, ok := s.Placement(p.Name); ok {
				q.Placement, at = own, partName(own)
			}
		}
		head.Params = append(head.Params, hashes.Param{Name: p.Name, Part: at})
		h.parts = append(h.parts, q)
	}
	if h.w, err = hashes.Create(r.args.OutputDir, head); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	r.hashes = h
	return h.w.Write(&hashes.Step{Step: r.state.GlobalStep, Weights: h.weights()})
}

// launched is how many processes the job has.
func (r *run) launched() int {
	if r.args.NumReplicas > 1 {
		return 1
	}
	return r.acc.WorldSize()
}

// partName names a part of an array; "" for all of it.
func partName(p tensor.Placement) string {
	if p.WholeBox() && p.Flat.Start == 0 && p.Flat.Stop == p.BoxNumel() {
		return ""
	}
	return fmt.Sprint(p.Box, p.Flat.Start, "-", p.Flat.Stop)
}

// ops reports whether the step under way records what its modules compute.
func (h *hashRecorder) ops() bool {
	until := int64(h.r.args.RecordUntil)
	return h.r.args.RecordHashes == args.RecordOp && (until == 0 || h.r.state.GlobalStep+1 == until)
}

// begin notes the data of a step, and begins to listen to its modules.
func (h *hashRecorder) begin(batches []*data.Batch) {
	if h == nil {
		return
	}
	h.step = &hashes.Step{Step: h.r.state.GlobalStep + 1, LR: h.r.learningRate()}
	c := h.r.acc.Ctx()
	for _, b := range batches {
		if b.MicroBatch < 0 {
			continue
		}
		var sum hashes.Sum
		for name, t := range b.Tensors {
			sum = sum.Add(name, hashes.Whole(c, t))
		}
		h.step.Data = append(h.step.Data, hashes.Batch{MicroBatch: b.MicroBatch, Hash: sum})
	}
	if h.computing = h.ops(); h.computing {
		h.listen()
	}
}

// current is the micro-batch that is computed from now on.
func (h *hashRecorder) current(b *data.Batch) {
	if h != nil {
		h.micro = b.MicroBatch
	}
}

// gradients notes those that the optimizer is about to read, of a window.
func (h *hashRecorder) gradients(u *accelerate.PendingStep) {
	if h == nil {
		return
	}
	h.computing, h.window = false, u
	h.step.Grads = h.sums(func(q part) *tensor.Tensor { return q.Grad() })
}

// updated notes what the optimizer has left, and writes the step.
func (h *hashRecorder) updated(s *callbacks.StepStats) error {
	if h == nil {
		return nil
	}
	h.step.Norm = hashes.Float(s.GradNorm)
	for _, loss := range h.window.MicroBatchLosses() {
		h.step.Losses = append(h.step.Losses, hashes.Float(loss))
	}
	h.step.Weights = h.weights()
	h.step.State = h.state()
	h.window = nil
	return h.w.Write(h.step)
}

// trained are the tensors that the optimizer updates, by the names of their parameters.
func (h *hashRecorder) trained() map[string]tensor.Named {
	own := map[string]tensor.Named{}
	for _, g := range h.r.opt.Groups() {
		for _, p := range g.Params {
			own[p.Name] = p
		}
	}
	return own
}

// sums are the hashes of a tensor of each parameter that the optimizer updates; 0 where there is none.
func (h *hashRecorder) sums(of func(q part) *tensor.Tensor) []hashes.Sum {
	own, list := h.trained(), make([]hashes.Sum, len(h.parts))
	for i, q := range h.parts {
		p, ok := own[q.Placement.Name]
		if !ok {
			continue
		}
		if t := of(part{p, q.Placement}); t != nil {
			list[i] = hashes.Of(h.r.acc.Ctx(), t, q.Placement)
		}
	}
	return list
}

func (h *hashRecorder) weights() []hashes.Sum {
	return h.sums(func(q part) *tensor.Tensor { return q.Tensor })
}

// state are the hashes of the optimizer's state of each parameter.
func (h *hashRecorder) state() []hashes.Sum {
	all, list, c := h.r.opt.State().Tensors, make([]hashes.Sum, len(h.parts)), h.r.acc.Ctx()
	at, blocks := map[string]int{}, map[string]optim.StateTensor{}
	for i, q := range h.parts {
		at[q.Placement.Name] = i
	}
	for _, p := range h.r.opt.Params() {
		for _, st := range h.r.opt.Describe(p) {
			if st.Block > 1 {
				blocks[p.Name+"."+st.Name] = st
			}
		}
	}
	for name, t := range all {
		dot := strings.LastIndexByte(name, '.')
		if i, ok := at[name[:dot]]; ok {
			place := h.parts[i].Placement
			if st, ok := blocks[name]; ok {
				place = st.Place(name, place)
			}
			list[i] = list[i].Add(name[dot:], hashes.Of(c, t, place))
		}
	}
	return list
}

// listen hooks into the modules and the parameters.
func (h *hashRecorder) listen() {
	if h.remove != nil {
		return
	}
	tree := h.r.acc.Tree()
	tree.Modules(func(path string, m nn.Module) {
		h.remove = append(h.remove, tree.AddHooks(m, &nn.Hooks{
			Outputs: func(c *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor { return h.outputs(c, path, ts) }}))
	})
	if h.r.acc.PipelineRanks().WorldSize() > 1 { // which micro-batch a gradient is of cannot be seen there
		return
	}
	for _, p := range h.r.acc.Params() {
		h.remove = append(h.remove, p.OnGrad(func(c *tensor.Ctx, t *tensor.Tensor) {
			h.add(c, h.micro, hashes.Gradient, p.Name, t.Grad())
		}))
	}
}

// outputs notes the results of a module, and makes their gradients be noted.
func (h *hashRecorder) outputs(c *nn.Ctx, path string, ts []*tensor.Tensor) []*tensor.Tensor {
	if !h.computing || slices.Contains(ts, nil) {
		return ts
	}
	micro := h.micro
	if n, ok := c.Chunk(); ok {
		path = strings.TrimSpace(fmt.Sprintf("%s chunk %d", path, n))
	}
	h.add(c.Ctx, micro, hashes.Forward, path, ts...)
	return tensor.Custom(c.Ctx, tensor.CustomOp{Name: "record_hashes",
		Forward: func(_ *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) { return in, nil },
		Backward: func(c *tensor.Ctx, _, grads []*tensor.Tensor, _ []bool) []*tensor.Tensor {
			h.add(c, micro, hashes.Backward, path, grads...)
			return grads
		}}, ts...)
}

// add notes tensors, some of which may be nil.
func (h *hashRecorder) add(c *tensor.Ctx, microBatch int, pass, path string, ts ...*tensor.Tensor) {
	if !h.computing {
		return
	}
	var sum hashes.Sum
	for i, t := range ts {
		if t != nil {
			sum = sum.Add(strconv.Itoa(i), hashes.Whole(c, t))
		}
	}
	h.step.Ops = append(h.step.Ops, hashes.Op{MicroBatch: microBatch, Pass: pass, Path: path, Hash: sum})
}

// finished reports whether the run ends behind the step that record_until names.
func (h *hashRecorder) finished() bool {
	return h != nil && h.r.args.RecordUntil > 0 && h.r.state.GlobalStep >= int64(h.r.args.RecordUntil)
}

// close ends the record. What was written is complete.
func (h *hashRecorder) close() {
	if h == nil {
		return
	}
	for _, f := range h.remove {
		f()
	}
	_ = h.w.Close()
}
