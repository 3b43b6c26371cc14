// SPDX-License-Identifier: Apache-2.0

package tp

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Strategy is a divided model as a strategy: each rank has, and updates, its parts, or what another strategy leaves it
// of them. That is the one of the ranks that have the same parts, or other stages, of a job with Divided.
type Strategy struct {
	strategy.Strategy
	*Division
	c       *tensor.Ctx // of the rank, without a memory scope
	buffers []tensor.Named
}

// NewStrategy makes the strategy of a divided model. inner is that of a job with the parameters of the division's tree.
func NewStrategy(c *tensor.Ctx, d *Division, inner strategy.Strategy) *Strategy {
	return &Strategy{inner, d, c.NoGrad(), d.tree.Buffers()}
}

// Norm implements strategy.Strategy.
func (s *Strategy) Norm(ctx context.Context) (float64, error) { return s.Strategy.Norm(ctx) }

// Shards implements strategy.Strategy.
func (s *Strategy) Shards() strategy.Shards {
	if s.group == nil {
		return s.Strategy.Shards()
	}
	return s
}

// Parameters implements strategy.Strategy.
func (s *Strategy) Parameters() strategy.Parameters {
	if s.group == nil {
		return s.Strategy.Parameters()
	}
	return s
}

// Close implements strategy.Strategy.
func (s *Strategy) Close(whole bool) error {
	err := s.Strategy.Close(whole)
	if whole && err == nil {
		err = s.Join(context.Background(), s.c)
	}
	return err
}

// Placed implements strategy.Shards.
func (s *Strategy) Placed() (list []tensor.Placed) {
	if inner := s.Strategy.Shards(); inner != nil {
		return inner.Placed()
	}
	for _, p := range s.tree.Parameters() {
		at, _ := s.Placement(p.Name)
		list = append(list, tensor.Placed{Placement: at, Tensor: p.Tensor})
	}
	for _, b := range s.buffers {
		list = append(list, b.Placed())
	}
	return list
}

// Cut implements strategy.Shards.
func (s *Strategy) Cut(name string) bool {
	inner := s.Strategy.Shards()
	return s.owner[name] != nil || inner != nil && inner.Cut(name)
}

// Placement implements strategy.Shards.
func (s *Strategy) Placement(name string) (p tensor.Placement, ok bool) {
	if inner := s.Strategy.Shards(); inner != nil {
		return inner.Placement(name)
	}
	return s.Division.Placement(name)
}

// Publish implements strategy.Shards. Without another strategy, what Placed has are the parameters.
func (s *Strategy) Publish(ctx context.Context) error {
	if inner := s.Strategy.Shards(); inner != nil {
		return inner.Publish(ctx)
	}
	return nil
}

// Unshard implements strategy.Parameters. A rank has its parts at all times, unless another strategy cuts them.
func (s *Strategy) Unshard() {
	if inner := s.Strategy.Parameters(); inner != nil {
		inner.Unshard()
	}
}

// Reshard implements strategy.Parameters.
func (s *Strategy) Reshard() {
	if inner := s.Strategy.Parameters(); inner != nil {
		inner.Reshard()
	}
}

// Gathers implements strategy.Parameters. The ranks that share the model see the same batches.
func (s *Strategy) Gathers() bool {
	inner := s.Strategy.Parameters()
	return inner != nil && inner.Gathers()
}

// Memory implements strategy.Parameters.
func (s *Strategy) Memory() (m strategy.Memory) {
	if inner := s.Strategy.Parameters(); inner != nil {
		m = inner.Memory()
		m.Allocated += s.group.Allocated()
		return m
	}
	for _, p := range s.tree.Parameters() {
		if m.Parameters += int64(p.Bytes()); p.IsLeaf() {
			m.Gradients += int64(p.Numel() * p.GradDType().Size())
		}
	}
	for _, b := range s.buffers {
		m.Uncut += int64(b.Bytes())
	}
	m.Together, m.Sums, m.Allocated = m.Parameters+m.Gradients, 1, s.group.Allocated()
	return m
}

// Describe implements strategy.Parameters.
func (s *Strategy) Describe() string {
	words := fmt.Sprintf("%.1f MB of parameters per rank", float64(s.Memory().Parameters)/1e6)
	if inner := s.Strategy.Parameters(); inner != nil {
		words = inner.Describe()
	}
	return fmt.Sprintf("%s of each sum over %s, %s", quantity.Of(s.size.Parts, "part"),
		quantity.Of(s.size.Ranks, "rank"), words)
}

// errAlone is what is wrong with the use of a part on one rank.
var errAlone = errors.New("the parameter is divided among ranks (tp_size), and this rank alone uses it: want the " +
	"same on every rank (a callback has the method EveryRank for that), within Summon")

// Alone implements strategy.Parameters.
func (s *Strategy) Alone(f func() error) error {
	call := func() error { return s.alone(f) }
	if inner := s.Strategy.Parameters(); inner != nil {
		return inner.Alone(call)
	}
	return call()
}

// alone calls f without the parameters that this rank has parts of.
func (s *Strategy) alone(f func() error) (err error) {
	kept := map[string]*tensor.Tensor{}
	for name, p := range s.owner {
		t := p.Tensor
		kept[name] = t.Withdraw()
		t.OnMissing(func() {
			panic(&tensor.Error{Op: "tp", Msg: fmt.Sprintf("%s: %v", name, errAlone), Cause: errAlone})
		})
	}
	defer func() {
		for name, p := range s.owner {
			p.Return(kept[name])
		}
	}()
	if fault := tensor.Try(func() { err = f() }); fault != nil {
		return fault
	}
	return err
}

// Summon implements strategy.Parameters. The whole model is in the rank's memory while f runs.
func (s *Strategy) Summon(write bool, f func() error) error {
	if s.summoned {
		return f()
	}
	call := func() error { return s.summon(write, f) }
	if inner := s.Strategy.Parameters(); inner != nil {
		return inner.Summon(write, call)
	}
	return call()
}

// SummonParts is Summon without write that leaves the model divided: f has this rank's parts of what other strategies
// have cut.
func (s *Strategy) SummonParts(f func() error) error {
	if inner := s.Strategy.Parameters(); inner != nil {
		return inner.Summon(false, f)
	}
	return f()
}

// summon is Summon where all of this rank's parts can be used.
func (s *Strategy) summon(write bool, f func() error) (err error) {
	parts := map[string]*tensor.Tensor{}
	for name, p := range s.owner {
		parts[name] = p.Tensor
	}
	keep := func(*tensor.Tensor) {}
	if err := s.join(context.Background(), s.c, keep); err != nil {
		return err
	}
	s.summoned = true
	defer func() {
		s.summoned = false
		err = errors.Join(err, tensor.Try(func() { s.divideAgain(parts, write) }))
	}()
	if fault := tensor.Try(func() { err = f() }); fault != nil {
		return fault
	}
	return err
}

// divideAgain gives the model the parts back that it had before it was summoned, or with write those of the whole.
func (s *Strategy) divideAgain(parts map[string]*tensor.Tensor, write bool) {
	for _, q := range s.whole {
		p := s.owner[q.Name]
		if p == nil {
			continue
		}
		part := parts[q.Name]
		if write {
			s.copyPart(s.c, part, q.Tensor, s.cuts[q.Name])
		}
		p.Divide(part)
		q.DropLowered()
		q.Unload()
	}
	s.c.Sync()
}
