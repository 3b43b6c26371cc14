// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// HookState is what a hook carries from step to step. All of it is named by parameter, so that it does not depend on
// how gradients lie in buckets.
type HookState struct {
	Steps  int64                // that the hook has taken part in
	Own    map[string][]float32 // this rank's: what was not sent yet of a parameter's gradient
	Shared map[string][]float32 // the same on all ranks
}

// Stateful is a Hook with a state that a resumed run must have to continue with the same bits. Both methods are for the
// time between steps.
type Stateful interface {
	Hook
	// State is the hook's state, which the caller must not change.
	State() HookState
	// SetState makes s the hook's.
	SetState(s HookState)
}

// memory is the error feedback of a hook (Seide et al. 2014; Karimireddy et al. 2019): what compression took away from
// a gradient is added to the next one of the same parameter.
type memory struct {
	off    bool // without error feedback
	errors map[string][]float32
}

// take is a gradient with what is owed to it, as numbers of the caller's own.
func (m *memory) take(c *tensor.Ctx, p Part) []float32 {
	x := values(c, p)
	if e := m.errors[p.Name]; len(e) == len(x) {
		for i, v := range e {
			x[i] += v
		}
	}
	return x
}

// keep makes left what is owed to a parameter. If the exchange brought a number that is not finite, the step will be
// skipped, and what was owed before stays.
func (m *memory) keep(name string, left []float32, finite bool) {
	switch {
	case m.off || !finite:
	case m.errors == nil:
		m.errors = map[string][]float32{name: left}
	default:
		m.errors[name] = left
	}
}

// values copies a gradient to the host.
func values(c *tensor.Ctx, p Part) []float32 { return tensor.ToSlice[float32](c, p.Grads) }

// write copies numbers of the host into a gradient.
func write(c *tensor.Ctx, p Part, x []float32) {
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		tensor.CopyInto(c, p.Grads, tensor.FromSlice(c, x, p.Grads.Shape()...))
		return nil
	})
}

// finite reports whether no number is infinite or NaN.
func finite(x []float32) bool {
	for _, v := range x {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	return true
}

// Share divides the states that the ranks of an earlier run had among n ranks and returns that of one. On as many ranks
// each takes its own; otherwise what is owed to a gradient is moved or added, so that nothing of it is lost.
func Share(saved []HookState, rank, n int) (HookState, error) {
	if len(saved) == 0 {
		return HookState{}, fmt.Errorf("ddp: the state of no rank: want that of one at least")
	}
	s := HookState{Steps: saved[0].Steps, Own: map[string][]float32{}, Shared: maps.Clone(saved[0].Shared)}
	for from := rank; from < len(saved); from += n {
		for name, x := range saved[from].Own {
			sum := s.Own[name]
			switch {
			case sum == nil:
				s.Own[name] = slices.Clone(x)
				continue
			case len(sum) != len(x):
				return HookState{}, fmt.Errorf("ddp: state of %s with %d numbers on rank %d and %d on rank %d", name,
					len(sum), rank, len(x), from)
			}
			for i, v := range x {
				sum[i] += v
			}
		}
	}
	return s, nil
}
