// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
)

// Open opens the checkpoint to resume from, nil for a new run, and settles the arguments with those of the checkpoint.
// job is the launcher's, "" without one, and restarted tells whether it started this process again. All ranks call it.
func (c *Checkpointer) Open(ctx context.Context, job string, restarted bool) (ck *checkpoint.Checkpoint, err error) {
	if ck, err = c.Find(ctx, job, restarted); ck == nil || err != nil {
		return nil, err
	}
	if err := c.settleArgs(ck); err != nil {
		return nil, Refused(fmt.Errorf("resume from %s: %w", ck.Path, err))
	}
	return ck, nil
}

// Find is Open that leaves the arguments unchanged.
func (c *Checkpointer) Find(ctx context.Context, job string, restarted bool) (ck *checkpoint.Checkpoint, err error) {
	if c.Ranks.Rank() == 0 {
		if ck, err = c.find(ctx, job, restarted); err != nil {
			return nil, Refused(err)
		}
	}
	if ck, err = c.share(ctx, ck); ck == nil || err != nil {
		return nil, err
	}
	if !ck.Has(ProgressFile) {
		return nil, Refuse("%s holds only a model (save_only_model): a run cannot resume from it", ck.Path)
	}
	return ck, nil
}

// find opens the checkpoint to resume from, nil for a new run.
func (c *Checkpointer) find(ctx context.Context, job string, restarted bool) (*checkpoint.Checkpoint, error) {
	if restarted && job != "" { // a restart continues where it was
		if ck, err := c.ofJob(ctx, job); ck != nil || err != nil {
			return ck, err
		}
	}
	path, last := c.Args.ResumePath()
	var ck *checkpoint.Checkpoint
	var err error
	switch {
	case path == "" && !last:
		return nil, nil
	case last:
		ck, err = c.Store.Latest(ctx)
	default:
		ck, err = c.open(ctx, path)
	}
	if err != nil {
		return nil, fmt.Errorf("resume_from_checkpoint = %s: %w", c.Args.ResumeFromCheckpoint, err)
	}
	return ck, nil
}

// open verifies and opens the checkpoint of a path.
func (c *Checkpointer) open(ctx context.Context, path string) (*checkpoint.Checkpoint, error) {
	return c.at(filepath.Dir(path)).Open(ctx, filepath.Base(path))
}

// shared is what rank 0 tells of the checkpoint that it found.
type shared struct {
	Path string `json:"path"`
	Sum  string `json:"sum"` // of the manifest
}

// share opens the checkpoint that rank 0 found on the other ranks. If each rank searched by itself, it could find a
// different one: a launcher on another host has its own number, and a shared folder may show new files a little later.
// One rank of each host reads every byte, to verify it; the others read what they need. If one fails, all do.
func (c *Checkpointer) share(ctx context.Context, found *checkpoint.Checkpoint) (*checkpoint.Checkpoint, error) {
	var mine shared
	if found != nil {
		mine = shared{found.Path, found.SHA256}
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	all, err := c.Ranks.GatherBytes(ctx, text)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(all[0], &mine); err != nil || mine.Path == "" {
		return nil, err
	}
	ck := found
	if c.Ranks.Rank() != 0 {
		ck, err = c.follow(ctx, mine)
	}
	return ck, c.failTogether(ctx, err)
}

// follow opens the checkpoint that rank 0 has opened.
func (c *Checkpointer) follow(ctx context.Context, s shared) (*checkpoint.Checkpoint, error) {
	store := c.at(filepath.Dir(s.Path))
	var err error
	if c.First {
		_, err = store.Open(ctx, filepath.Base(s.Path))
	}
	var ck *checkpoint.Checkpoint
	if err == nil {
		ck, err = store.OpenVerified(filepath.Base(s.Path), s.Sum)
	}
	if err != nil {
		return nil, fmt.Errorf("this rank cannot open the checkpoint that rank 0 has opened: want the same output "+
			"folder on all hosts, or the checkpoint on each (save_on_each_node): %w", err)
	}
	return ck, nil
}

// ofJob is the newest checkpoint if this very job wrote it before its launcher restarted it, else nil.
func (c *Checkpointer) ofJob(ctx context.Context, job string) (*checkpoint.Checkpoint, error) {
	ck, err := c.Store.Latest(ctx)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("restart of job %s: %w", job, err)
	}
	var saved Origin
	if !ck.Has(ProgressFile) {
		return nil, nil
	}
	if err := ck.ReadJSON(ProgressFile, &saved); err != nil || saved.Job != job {
		return nil, err
	}
	return ck, nil
}

// streamKeys decide how the training stream is cut and gradients are added. A resumed run keeps them on any number of
// ranks; otherwise its bits and its samples would differ.
var streamKeys = []string{"per_device_train_batch_size", "gradient_accumulation_steps", "global_train_batch_size",
	"deterministic_ranks", "data_sharding", "accelerator_config"}

// recordKeys are the arguments by which a run logs, evaluates and saves: they change no weights, but which checkpoint
// is the best and which steps are on record.
var recordKeys = []string{"logging_strategy", "logging_steps", "eval_strategy", "eval_steps", "save_strategy",
	"save_steps"}

// checkState refuses arguments under which weights or an optimizer have other tensors than the checkpoint's.
func (c *Checkpointer) checkState(old, now *args.TrainingArguments) error {
	if (old.EMADecay > 0) != (now.EMADecay > 0) {
		return fmt.Errorf("it was saved with ema_decay %g, this run has %g: want both above 0 or both 0, since "+
			"ema_decay saves the averaged weights", old.EMADecay, now.EMADecay)
	}
	half := false
	nn.Walk(c.Model).EachParameter(func(_ string, p *nn.Parameter) {
		half = half || p.RequiresGrad() && p.DType().IsHalf()
	})
	if half && (old.HalfUpdate == args.HalfUpdateKahan) != (now.HalfUpdate == args.HalfUpdateKahan) {
		return fmt.Errorf("it was saved with half_update %s, this run has %s: want kahan for both or for neither, "+
			"since only kahan saves a compensation for each weight", old.HalfUpdate, now.HalfUpdate)
	}
	return nil
}

// settleArgs compares the arguments with those of the checkpoint. Arguments that cut the training stream are taken from
// the checkpoint; every other difference that changes numbers is allowed and logged.
func (c *Checkpointer) settleArgs(ck *checkpoint.Checkpoint) error {
	text, err := ck.ReadPart(ArgsFile)
	if err != nil {
		return err
	}
	old, err := args.FromJSON(text)
	if err != nil {
		return fmt.Errorf("%s: %w", ArgsFile, err)
	}
	a := c.Args.Clone()
	if err := c.checkState(old, a); err != nil {
		return err
	}
	c.settleChunks(old, a)
	for _, d := range old.Diff(a) {
		switch {
		case slices.Contains(streamKeys, d.Key):
			c.Log.Warn("resume keeps the checkpoint's value", "key", d.Key, "checkpoint", d.Old, "ignored", d.New)
		case d.Key == "tp_parts" || d.Key == "tp_plan" && len(a.TPPlan) == 0: // see keepTensors
		case d.Key == "num_train_epochs" && old.MaxSteps > 0 && a.MaxSteps == old.MaxSteps:
			// max_steps decides
		case slices.Contains(recordKeys, d.Key):
			c.Log.Warn("resuming with a changed setting: the run logs, evaluates or saves at other steps than before",
				"key", d.Key, "checkpoint", d.Old, "now", d.New)
		case d.Fixed, strings.HasPrefix(d.Key, "cp_") && rings(old, a):
			c.Log.Warn("resuming with a changed setting: the result will differ from that of an uninterrupted run",
				"key", d.Key, "checkpoint", d.Old, "now", d.New)
		}
	}
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = old.PerDeviceTrainBatchSize, old.GradientAccumulationSteps
	a.GlobalTrainBatchSize, a.DeterministicRanks = old.GlobalTrainBatchSize, old.DeterministicRanks
	a.DataSharding, a.AcceleratorConfig = old.DataSharding, old.AcceleratorConfig
	if err := a.Validate(); err != nil { // before numbers of it are multiplied
		return fmt.Errorf("%s: %w", ArgsFile, err)
	}
	var saved Origin
	if err := ck.ReadJSON(ProgressFile, &saved); err != nil {
		return err
	}
	if err := c.keepMicroBatches(saved.MicroBatches, a); err != nil {
		return err
	}
	if err := c.keepTensors(saved.TensorParts, old, a); err != nil {
		return err
	}
	if err := a.Validate(); err != nil {
		return fmt.Errorf("%s: %w", ArgsFile, err)
	}
	if now := c.Mesh.String(); saved.Mesh != "" && saved.Mesh != now {
		c.Log.Info("resuming on another mesh: each rank reads its part of the model", "checkpoint",
			described(saved.Mesh), "now", described(now))
	}
	*c.Args = *a
	return nil
}

// settleChunks makes a cut sequences into as many chunks as old did, unless that is too few for the ranks.
func (c *Checkpointer) settleChunks(old, a *args.TrainingArguments) {
	was, now, ranks := old.ContextChunks(), a.ContextChunks(), max(a.CPSize, a.SPSize, 1)
	if was == now || max(was, now) <= 1 {
		old.CPChunks = a.CPChunks // 0 may stand for it
		return
	}
	if ranks == 1 || was >= 2*ranks {
		if a.CPChunks > 0 {
			c.Log.Warn("resume keeps the checkpoint's value", "key", "cp_chunks", "checkpoint", was, "ignored", now)
		}
		a.CPChunks = was
	} else {
		a.CPChunks = now
	}
	old.CPChunks = was
}

// described is a mesh for a reader.
func described(mesh string) string {
	if mesh == (comm.Mesh{}).String() {
		return "one rank"
	}
	return mesh
}

// rings reports whether one of two runs forms sums in an order that depends on its ranks along cp.
func rings(old, a *args.TrainingArguments) bool {
	return slices.Contains([]args.CPStrategy{old.ContextStrategy(), a.ContextStrategy()}, args.CPRing)
}

// mostMicroBatches is far above the micro-batches of any step, and far below where their products overflow.
const mostMicroBatches = 1 << 20

// keepMicroBatches keeps the number of micro-batches of an optimizer step on a different number of ranks: each rank
// then accumulates more or fewer of them.
func (c *Checkpointer) keepMicroBatches(n int64, a *args.TrainingArguments) error {
	if n < 0 || n > mostMicroBatches {
		return fmt.Errorf("%s: leaves = %d: want 0 to %d", ProgressFile, n, mostMicroBatches)
	}
	if s, ok := a.BatchSharding(); ok && s.Split {
		return nil // the ranks share each micro-batch, however many they are
	}
	world := c.Data.WorldSize()
	perRank, err := a.AccumulationSteps(world)
	if err == nil && (n == 0 || int64(perRank*world) == n) {
		return nil
	}
	a.GlobalTrainBatchSize, a.GradientAccumulationSteps = a.PerDeviceTrainBatchSize*int(n), 1
	perRank, err = a.AccumulationSteps(world)
	if err != nil {
		return fmt.Errorf("a step of the run has %d micro-batches, which %d ranks cannot share evenly: %w", n, world,
			err)
	}
	c.Log.Warn("resuming on a different number of ranks keeps the micro-batches of a step", "micro_batches", n, "ranks",
		world, "accumulation", perRank)
	return nil
}

// keepTensors keeps the parts of sums, whichever ranks share them now, and the plan, unless the arguments have others.
func (c *Checkpointer) keepTensors(parts int, old, a *args.TrainingArguments) error {
	if parts < 0 || parts > mostMicroBatches {
		return fmt.Errorf("%s: tp_parts = %d: want 0 to %d", ProgressFile, parts, mostMicroBatches)
	}
	if len(a.TPPlan) == 0 {
		a.TPPlan = old.TPPlan
	}
	switch now := a.TPParts; {
	case now == 0 && parts > 0:
		if a.TPParts = parts; parts%a.TPSize != 0 {
			return fmt.Errorf("the run computes each sum in %s, which tp_size %d does not divide: want a tp_size "+
				"that does, or tp_parts %d, with which the result will differ from that of an uninterrupted run",
				quantity.Of(parts, "part"), a.TPSize, a.TPSize)
		}
	case max(now, 1) != max(parts, 1), parts == 0 && a.TPSize > 1:
		c.Log.Warn("resuming with a changed tp_parts: the result will differ from that of an uninterrupted run", "key",
			"tp_parts", "checkpoint", parts, "now", now, "tp_size", a.TPSize)
	}
	return nil
}

// Restore gives the model, the optimizer and the communication hook what a checkpoint holds of them. It refuses another
// optimizer before it changes anything. All ranks call it.
func (c *Checkpointer) Restore(ctx context.Context, ck *checkpoint.Checkpoint, opt Optimizer) error {
	var head optimizerState
	if err := ck.ReadJSON(optimizerFile, &head); err != nil {
		return err
	}
	if head.Name != opt.Name() {
		return fmt.Errorf("it was saved by optimizer %q, this run has %q", head.Name, opt.Name())
	}
	for name, n := range head.Steps {
		if n > ck.Step {
			return fmt.Errorf("%s: the step count of %s is %d: want at most the checkpoint's step, %d", optimizerFile,
				name, n, ck.Step)
		}
	}
	var saved Origin
	if err := ck.ReadJSON(ProgressFile, &saved); err != nil {
		return err
	}
	c.Ctx.SetLossMemory(saved.LossMemory)
	if err := c.ReadModel(ctx, ck); err != nil {
		return err
	}
	if err := c.restoreOptimizer(ck, opt, head); err != nil {
		return err
	}
	return c.restoreHook(ck)
}

// ReadBest fills the model from the best checkpoint, by its name in output_dir or its path. All ranks call it.
func (c *Checkpointer) ReadBest(ctx context.Context, best string) (path string, err error) {
	store := c.Store
	if filepath.Base(best) != best {
		store = c.at(filepath.Dir(best))
	}
	var ck *checkpoint.Checkpoint
	if c.Ranks.Rank() == 0 {
		ck, err = store.Open(ctx, filepath.Base(best))
	}
	if err := c.failTogether(ctx, err); err != nil {
		return "", err
	}
	if ck, err = c.share(ctx, ck); err != nil {
		return "", err
	}
	if err := c.ReadModel(ctx, ck); err != nil {
		return "", fmt.Errorf("%s: %w", ck.Path, err)
	}
	return ck.Path, nil
}

// ChangedFiles names the files of models.SidecarNames among Beside that the checkpoint has with other contents.
func (c *Checkpointer) ChangedFiles(ck *checkpoint.Checkpoint) (changed []string, err error) {
	for _, p := range c.Beside {
		i := slices.IndexFunc(ck.Files, func(f checkpoint.File) bool { return f.Name == p.Name })
		if i < 0 || !slices.Contains(models.SidecarNames, p.Name) {
			continue
		}
		h := sha256.New()
		if err := p.Write(h); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		if hex.EncodeToString(h.Sum(nil)) != ck.Files[i].SHA256 {
			changed = append(changed, p.Name)
		}
	}
	return changed, nil
}
