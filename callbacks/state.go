// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
)

// State is where a run is: HuggingFace's TrainerState, and the content of trainer_state.json. Steps are optimizer
// steps.
type State struct {
	Epoch              float64 `json:"epoch"`       // epochs done, with the fraction of the present one
	GlobalStep         int64   `json:"global_step"` // steps done
	MaxSteps           int64   `json:"max_steps"`   // steps of the whole run
	LoggingSteps       int64   `json:"logging_steps"`
	EvalSteps          int64   `json:"eval_steps"`
	SaveSteps          int64   `json:"save_steps"`
	TrainBatchSize     int     `json:"train_batch_size"` // samples per micro-batch
	NumTrainEpochs     int64   `json:"num_train_epochs"` // epochs begun in the whole run
	NumInputTokensSeen int64   `json:"num_input_tokens_seen"`
	TotalFLOPs         float64 `json:"total_flos"`

	// LogHistory is the records so far. Of the ranks that are goroutines of one process (num_replicas), rank 0 has
	// them; the others have the last one.
	LogHistory []Record `json:"log_history"`

	BestMetric          *float64 `json:"best_metric"` // nil before the first evaluation that counts
	BestGlobalStep      *int64   `json:"best_global_step"`
	BestModelCheckpoint *string  `json:"best_model_checkpoint"`

	IsLocalProcessZero bool           `json:"is_local_process_zero"` // this rank is the first of its host
	IsWorldProcessZero bool           `json:"is_world_process_zero"` // this is rank 0, the one that logs and saves
	IsHyperParamSearch bool           `json:"is_hyper_param_search"`
	TrialName          *string        `json:"trial_name"`
	TrialParams        map[string]any `json:"trial_params"`
	StatefulCallbacks  map[string]any `json:"stateful_callbacks"` // see Handler.ExportStates
}

// NewState returns the state of a run of maxSteps steps before its first, on rank 0 of a job, with the intervals of
// logging, evaluation and saving that the arguments resolve to. It is for package trainer.
func NewState(a *args.TrainingArguments, maxSteps int64) *State {
	eval := int64(500) // what HuggingFace's state says where nothing is evaluated by steps
	if a.EvalSteps != nil || a.EvalStrategy == args.StrategySteps {
		eval = int64(a.EvalInterval(int(maxSteps)))
	}
	return &State{
		MaxSteps:           maxSteps,
		LoggingSteps:       int64(a.LoggingInterval(int(maxSteps))),
		EvalSteps:          eval,
		SaveSteps:          int64(a.SaveInterval(int(maxSteps))),
		TrainBatchSize:     a.PerDeviceTrainBatchSize,
		LogHistory:         []Record{},
		IsLocalProcessZero: true,
		IsWorldProcessZero: true,
		StatefulCallbacks:  map[string]any{},
	}
}

// Improves tells whether value is a new best: better than BestMetric by any amount, or the first. Numbers that are not
// finite never are.
func (s *State) Improves(value float64, greaterIsBetter bool) bool {
	return finite(value) && (s.BestMetric == nil || better(value, *s.BestMetric, greaterIsBetter))
}

func finite(value float64) bool { return !math.IsNaN(value) && !math.IsInf(value, 0) }

func better(value, than float64, greaterIsBetter bool) bool {
	if greaterIsBetter {
		return value > than
	}
	return value < than
}

// SetBest records value, measured at the present step, as the best; the step only where checkpoints are saved, one of
// which may be that step's. It is for package trainer.
func (s *State) SetBest(value float64, saves bool) {
	s.BestMetric = &value
	if saves {
		s.BestGlobalStep = new(s.GlobalStep)
	}
}

// JSON returns trainer_state.json as HuggingFace writes it: an indent of two, keys sorted. It is for package trainer's
// checkpoints.
func (s *State) JSON() ([]byte, error) {
	for _, name := range slices.Sorted(maps.Keys(s.StatefulCallbacks)) {
		if _, err := json.Marshal(s.StatefulCallbacks[name]); err != nil {
			return nil, fmt.Errorf("callbacks: writing the trainer's state: the state of %s: %w", name, err)
		}
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("callbacks: writing the trainer's state: %w", err)
	}
	var keys map[string]json.RawMessage // whose keys are written sorted
	if err := json.Unmarshal(text, &keys); err != nil {
		return nil, fmt.Errorf("callbacks: writing the trainer's state: %w", err)
	}
	if text, err = json.MarshalIndent(keys, "", "  "); err != nil {
		return nil, fmt.Errorf("callbacks: writing the trainer's state: %w", err)
	}
	return append(text, '\n'), nil
}

// StateFromJSON reads trainer_state.json. The error names the invalid key. It is for package trainer, which resumes
// from it.
func StateFromJSON(text []byte) (*State, error) {
	s := &State{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("callbacks: reading the trainer's state: %w", err)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("callbacks: reading the trainer's state: %w", err)
	}
	if s.LogHistory == nil {
		s.LogHistory = []Record{}
	}
	if s.StatefulCallbacks == nil {
		s.StatefulCallbacks = map[string]any{}
	}
	return s, nil
}

// check refuses what no run writes.
func (s *State) check() error {
	best := int64(0)
	if s.BestGlobalStep != nil {
		best = *s.BestGlobalStep
	}
	for _, n := range []struct {
		name  string
		value float64
	}{{"global_step", float64(s.GlobalStep)}, {"max_steps", float64(s.MaxSteps)}, {"epoch", s.Epoch},
		{"num_input_tokens_seen", float64(s.NumInputTokensSeen)}, {"total_flos", s.TotalFLOPs},
		{"best_global_step", float64(best)}} {
		if n.value < 0 {
			return fmt.Errorf("%s is %g: want 0 or more", n.name, n.value)
		}
	}
	if i := slices.IndexFunc(s.LogHistory, func(r Record) bool { return r == nil }); i >= 0 {
		return fmt.Errorf("log_history[%d] is null: want a record", i)
	}
	switch {
	case best > s.GlobalStep:
		return fmt.Errorf("best_global_step is %d: want at most global_step, %d", best, s.GlobalStep)
	case s.BestMetric == nil && (s.BestGlobalStep != nil || s.BestModelCheckpoint != nil):
		return errors.New("best_metric is null beside best_global_step or best_model_checkpoint: want a number")
	}
	return nil
}
