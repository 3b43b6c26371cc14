// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/callbacks"
)

// Options are the parts of a Reporter.
type Options struct {
	Name     string // in report_to and in the log
	Callback string // HuggingFace's name of the callback
	RunID    string // of the run to continue; "" makes one, or takes that of the checkpoint that is resumed
	RunName  string // instead of run_name
	Project  string
	// Open gives the protocols by which a run is sent. Each has its own queue.
	Open func(Run) []Destination
}

// Reporter is the callback of a tracker. All that a program trains and evaluates with one reporter is one run, which
// ends whenever a training ends and continues with the next record. The run's ID is saved in checkpoints, so that a
// resumed training continues the same run.
type Reporter struct {
	callbacks.Base
	options  Options
	id       string
	resumed  bool
	training bool
	queues   []*queue
	ending   sync.WaitGroup // of queues that have been closed
}

// New returns a reporter. It opens nothing before the first training or record.
func New(o Options) *Reporter {
	r := &Reporter{options: o, id: o.RunID, resumed: o.RunID != ""}
	if r.id == "" {
		r.id = newID()
	}
	return r
}

// newID returns eight letters and digits, as Weights & Biases names runs.
func newID() string {
	const symbols = "abcdefghijklmnopqrstuvwxyz0123456789"
	var random [8]byte
	_, _ = rand.Read(random[:]) // which cannot fail
	for i, b := range random {
		random[i] = symbols[int(b)%len(symbols)]
	}
	return string(random[:])
}

// CallbackName returns HuggingFace's name.
func (r *Reporter) CallbackName() string { return r.options.Callback }

// ExportState returns the run's ID.
func (r *Reporter) ExportState() callbacks.Exported {
	return callbacks.Exported{Args: map[string]any{}, Attributes: map[string]any{"run_id": r.id}}
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ValidID reports whether a text may be the ID of a run.
func ValidID(id string) bool { return validID.MatchString(id) }

// ImportState makes the run continue the one of a checkpoint, unless the program's settings name another.
func (r *Reporter) ImportState(saved callbacks.Exported) error {
	id, ok := saved.Attributes["run_id"].(string)
	if !ok || !ValidID(id) {
		return fmt.Errorf("run_id is %v: want up to 64 letters, digits, hyphens and underscores",
			saved.Attributes["run_id"])
	}
	if r.options.RunID == "" {
		r.id, r.resumed = id, true
	}
	return nil
}

// OnTrainBegin begins the run.
func (r *Reporter) OnTrainBegin(e *callbacks.Event) error {
	_ = r.Close() // of a run that broke off
	r.training = true
	return r.open(e)
}

// OnLog sends a record.
func (r *Reporter) OnLog(e *callbacks.Event) error {
	if r.queues == nil {
		if err := r.open(e); err != nil {
			return err
		}
	}
	row := Row{Time: time.Now(), Record: maps.Clone(e.Record)}
	if e.State != nil {
		row.Step = e.State.GlobalStep
	}
	for _, q := range r.queues {
		q.sink.Put(func() error { return q.put(row) })
	}
	return nil
}

// OnEvaluate ends what an evaluation outside of training sent.
func (r *Reporter) OnEvaluate(*callbacks.Event) error { return r.pause() }

// OnPredict ends what a prediction sent.
func (r *Reporter) OnPredict(*callbacks.Event) error { return r.pause() }

// OnTrainEnd begins to end the run, for which Close waits, so that all reporters end theirs at the same time.
func (r *Reporter) OnTrainEnd(e *callbacks.Event) error {
	switch e.Control.StopReason.Kind {
	case callbacks.StopInterrupted:
		r.end(Interrupted)
	case callbacks.StopNonfinite:
		r.end(Failed)
	default:
		r.end(Finished)
	}
	return nil
}

// Close ends a run that broke off, and waits for the end. A later record continues the run.
func (r *Reporter) Close() error {
	r.end(Failed)
	r.ending.Wait()
	return nil
}

func (r *Reporter) pause() error {
	if !r.training {
		r.end(Finished)
		r.ending.Wait()
	}
	return nil
}

// end ends the run with all destinations at the same time, since each may keep the program waiting.
func (r *Reporter) end(status Status) {
	r.training = false
	for _, q := range r.queues {
		q.sink.Put(func() error { q.status = status; return nil })
		r.ending.Go(q.sink.Close)
	}
	r.queues = nil
}

func (r *Reporter) open(e *callbacks.Event) error {
	r.ending.Wait()
	run := Run{ID: r.id, Resumed: r.resumed, Name: r.options.RunName, Project: r.options.Project, Begin: time.Now()}
	if run.Name == "" && e.Args != nil {
		run.Name = e.Args.RunName
	}
	var err error
	if run.Config, err = config(e); err != nil {
		return fmt.Errorf("writing the run's settings: %w", err)
	}
	r.resumed = true
	for _, d := range r.options.Open(run) {
		r.queues = append(r.queues, newQueue(r.options.Name, d, run))
	}
	return nil
}

// config returns the settings of the model's configuration and, over them, the arguments.
func config(e *callbacks.Event) (map[string]any, error) {
	all := map[string]any{}
	if m, ok := e.Model.(interface{ Config() any }); ok {
		text, err := json.Marshal(m.Config())
		if err == nil {
			err = json.Unmarshal(text, &all)
		}
		if err != nil {
			return nil, fmt.Errorf("the model's configuration: %w", err)
		}
	}
	if e.Args != nil {
		text, err := e.Args.JSON()
		if err == nil {
			err = json.Unmarshal(text, &all)
		}
		if err != nil {
			return nil, fmt.Errorf("the arguments: %w", err)
		}
	}
	if e.Run != nil {
		all["model/num_parameters"] = e.Run.Parameters
	}
	return all, nil
}
