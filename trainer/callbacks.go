// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/callbacks"
)

var errBusy = errors.New("trainer: callbacks cannot be added or removed while Train, Evaluate or Predict runs: want " +
	"it before or after")

// idle is an error while the ranks are at work: a callback, a metric or a model calls a method that would need all of
// them a second time. want says what such code does instead.
func (t *Trainer) idle(method, want string) error {
	if t.busy {
		return fmt.Errorf("trainer: %s during a run: want %s", method, want)
	}
	return nil
}

const (
	evaluateInstead = "Control.ShouldEvaluate, after which all ranks evaluate, with WithNamedEvalData for further sets"
	predictInstead  = "it after the run, or an evaluation with WithComputeMetrics, which gets the predictions"
	trainInstead    = "it after the run, or another Trainer"
	closeInstead    = "it after the run, which Control.ShouldTrainingStop ends"
)

// AddCallback adds a callback as WithCallbacks does, to a trainer that is built. It gets the events of the next call of
// Train, Evaluate or Predict, after the callbacks before it.
func (t *Trainer) AddCallback(c callbacks.Callback) error {
	switch {
	case t.err != nil:
		return t.err
	case c == nil:
		return errors.New("trainer: AddCallback got a nil callback")
	case t.busy:
		return errBusy
	}
	_, every := c.(callbacks.EveryRank)
	for _, rank := range append([]*Trainer{t}, t.replicas...) {
		if rank == t || every {
			rank.user = append(slices.Clip(rank.user), c)
			rank.arrangeCallbacks()
		}
	}
	return nil
}

// RemoveCallback removes the first callback of a name (callbacks.Name) on all ranks of this process and returns rank
// 0's, as HuggingFace's pop_callback does. It removes the trainer's own too, such as the display.
func (t *Trainer) RemoveCallback(name string) (removed callbacks.Callback, err error) {
	switch {
	case t.err != nil:
		return nil, t.err
	case t.busy:
		return nil, errBusy
	}
	all := slices.Concat(t.first, t.user, t.last)
	i := slices.IndexFunc(all, named(name))
	if i < 0 {
		names := make([]string, len(all))
		for i, c := range all {
			names[i] = callbacks.Name(c)
		}
		return nil, fmt.Errorf("trainer: there is no callback %q: want one of %s", name, strings.Join(names, ", "))
	}
	for _, rank := range append([]*Trainer{t}, t.replicas...) {
		for _, list := range []*[]callbacks.Callback{&rank.first, &rank.user, &rank.last} {
			if i := slices.IndexFunc(*list, named(name)); i >= 0 {
				*list = slices.Concat((*list)[:i], (*list)[i+1:])
				break
			}
		}
		rank.arrangeCallbacks()
	}
	return all[i], nil
}

func named(name string) func(callbacks.Callback) bool {
	return func(c callbacks.Callback) bool { return callbacks.Name(c) == name }
}

// arrangeCallbacks puts the callbacks into order: the trainer's, the program's, the display.
func (t *Trainer) arrangeCallbacks() {
	user := t.user
	for _, show := range t.last {
		if bar, ok := show.(*callbacks.Progress); ok {
			user = bar.HideBar(user...)
		}
	}
	t.callbacks = callbacks.NewHandler(t.log, t.acc.Rank(), slices.Concat(t.first, user, t.last)...)
}
