// SPDX-License-Identifier: Apache-2.0

// Package loop saves and resumes training loops that a program writes by hand over an accelerate.Accelerator: what
// accelerate's save_state, load_state and register_for_checkpointing do. Package trainer has its own loop and does not
// use it. Checkpoints are those of package checkpoint: atomic, verified, and of any number of ranks. They hold the
// model, the optimizer, the loss scale of fp16, the place in the data and what the program registers.
package loop

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/accelerate/precision"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// Names of the files of a checkpoint beside those of package checkpointer.
const (
	registeredFile = "registered.json"
	samplerFile    = "sampler.json"
	scalerFile     = "scaler.json" // of fp16
)

// State is what a loop saves and resumes on one rank. Its methods with a context are collective. Load comes first.
type State struct {
	Accelerator *accelerate.Accelerator // that has prepared the model, with an optimizer
	Args        *args.TrainingArguments // checkpoints are written into output_dir
	Model       nn.Module
	Windows     *feed.Windows // the loop's data, before their first step; nil: the program keeps its place in them

	saver      *checkpointer.Checkpointer // nil before Load
	registered map[string]any
	origin     checkpointer.Origin
	release    func() // of output_dir; nil before Load, and after Close
}

// open readies the state for Load.
func (s *State) open() error {
	acc := s.Accelerator
	if acc.Optimizer() == nil {
		return errors.New("loop: the accelerator has no optimizer: want Prepare with an OptimizerFunc before Load")
	}
	if s.Args == nil || s.Model == nil {
		return errors.New("loop: a State without Args or Model: want both")
	}
	layout, err := acc.Layout()
	if err != nil {
		return err
	}
	job, _ := acc.Job()
	a, log := s.Args.Clone(), slog.Default() // ranks of one process have the same arguments
	s.saver = &checkpointer.Checkpointer{Args: a, Model: s.Model, Log: log, Ctx: acc.Ctx(), Ranks: acc,
		Store: &checkpoint.Store{Dir: a.OutputDir, Log: log}, Mesh: acc.Mesh(), First: acc.IsLocalMain(),
		OneHost: acc.OneHost(), Data: acc.DataRanks(), Hook: acc, Params: acc.Params(), Shards: acc.Shards()}
	s.origin = checkpointer.Origin{RunID: rand.Text(), Job: job, MicroBatches: layout.MicroBatches(),
		Mesh: acc.Mesh().String(), TensorParts: acc.TensorParts(), LossMemory: acc.Ctx().LossMemory()}
	return nil
}

var errNotLoaded = errors.New("loop: the state is saved before Load: want Load first, which also begins new runs")

// Register adds a value to every checkpoint, as accelerate's register_for_checkpointing does: a pointer, or another
// value into which JSON can be read. Save writes rank 0's, and Load reads it on all ranks: all register the same names
// before it.
func (s *State) Register(name string, v any) error {
	if s.release != nil {
		return fmt.Errorf("loop: Register %q after Load, which reads the registered values: want it before", name)
	}
	if kind := reflect.ValueOf(v).Kind(); kind != reflect.Pointer || reflect.ValueOf(v).IsNil() {
		return fmt.Errorf("loop: Register %q got a %T: want a non-nil pointer", name, v)
	}
	if _, ok := s.registered[name]; ok {
		return fmt.Errorf("loop: %q is registered already: want a name for each value", name)
	}
	switch text, err := json.Marshal(v); {
	case err != nil:
		return notJSON(name, v, err)
	case string(text) == "{}" && reflect.TypeOf(v).Elem().Kind() == reflect.Struct &&
		reflect.TypeOf(v).Elem().NumField() > 0:
		return fmt.Errorf("loop: Register %q: the JSON of a %T is empty: want exported fields, or MarshalJSON and "+
			"UnmarshalJSON", name, v)
	}
	if s.registered == nil {
		s.registered = map[string]any{}
	}
	s.registered[name] = v
	return nil
}

// Load resumes from the checkpoint that resume_from_checkpoint names, or after a restart by the launcher from the
// newest, and returns the optimizer steps done. Without one it begins a new run, at 0. It comes before the first step,
// and before Save: it claims output_dir for the run. A checkpoint resumes on any number of ranks, with as many
// micro-batches in a step as before. A later Load goes back to the checkpoint that Args then names, in the middle of a
// loop too; gradients that wait for a step are discarded.
func (s *State) Load(ctx context.Context) (step int64, err error) {
	if s.Accelerator == nil {
		return 0, errors.New("loop: a State without an Accelerator: want the prepared one")
	}
	err = s.Accelerator.Starting(func() error {
		if err := s.sameNames(ctx); err != nil {
			return err
		}
		if err := s.open(); err != nil {
			return err
		}
		s.Close()
		job, restarted := s.Accelerator.Job()
		ck, err := s.saver.Find(ctx, job, restarted)
		if err != nil {
			return fmt.Errorf("loop: %w", err)
		}
		release, err := s.saver.Claim(ctx, ck != nil)
		if err != nil {
			return fmt.Errorf("loop: %w", err)
		}
		if s.release = release; ck == nil {
			return nil
		}
		if err := s.restore(ctx, ck); err != nil {
			s.Close()
			return checkpointer.Refused(fmt.Errorf("loop: resume from %s: %w", ck.Path, err))
		}
		step = ck.Step
		return nil
	})
	return step, err
}

// sameNames refuses ranks that registered different values.
func (s *State) sameNames(ctx context.Context) error {
	mine := strings.Join(slices.Sorted(maps.Keys(s.registered)), ", ")
	all, err := s.Accelerator.GatherBytes(ctx, []byte(mine))
	if err != nil {
		return fmt.Errorf("loop: %w", err)
	}
	for rank, names := range all {
		if string(names) != string(all[0]) {
			return fmt.Errorf("loop: rank 0 registered [%s], and rank %d [%s]: want the same on all ranks", all[0],
				rank, names)
		}
	}
	return nil
}

// together makes an error of one rank one of all, so that none waits for it.
func (s *State) together(ctx context.Context, err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	all, lost := s.Accelerator.GatherBytes(ctx, []byte(text))
	if err != nil || lost != nil {
		return errors.Join(err, lost)
	}
	for rank, text := range all {
		if len(text) > 0 {
			return fmt.Errorf("loop: on rank %d: %s", rank, text)
		}
	}
	return nil
}

// restore reads a checkpoint: what can be refused first, then the model and the optimizer.
func (s *State) restore(ctx context.Context, ck *checkpoint.Checkpoint) error {
	var was checkpointer.Origin
	if err := ck.ReadJSON(checkpointer.ProgressFile, &was); err != nil {
		return err
	}
	if was.MicroBatches != s.origin.MicroBatches {
		return fmt.Errorf("a step of the saved run has %d micro-batches, a step of this run %d: want the same "+
			"global_train_batch_size and per_device_train_batch_size", was.MicroBatches, s.origin.MicroBatches)
	}
	if was.TensorParts != s.origin.TensorParts {
		return fmt.Errorf("the saved run computes sums that ranks share in %s, this run in %d: want tp_parts %d",
			quantity.Of(max(1, was.TensorParts), "part"), max(1, s.origin.TensorParts), max(1, was.TensorParts))
	}
	if !ck.Has(registeredFile) {
		return fmt.Errorf("it has no %s: want a checkpoint that loop.State saved", registeredFile)
	}
	if err := s.readRegistered(ck); err != nil {
		return fmt.Errorf("%s: %w", registeredFile, err)
	}
	if err := s.readPlace(ck); err != nil {
		return err
	}
	if err := s.Accelerator.EvalWeights(ctx); err != nil { // as the state was saved
		return err
	}
	s.Accelerator.ZeroGrad()
	if err := s.saver.Restore(ctx, ck, s.Accelerator.Optimizer()); err != nil {
		return err
	}
	if err := s.Accelerator.TrainWeights(ctx); err != nil {
		return err
	}
	s.origin.RunID = was.RunID
	return s.Accelerator.SetSteps(ctx, ck.Step)
}

// readRegistered reads the registered values, if they are those that were saved.
func (s *State) readRegistered(ck *checkpoint.Checkpoint) error {
	var saved map[string]json.RawMessage
	if err := ck.ReadJSON(registeredFile, &saved); err != nil {
		return err
	}
	want, got := slices.Sorted(maps.Keys(s.registered)), slices.Sorted(maps.Keys(saved))
	if !slices.Equal(want, got) {
		return fmt.Errorf("it has the values [%s], but [%s] are registered: want the same", strings.Join(got, ", "),
			strings.Join(want, ", "))
	}
	for _, name := range want {
		if v := reflect.ValueOf(s.registered[name]).Elem(); v.Kind() == reflect.Map {
			v.SetZero() // JSON would leave the keys that it has beside the saved ones
		}
		if err := json.Unmarshal(saved[name], s.registered[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// readPlace reads the place in the data and the loss scale.
func (s *State) readPlace(ck *checkpoint.Checkpoint) error {
	if s.Windows != nil {
		var place feed.Place
		if err := ck.ReadJSON(samplerFile, &place); err != nil {
			return err
		}
		if err := s.Windows.Restore(place); err != nil {
			return fmt.Errorf("the training set or its order has changed: %w", err)
		}
	}
	if scaler := s.Accelerator.Scaler(); scaler != nil {
		var saved precision.Scaler
		if err := ck.ReadJSON(scalerFile, &saved); err != nil {
			return err
		}
		return scaler.Restore(saved)
	}
	return nil
}

// Save writes a checkpoint after so many optimizer steps, between two windows, and deletes old ones as save_total_limit
// says. It returns the checkpoint's folder on rank 0, "" on others. An error on one rank is an error on all, and the
// loop may continue.
func (s *State) Save(ctx context.Context, step int64) (path string, err error) {
	if s.saver == nil {
		return "", errNotLoaded
	}
	ctx = context.WithoutCancel(ctx)
	registered, err := s.writeRegistered()
	if s.Accelerator.StepPending() {
		err = fmt.Errorf("loop: Save %d within a window, before a step has used its gradients: want it after Step, "+
			"or after ZeroGrad, which discards them", step)
	}
	if err := s.together(ctx, err); err != nil {
		return "", err
	}
	path, err = s.save(ctx, step, registered)
	if err != nil {
		err = fmt.Errorf("loop: %w", err)
	}
	if err := s.together(ctx, err); err != nil {
		return "", err
	}
	return path, nil
}

// save is Save when all ranks have agreed that they can.
func (s *State) save(ctx context.Context, step int64, registered map[string]json.RawMessage) (path string, err error) {
	if err := s.Accelerator.AverageState(ctx); err != nil {
		return "", err
	}
	if err := s.Accelerator.EvalWeights(ctx); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Accelerator.TrainWeights(ctx)) }()
	state := callbacks.NewState(s.saver.Args, step)
	state.GlobalStep = step
	info, err := s.saver.Save(ctx, checkpointer.Loop{RunID: s.origin.RunID, Step: step,
		Files: func() map[string]any { return s.files(registered) },
		State: func() *callbacks.State { return state }}, s.Accelerator.Optimizer())
	if err == nil && s.Accelerator.IsMain() {
		s.saver.Rotate(s.origin.RunID, nil)
	}
	if err := s.saver.Mirror(ctx, info, err); err != nil || !s.Accelerator.IsMain() {
		return "", err
	}
	return info.Path, nil
}

// notJSON is the error of a registered value that JSON cannot write.
func notJSON(name string, v any, err error) error {
	return fmt.Errorf("loop: registered %q, a %T: %w: want a value that JSON can represent, without NaN and infinities",
		name, v, err)
}

// writeRegistered returns the registered values as JSON, those of rank 0.
func (s *State) writeRegistered() (map[string]json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	if !s.Accelerator.IsMain() {
		return all, nil
	}
	for name, v := range s.registered {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, notJSON(name, v, err)
		}
		all[name] = text
	}
	return all, nil
}

func (s *State) files(registered map[string]json.RawMessage) map[string]any {
	origin := s.origin
	origin.LossMemory = s.Accelerator.Ctx().LossMemory()
	files := map[string]any{checkpointer.ProgressFile: origin, registeredFile: registered}
	if s.Windows != nil {
		files[samplerFile] = s.Windows.Place()
	}
	if scaler := s.Accelerator.Scaler(); scaler != nil {
		files[scalerFile] = scaler
	}
	return files
}

// SaveModel writes the weights and config.json alone into dir, as accelerate's save_model does; "" is output_dir. It is
// collective where the model is sharded, and under save_on_each_node.
func (s *State) SaveModel(dir string) error {
	if s.saver == nil {
		return errNotLoaded
	}
	return s.saver.SaveModel(dir)
}

// Close gives output_dir up.
func (s *State) Close() {
	if s.release != nil {
		s.release()
	}
	s.release = nil
}
