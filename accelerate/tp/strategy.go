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

// Strategy is a divided model as a strategy: each rank has, and updates, its parts. The strategy of the ranks that have
// the same parts and see other samples sums the gradients.
type Strategy struct {
	strategy.Strategy
	*Division
	c       *tensor.Ctx // of the rank, without a memory scope
	buffers []tensor.Named
}

// NewStrategy makes the strategy of a divided model. inner is that of the ranks with the same parts, of a job with the
// parameters of the division's tree; it spreads nothing.
func NewStrategy(c *tensor.Ctx, d *Division, inner strategy.Strategy) *Strategy {
	return &Strategy{inner, d, c.NoGrad(), d.tree.Buffers()}
}

// Norm implements strategy.Strategy.
func (s *Strategy) Norm(ctx context.Context) (float64, error) { return s.Division.Norm(ctx, s.c) }

// Local implements strategy.Strategy.
func (s *Strategy) Local() bool { return false }

// Shards implements strategy.Strategy.
func (s *Strategy) Shards() strategy.Shards {
	if s.group == nil {
		return nil
	}
	return s
}

// Parameters implements strategy.Strategy.
func (s *Strategy) Parameters() strategy.Parameters {
	if s.group == nil {
		return nil
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
func (s *Strategy) Cut(name string) bool { return s.owner[name] != nil }

// Publish implements strategy.Shards. What Placed has are the parameters.
func (s *Strategy) Publish(context.Context) error { return nil }

// Unshard implements strategy.Parameters. A rank has its parts at all times.
func (s *Strategy) Unshard() {}

// Reshard implements strategy.Parameters.
func (s *Strategy) Reshard() {}

// Gathers implements strategy.Parameters. The ranks that compute at the same time see the same batches.
func (s *Strategy) Gathers() bool { return false }

// Memory implements strategy.Parameters.
func (s *Strategy) Memory() (m strategy.Memory) {
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
	return fmt.Sprintf("%s of each sum over %s, %.1f MB of parameters per rank", quantity.Of(s.size.Parts, "part"),
		quantity.Of(s.size.Ranks, "rank"), float64(s.Memory().Parameters)/1e6)
}

// errAlone is what is wrong with the use of a part on one rank.
var errAlone = errors.New("the parameter is divided among ranks (tp_size), and this rank alone uses it: want the " +
	"same on every rank (a callback has the method EveryRank for that), within Summon")

// Alone implements strategy.Parameters.
func (s *Strategy) Alone(f func() error) (err error) {
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
func (s *Strategy) Summon(write bool, f func() error) (err error) {
	if s.summoned {
		return f()
	}
	parts := map[string]*tensor.Tensor{}
	for name, p := range s.owner {
		parts[name] = p.Tensor
	}
	if err := s.join(context.Background(), s.c); err != nil {
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
