// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// Names of the loop's files in a checkpoint, beside checkpointer.ProgressFile.
const (
	schedulerFile = "scheduler.json"
	rngFile       = "rng_state.json"
	samplerFile   = "sampler.json"
	scalerFile    = "scaler.json" // of fp16
)

// rngState is rng_state.json. Random numbers are counted, not streamed: seed and position
// determine what comes next.
const generator = "philox4x32-10"

type rngState struct {
	Generator string `json:"generator"`
	Seed      uint64 `json:"seed"`
	Position  int64  `json:"position"`
}

// checkpointer saves and restores this rank's model and runs, as the model lies now.
func (t *Trainer) checkpointer() *checkpointer.Checkpointer {
	return &checkpointer.Checkpointer{Args: t.args, Model: t.model, Beside: t.parts, Store: t.store, Log: t.jobLog(),
		Ctx: t.acc.Ctx(), Ranks: t.acc, Mesh: t.acc.Mesh(), First: t.acc.IsLocalMain(), OneHost: t.acc.OneHost(),
		Data: t.acc.DataRanks(), Hook: t.acc, Params: t.acc.Params(), Shards: t.acc.Shards(), Adapter: t.adapter}
}

// savedState is the state of the run as a checkpoint has it.
func (r *run) savedState() *callbacks.State {
	r.state.StatefulCallbacks = r.callbacks.ExportStates(&r.control)
	return r.state
}

// files are the loop's files of a checkpoint.
func (r *run) files() map[string]any {
	p := &r.progress
	p.Job, _ = r.acc.Job()
	p.Mesh, p.TensorParts, p.LossMemory = r.acc.Mesh().String(), r.acc.TensorParts(), r.acc.Ctx().LossMemory()
	p.Data, p.Environment = r.fingerprint(), r.acc.Environment()
	p.Unlogged, p.MicroBatches = r.logged, r.windows.Layout().MicroBatches()
	files := map[string]any{
		schedulerFile:             r.scheduleToSave(),
		rngFile:                   rngState{generator, r.args.Seed, r.windows.Position()},
		samplerFile:               r.windows.Place(),
		checkpointer.ProgressFile: p,
	}
	if s := r.acc.Scaler(); s != nil {
		files[scalerFile] = s
	}
	return files
}

// save writes a checkpoint, even if ctx has ended, rotates the old ones and tells the callbacks.
func (r *run) save(ctx context.Context) error {
	defer r.region("save")()
	ctx = context.WithoutCancel(ctx)
	if err := r.settle(true); err != nil {
		return err
	}
	step := r.state.GlobalStep
	r.saved[step] = true
	if s := r.state.BestGlobalStep; s != nil && r.saved[*s] {
		r.state.BestModelCheckpoint = new(fmt.Sprintf("checkpoint-%d", *s))
	}
	if err := r.acc.AverageState(ctx); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	if err := r.acc.EvalWeights(ctx); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	path, err := r.write(ctx, checkpointer.Loop{RunID: r.progress.RunID, Step: step, State: r.savedState,
		Files: r.files})
	if err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	r.savedAt = step
	e := r.event()
	if r.acc.IsMain() {
		e.Checkpoint = path
	}
	return r.callbacks.Fire(callbacks.Save, e)
}

// write writes a checkpoint, or begins to (async_save). On rank 0 it returns the path of the newest one of this run
// that is complete.
func (r *run) write(ctx context.Context, loop checkpointer.Loop) (path string, err error) {
	c := r.checkpointer()
	if r.args.AsyncSave {
		write, err := c.Copy(ctx, loop, r.opt)
		if write != nil {
			r.writeLater(write)
		}
		return r.completed, err
	}
	info, err := c.Save(ctx, loop, r.opt)
	if err == nil && r.acc.IsMain() {
		r.checkpoint = info.Path
		c.Rotate(loop.RunID, c.Keep(r.state))
	}
	return info.Path, c.Mirror(ctx, info, err)
}

// SaveModel writes weights, config.json and the parts of WithParts into dir, each file
// atomically; an empty dir is output_dir. Weights of a model that was saved there before are replaced, whatever the
// number of their files. While a sharded model trains, and under save_on_each_node on several hosts, all ranks call it,
// before Close.
func (t *Trainer) SaveModel(dir string) error {
	if t.err != nil {
		return t.err
	}
	if t.acc.Incomplete() {
		return t.afterFailure(true, nil)
	}
	return t.checkpointer().SaveModel(dir)
}

// SaveState writes trainer_state.json into output_dir: on rank 0, and under save_on_each_node on the first rank of each
// other host, whose state it is. On others it does nothing.
func (t *Trainer) SaveState() error {
	if t.err != nil {
		return t.err
	}
	text, err := t.state.JSON()
	if err != nil || !t.checkpointer().Writes() {
		return err
	}
	return t.store.WriteFiles(context.Background(),
		[]checkpoint.Part{checkpoint.BytesPart(checkpointer.StateFile, text)})
}

// SaveMetrics writes <split>_results.json into output_dir and adds the metrics to
// all_results.json, like HuggingFace's save_metrics. Ranks write as in SaveState.
func (t *Trainer) SaveMetrics(split string, metrics map[string]float64) error {
	if t.err != nil {
		return t.err
	}
	if !t.checkpointer().Writes() {
		return nil
	}
	all := callbacks.Record{}
	if old, err := vfs.ReadFile(vfs.OS, filepath.Join(t.args.OutputDir, "all_results.json"), 16<<20); err == nil {
		if err := json.Unmarshal(old, &all); err != nil {
			t.log.Warn("all_results.json is damaged and will be rewritten", "err", err)
			all = callbacks.Record{}
		}
	}
	mine := recordOf(metrics)
	maps.Copy(all, mine)
	var parts []checkpoint.Part
	for _, file := range []struct {
		name string
		rec  callbacks.Record
	}{{split + "_results.json", mine}, {"all_results.json", all}} {
		part, err := checkpoint.JSONPart(file.name, file.rec)
		if err != nil {
			return fmt.Errorf("trainer: %w", err)
		}
		parts = append(parts, part)
	}
	return t.store.WriteFiles(context.Background(), parts)
}
