// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names of the parts of a checkpoint in addition to the model's.
const (
	optimizerTensors = "optimizer" // .safetensors
	optimizerFile    = "optimizer.json"
	schedulerFile    = "scheduler.json"
	rngFile          = "rng_state.json"
	samplerFile      = "sampler.json"
	scalerFile       = "scaler.json" // of fp16
	progressFile     = "progress.json"
	stateFile        = "trainer_state.json"
	argsFile         = "training_args.json"
)

// optimizerState is optimizer.json; the tensors are in optimizer.safetensors.
type optimizerState struct {
	Name  string           `json:"name"`
	Steps map[string]int64 `json:"steps"`
}

// schedulerState is scheduler.json. A schedule is a function of the step: what is saved
// lets a reader, and a resume, check it.
type schedulerState struct {
	Type     string    `json:"lr_scheduler_type"`
	LastStep int64     `json:"last_step"`
	LastLR   float64   `json:"last_lr"`  // of the first group
	BaseLRs  []float64 `json:"base_lrs"` // of all groups, before the schedule
}

// rngState is rng_state.json. Random numbers are counted, not streamed: seed and position
// determine what comes next.
const generator = "philox4x32-10"

type rngState struct {
	Generator string `json:"generator"`
	Seed      uint64 `json:"seed"`
	Position  int64  `json:"position"`
}

func newRunID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// save writes a checkpoint, rotates the old ones and tells the callbacks.
func (r *run) save(ctx context.Context) error {
	t := r.Trainer
	r.saved[t.state.GlobalStep] = true
	if s := t.state.BestGlobalStep; s != nil && r.saved[*s] {
		t.state.BestModelCheckpoint = new(fmt.Sprintf("checkpoint-%d", *s))
	}
	if err := accelerate.AverageState(ctx, r.acc); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	info, err := r.write(ctx)
	if err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	if !t.acc.IsMain() {
		r.savedAt = t.state.GlobalStep
		return t.fire(callbacks.Save)
	}
	r.savedAt, r.checkpoint = t.state.GlobalStep, info.Path
	r.rotate()
	e := t.event()
	e.Checkpoint = info.Path
	return t.callbacks.Fire(callbacks.Save, e)
}

// write writes a checkpoint. Of a sharded model, and of a communication hook with a state, it is collective.
func (r *run) write(ctx context.Context) (info checkpoint.Info, err error) {
	if r.scatters() {
		return r.writeShards(ctx)
	}
	head, placed, stateful, err := r.hookTensors()
	switch {
	case err != nil:
		return info, err
	case stateful:
		return r.writeWithHook(ctx, head, placed)
	case !r.acc.IsMain() && r.acc.Shards() == nil:
		return info, nil
	}
	parts, err := r.checkpointParts()
	if err != nil {
		return info, err
	}
	if !r.acc.IsMain() {
		return info, r.attend(parts)
	}
	err = r.acc.Summon(false, func() (err error) {
		info, err = r.store.Save(ctx, r.state.GlobalStep, checkpoint.Content{RunID: r.progress.RunID, Parts: parts})
		return err
	})
	return info, err
}

// attend takes part in gathering what rank 0 writes of a sharded model.
func (t *Trainer) attend(parts []checkpoint.Part) error {
	weights, err := t.weightFiles()
	if err != nil {
		return err
	}
	gathered := []string{optimizerTensors + ".safetensors"}
	for _, f := range weights {
		gathered = append(gathered, f.Name)
	}
	return t.acc.Summon(false, func() error {
		for _, p := range parts {
			if slices.Contains(gathered, p.Name) {
				if err := p.Write(io.Discard); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// rotate deletes old checkpoints except the best. A checkpoint that cannot be deleted does
// not end the run: the next save tries again.
func (r *run) rotate() {
	if r.args.SaveTotalLimit == nil {
		return
	}
	var keep []string
	if best := r.state.BestModelCheckpoint; best != nil {
		keep = append(keep, *best)
	}
	if _, err := r.store.Rotate(*r.args.SaveTotalLimit, r.progress.RunID, keep...); err != nil {
		r.log.Warn("save_total_limit: old checkpoints could not be deleted", "limit", *r.args.SaveTotalLimit, "err",
			err)
	}
}

// weightFiles are the files of the model's weights, of at most max_shard_size.
func (t *Trainer) weightFiles() ([]models.WeightFile, error) {
	size, err := t.args.ShardBytes()
	if err != nil {
		return nil, err
	}
	return models.WeightFiles(t.model, size, nil)
}

// modelParts are the files of a saved model: weights, config and the user's parts.
func (t *Trainer) modelParts() ([]checkpoint.Part, error) {
	files, err := t.weightFiles()
	if err != nil {
		return nil, err
	}
	var parts []checkpoint.Part
	for _, f := range files {
		parts = append(parts, checkpoint.Part(f))
	}
	beside, err := t.partsBeside()
	return append(parts, beside...), err
}

// partsBeside are the files beside a model's weights.
func (t *Trainer) partsBeside() (parts []checkpoint.Part, err error) {
	if m, ok := t.model.(models.Configured); ok {
		text, err := models.ConfigJSON(m)
		if err != nil {
			return nil, err
		}
		parts = append(parts, checkpoint.BytesPart(models.ConfigFile, text))
	}
	return append(parts, t.parts...), nil
}

// checkpointParts are all files of a checkpoint.
func (r *run) checkpointParts() ([]checkpoint.Part, error) {
	parts, err := r.modelParts()
	if err != nil {
		return nil, err
	}
	states, err := r.stateParts()
	if err != nil || r.args.SaveOnlyModel {
		return append(parts, states...), err
	}
	steps, tensors, err := r.optimizerParts()
	if err != nil {
		return nil, err
	}
	heads, err := r.resumeParts(steps)
	return slices.Concat(parts, states, []checkpoint.Part{tensors}, heads), err
}

// stateParts are the files of a checkpoint that say what was trained.
func (r *run) stateParts() ([]checkpoint.Part, error) {
	r.state.StatefulCallbacks = r.callbacks.ExportStates(&r.control)
	state, err := r.state.JSON()
	if err != nil {
		return nil, err
	}
	saved, err := r.args.JSON()
	if err != nil {
		return nil, err
	}
	return []checkpoint.Part{checkpoint.BytesPart(stateFile, state), checkpoint.BytesPart(argsFile, saved)}, nil
}

// resumeParts are the files of a checkpoint that a resume needs, beside the tensors. steps are the optimizer's.
func (r *run) resumeParts(steps map[string]int64) (parts []checkpoint.Part, err error) {
	r.progress.Job, _ = r.acc.Job()
	r.progress.Data, r.progress.Environment = r.fingerprint(), accelerate.EnvironmentOf(r.acc)
	r.progress.Unlogged, r.progress.Leaves = r.logged, r.windows.Layout().Leaves()
	for name, v := range map[string]any{
		optimizerFile: optimizerState{r.opt.Name(), steps},
		schedulerFile: schedulerState{string(r.args.LRSchedulerType), r.state.GlobalStep, r.learningRate(),
			r.opt.BaseLRs()},
		rngFile:      rngState{generator, r.args.Seed, r.windows.Position()},
		samplerFile:  r.windows.place(),
		progressFile: r.progress,
		scalerFile:   r.acc.Scaler(),
	} {
		if s, ok := v.(*accelerate.Scaler); ok && s == nil {
			continue
		}
		text, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("trainer: %s: %w", name, err)
		}
		parts = append(parts, checkpoint.BytesPart(name, append(text, '\n')))
	}
	return parts, nil
}

// optimizerParts are the steps of the optimizer's parameters and the file of its state. Where that is sharded, all
// ranks write the file together, see attend.
func (r *run) optimizerParts() (steps map[string]int64, file checkpoint.Part, err error) {
	opt := r.opt.State()
	file.Name = optimizerTensors + ".safetensors"
	shards := r.acc.Shards()
	if shards == nil {
		file.Write = func(w io.Writer) error { return checkpoint.SaveTensors(r.acc.Ctx(), w, named(opt.Tensors)) }
		return opt.Steps, file, nil
	}
	if steps, err = r.gatherSteps(opt.Steps); err != nil {
		return nil, file, err
	}
	var list []safetensors.Tensor
	for _, p := range r.acc.Params() {
		if _, ok := steps[p.Name]; !ok {
			continue
		}
		for _, st := range r.opt.Describe(p) {
			name := p.Name + "." + st.Name
			list = append(list, safetensors.Tensor{Name: name, DType: st.DType, Shape: st.Shape,
				Write: func(w io.Writer) error {
					whole, err := shards.Gather(r.ctx, p.Name, st.DType, opt.Tensors[name])
					if err == nil {
						_, err = w.Write(whole)
					}
					return err
				}})
		}
	}
	slices.SortFunc(list, func(a, b safetensors.Tensor) int { return strings.Compare(a.Name, b.Name) })
	file.Write = func(w io.Writer) error { return safetensors.Write(w, list, safetensors.PyTorchMetadata()) }
	return steps, file, nil
}

// gatherSteps gives all ranks the steps of all parameters. It is collective.
func (r *run) gatherSteps(mine map[string]int64) (steps map[string]int64, err error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	all, err := r.acc.Data().GatherBytes(r.ctx, text)
	if err != nil {
		return nil, err
	}
	for _, text := range all {
		if err := json.Unmarshal(text, &steps); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// named lists tensors in the order of their names.
func named(ts map[string]*tensor.Tensor) []tensor.Named {
	list := make([]tensor.Named, 0, len(ts))
	for _, name := range sortedKeys(ts) {
		list = append(list, tensor.Named{Name: name, Tensor: ts[name]})
	}
	return list
}

// SaveModel writes weights, config.json and the parts of WithParts into dir, each file
// atomically; an empty dir is output_dir. Weights of a model that was saved there before are replaced, whatever the
// number of their files. While a sharded model trains, all ranks call it.
func (t *Trainer) SaveModel(dir string) error {
	if t.err != nil {
		return t.err
	}
	if accelerate.Incomplete(t.acc) {
		return t.afterFailure(true, nil)
	}
	if !t.acc.IsMain() && t.acc.Shards() == nil {
		return nil
	}
	parts, err := t.modelParts()
	if err != nil {
		return err
	}
	if !t.acc.IsMain() {
		return t.attend(parts)
	}
	weights, err := t.weightFiles()
	if err != nil {
		return err
	}
	saved, err := t.args.JSON()
	if err != nil {
		return err
	}
	return t.acc.Summon(false, func() error {
		return t.storeAt(dir).ReplaceFiles(context.Background(), append(parts, checkpoint.BytesPart(argsFile, saved)),
			func(existing []string) (before, after []string) { return models.StaleWeights(existing, weights) })
	})
}

// SaveState writes trainer_state.json into output_dir.
func (t *Trainer) SaveState() error {
	if t.err != nil {
		return t.err
	}
	text, err := t.state.JSON()
	if err != nil || !t.acc.IsMain() {
		return err
	}
	return t.store.WriteFiles(context.Background(), []checkpoint.Part{checkpoint.BytesPart(stateFile, text)})
}

// SaveMetrics writes <split>_results.json into output_dir and adds the metrics to
// all_results.json, like HuggingFace's save_metrics.
func (t *Trainer) SaveMetrics(split string, metrics map[string]float64) error {
	if t.err != nil {
		return t.err
	}
	if !t.acc.IsMain() {
		return nil
	}
	all := callbacks.Record{}
	if old, err := vfs.ReadFile(vfs.OS, filepath.Join(t.args.OutputDir, "all_results.json"), 16<<20); err == nil {
		if err := json.Unmarshal(old, &all); err != nil {
			t.log.Warn("all_results.json is damaged and will be rewritten", "err", err)
			all = callbacks.Record{}
		}
	}
	mine := callbacks.Record{}
	for k, v := range metrics {
		mine[k] = v
	}
	maps.Copy(all, mine)
	var parts []checkpoint.Part
	for _, file := range []struct {
		name string
		rec  callbacks.Record
	}{{split + "_results.json", mine}, {"all_results.json", all}} {
		text, err := json.MarshalIndent(file.rec, "", "  ")
		if err != nil {
			return fmt.Errorf("trainer: %s: %w", file.name, err)
		}
		parts = append(parts, checkpoint.BytesPart(file.name, append(text, '\n')))
	}
	return t.store.WriteFiles(context.Background(), parts)
}

func (t *Trainer) storeAt(dir string) *checkpoint.Store {
	if dir == "" || sameFolder(dir, t.args.OutputDir) {
		return t.store // which may hold the folder
	}
	return &checkpoint.Store{Dir: dir, FS: t.fsys, Log: t.log}
}

// watchBest keeps the best value of the watched metric. An evaluation before the first step is no
// candidate.
func (r *run) watchBest(metrics map[string]float64) error {
	name := r.args.BestMetric()
	if name == "" {
		return nil
	}
	v, ok := metrics[name]
	if !ok {
		return r.noSuchMetric(sortedKeys(metrics))
	}
	if r.state.GlobalStep > 0 && r.state.Improves(v, r.args.BestIsGreater()) {
		r.state.SetBest(v, r.args.SaveStrategy != args.StrategyNo)
		if r.args.SaveStrategy == args.StrategyBest {
			r.control.ShouldSave = true
		}
	}
	return nil
}

// checkBest refuses a metric_for_best_model that no evaluation can have, before training.
// The names of metrics from WithMetrics are only known after the first evaluation.
func (t *Trainer) checkBest() error {
	name := t.args.BestMetric()
	if name == "" || len(t.evals) == 0 || len(t.activeMetrics()) > 0 {
		return nil
	}
	var known []string
	for _, set := range t.evals {
		for _, key := range []string{"loss", "runtime", "samples_per_second", "steps_per_second"} {
			known = append(known, set.prefix()+key)
		}
	}
	if !slices.Contains(known, name) {
		return t.noSuchMetric(known)
	}
	return nil
}

func (t *Trainer) noSuchMetric(known []string) error {
	return fmt.Errorf("trainer: metric_for_best_model = %q: the evaluation has no %s: want one of %s",
		t.args.MetricForBestModel, t.args.BestMetric(), strings.Join(known, ", "))
}
