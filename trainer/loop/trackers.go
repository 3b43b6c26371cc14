// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/nn"
)

// Trackers are the reporters that report_to names, for a loop without callbacks: accelerate's init_trackers, log and
// end_training. They work on rank 0; on other ranks the methods do nothing. Registered with State.Register, a resumed
// loop continues with the runs that its trackers began.
type Trackers struct {
	handler *callbacks.Handler
	control callbacks.Control
	args    *args.TrainingArguments
	model   nn.Module
	state   *callbacks.State
	open    bool // between Begin and End
}

// NewTrackers makes the trackers of a loop. The program imports their packages, such as integrations/all.
func NewTrackers(p accelerate.Peers, a *args.TrainingArguments, model nn.Module) (*Trackers, error) {
	reporters, err := callbacks.NewReporters(a)
	if err != nil {
		return nil, err
	}
	return &Trackers{handler: callbacks.NewHandler(slog.New(slog.DiscardHandler), p.Rank(), reporters...), args: a,
		model: model, state: callbacks.NewState(a, 0)}, nil
}

// Begin opens them for a loop that has done so many steps. It comes after State.Load, and End after it:
//
//	defer func() { err = trackers.End(err) }()
func (t *Trackers) Begin(step int64) error {
	if t.open {
		return errors.New("loop: Trackers.Begin was called twice: want End before the next Begin")
	}
	t.open = true
	t.state.GlobalStep = step
	return t.fire(callbacks.TrainBegin, nil)
}

// Log hands a record to all trackers, which get the key step too.
func (t *Trackers) Log(step int64, r callbacks.Record) error {
	if !t.open {
		return errors.New("loop: Trackers.Log was called before Begin or after End: want it between them")
	}
	t.state.GlobalStep = step
	own := callbacks.Record{"step": step}
	for key, v := range r {
		if key != "step" {
			own[key] = v
		}
	}
	return t.fire(callbacks.Log, own)
}

// End closes them, and waits until they have sent what they hold. err is what the loop returns: the run is noted as
// finished if it is nil, as interrupted if it is accelerate.ErrInterrupted, else as failed. End returns it, joined with
// its own. After the first call it only does that.
func (t *Trackers) End(err error) error {
	if !t.open {
		return err
	}
	t.open = false
	if err == nil || errors.Is(err, accelerate.ErrInterrupted) {
		if t.control.StopReason = (callbacks.StopReason{}); err != nil {
			t.control.StopReason.Kind = callbacks.StopInterrupted
		}
		err = errors.Join(err, t.fire(callbacks.TrainEnd, nil))
	}
	return errors.Join(err, t.handler.Close()) // which ends a run without train_end as a failed one
}

func (t *Trackers) fire(k callbacks.Kind, r callbacks.Record) error {
	return t.handler.Fire(k, &callbacks.Event{Args: t.args, State: t.state, Control: &t.control, Model: t.model,
		Log: slog.Default(), Record: r})
}

// MarshalJSON is what a checkpoint keeps of them.
func (t *Trackers) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.handler.ExportStates(&t.control))
}

// UnmarshalJSON takes up what MarshalJSON gave, before Begin.
func (t *Trackers) UnmarshalJSON(text []byte) error {
	var saved map[string]any
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	return t.handler.ImportStates(saved, &t.control)
}
