// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Model is a model that can be cut into stages: a models.Pipelined.
type Model interface {
	// Parts lists what can be on different ranks, in the order in which a forward pass runs it.
	Parts() []nn.Part
}

// Output is what a stage computes.
type Output struct {
	Hidden []*tensor.Tensor // what the next stage continues with; nil on the last stage
	Loss   *tensor.Tensor   // the sum of the batch's loss terms, one element, on the last stage
	Count  float64          // of the loss terms, or the sum of their weights
	// Sums are those of other numbers of the loss terms, one element each. A pipeline does not carry them.
	Sums []*tensor.Tensor
}

// Forward runs the stage of c (nn.Ctx.WithStage) on a batch.
type Forward func(c *nn.Ctx, m Model, b *data.Batch) (Output, error)

// Sketch is a model on a device without values, which computes shapes and costs.
type Sketch struct {
	c       *tensor.Ctx
	model   Model
	tree    *nn.Tree
	forward Forward
}

// NewSketch copies a model, which is whole, without its values.
func NewSketch(m Model, forward Forward) (*Sketch, error) {
	dev := tensor.NewMeta()
	twin, err := nn.CloneShapes(m, dev)
	if err != nil {
		return nil, err
	}
	return &Sketch{tensor.NewCtx(dev), twin, nn.Walk(twin), forward}, nil
}

// stages cuts the copy. split is a valid one.
func (s *Sketch) stages(split []int) [][]nn.Part {
	stages, _ := Stages(s.model.Parts(), split)
	return stages
}

// batch is b without its values.
func (s *Sketch) batch(b *data.Batch) *data.Batch {
	twin := *b
	twin.Tensors = map[string]*tensor.Tensor{}
	for name, t := range b.Tensors {
		twin.Tensors[name] = tensor.Empty(s.c.NoGrad(), t.DType(), t.Shape()...)
	}
	return &twin
}

// run runs stages, one after the other, in a context, and calls after with the output of each.
func (s *Sketch) run(c *nn.Ctx, stages [][]nn.Part, b *data.Batch, after func(stage int, out Output)) (err error) {
	fault := tensor.Recover(func() {
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			var out Output
			for i, parts := range stages {
				if out, err = s.forward(c.WithStage(parts, out.Hidden...), s.model, b); err != nil {
					break
				}
				after(i, out)
			}
			return nil
		})
	})
	if fault != nil {
		return b.Explain(fault)
	}
	return err
}

// lookups counts the rows of a table that each lookup of a stage would change, in the order of its backward pass.
func (s *Sketch) lookups(table string, out Output) (rows []int) {
	i := slices.IndexFunc(s.tree.Parameters(), func(q tensor.Named) bool { return q.Name == table })
	var roots, grads []*tensor.Tensor
	for _, t := range out.Hidden {
		if t.RequiresGrad() {
			roots, grads = append(roots, t), append(grads, tensor.Empty(s.c.NoGrad(), t.DType(), t.Shape()...))
		}
	}
	if len(roots) == 0 {
		return nil
	}
	var store tensor.WeightGradStore
	defer store.Close()
	count := tensor.SparseGrads(s.tree.Parameters()[i].Tensor, func(r, _ *tensor.Tensor) {
		rows = append(rows, r.Numel())
	})
	tensor.Backward(s.c, roots, grads, nil, tensor.DelayWeightGrads(&store), tensor.RetainGraph(), count)
	return rows
}

// Measure counts the floating-point operations of each part of a model in the forward pass of a batch, those of the
// head and the loss with the last part. Backward passes take about twice as many, of each part. b may have any values:
// nothing is computed.
func Measure(m Model, forward Forward, b *data.Batch) ([]float64, error) {
	s, err := NewSketch(m, forward)
	if err != nil {
		return nil, err
	}
	if err := CheckParts(m); err != nil {
		return nil, err
	}
	stages := s.stages(slices.Repeat([]int{1}, len(s.model.Parts())))
	costs, part := make([]float64, len(stages)), 0
	defer s.c.Trace(context.Background(), func(k tensor.KernelSpan) { costs[part] += k.FLOPs })()
	c := nn.NewCtx(s.c.NoGrad(), s.tree, false).WithLossOnly()
	err = s.run(c, stages, s.batch(b), func(i int, _ Output) { part = i + 1 })
	return costs, err
}

// CheckParts demands that every parameter is in a part, and every module in one alone.
func CheckParts(m Model) error {
	tree := nn.Walk(m)
	seen, of, faults := map[nn.Module]bool{}, map[*tensor.Tensor]bool{}, []string(nil)
	for i, p := range m.Parts() {
		for _, sub := range p {
			if seen[sub] {
				faults = append(faults, fmt.Sprintf("part %d has a %T that an earlier part has", i, sub))
			}
			seen[sub] = true
			for _, q := range nn.NamedParameters(sub) {
				of[q.Tensor] = true
			}
		}
	}
	for _, p := range tree.Parameters() {
		if !of[p.Tensor] {
			faults = append(faults, p.Name+" is in no part")
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("pp: the parts of %T: %s", m, strings.Join(faults[:min(len(faults), 8)], "; "))
	}
	return nil
}

// Parameters lists the parameters of a stage under their names in the whole model, in its order.
func Parameters(tree *nn.Tree, stage []nn.Part) []tensor.Named {
	of := map[*tensor.Tensor]bool{}
	for _, m := range slices.Concat(stage...) {
		for _, p := range nn.NamedParameters(m) {
			of[p.Tensor] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(tree.Parameters()), func(p tensor.Named) bool { return !of[p.Tensor] })
}
