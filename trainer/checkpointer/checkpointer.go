// SPDX-License-Identifier: Apache-2.0

package checkpointer

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Names of the files of a checkpoint beside the model's, the loop's and those of a communication hook.
const (
	ProgressFile = "progress.json"      // of the loop; begins with the Origin
	StateFile    = "trainer_state.json" // callbacks.State
	ArgsFile     = "training_args.json"

	optimizerTensors = "optimizer" // .safetensors, or in the files of several ranks
	optimizerFile    = "optimizer.json"
)

// Checkpointer saves the model of one rank and its runs, and resumes them. Where it writes or reads a sharded model,
// all ranks call the same methods.
type Checkpointer struct {
	Args  *args.TrainingArguments // a resume changes them
	Model nn.Module
	// Adapter is what is saved of a model whose other parameters are frozen; nil: all of it is.
	Adapter models.Adapter
	Beside  []checkpoint.Part // files beside the weights, such as a tokenizer's
	Store   *checkpoint.Store // of output_dir
	Log     *slog.Logger

	Ctx   *tensor.Ctx // what this rank computes in
	Ranks Peers       // all ranks of the job
	Mesh  comm.Mesh   // how they are arranged
	First bool        // of its host: it verifies the checkpoints that ranks of the host read
	// OneHost says that all ranks have the disk of rank 0: save_on_each_node has nothing to do.
	OneHost bool
	Data    Peers          // the ranks that see different data
	Hook    Hook           // the ranks' communication hook
	Params  []tensor.Named // trained, in the order of registration

	Shards strategy.Shards // nil: every rank has all of the model
}

// Peers are ranks of a job, and this one among them.
type Peers interface {
	Rank() int
	WorldSize() int
	Group() *comm.Group // nil of a rank that is alone
	// GatherBytes returns the bytes of all ranks on every rank. It is collective.
	GatherBytes(ctx context.Context, mine []byte) ([][]byte, error)
}

// Optimizer is an optimizer whose state is saved: *optim.Optimizer.
type Optimizer interface {
	Name() string
	State() optim.StateDict
	Describe(p tensor.Named) []optim.StateTensor
	ReadState(name string, steps map[string]int64, tensors map[string]optim.Saved) error
}

// Loop is the training loop whose run is saved. State and Files are called only on ranks that write what they return.
type Loop struct {
	RunID string
	Step  int64 // optimizer steps done
	State func() *callbacks.State
	// Files are values for JSON, by the names of the files, without which a run cannot continue.
	Files func() map[string]any
}

// Origin begins progress.json: it says which run wrote a checkpoint, and how it cut its steps.
type Origin struct {
	RunID string `json:"run_id"`
	// Job is the launcher's, "" without one: a restart continues from its own checkpoints.
	Job          string `json:"job"`
	MicroBatches int64  `json:"leaves"` // of an optimizer step, over all ranks
	// Mesh is how the ranks were arranged, as comm.ParseMesh reads it; "" in older checkpoints.
	Mesh string `json:"mesh,omitempty"`
	// TensorParts is how many parts each sum has that ranks along tp share (tp_parts); 0: sums are whole.
	TensorParts int `json:"tp_parts,omitempty"`
	// LossMemory decides in how many pieces a device sums the loss of a language model; see tensor.Ctx.LossMemory.
	LossMemory int64 `json:"loss_memory,omitempty"`
}

// at is the store of a folder; "" is output_dir.
func (c *Checkpointer) at(dir string) *checkpoint.Store {
	if dir == "" || SameFolder(dir, c.Args.OutputDir) {
		return c.Store // which may hold the folder
	}
	return &checkpoint.Store{Dir: dir, FS: c.Store.FS, Log: c.Log}
}

// SameFolder reports whether two paths name one folder.
func SameFolder(a, b string) bool {
	absA, errA := filepath.Abs(a)
	absB, errB := filepath.Abs(b)
	return errA == nil && errB == nil && absA == absB
}

// failTogether makes an error of one rank one of all. It is collective.
func (c *Checkpointer) failTogether(ctx context.Context, err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	all, lost := c.Ranks.GatherBytes(ctx, []byte(text))
	if err != nil || lost != nil {
		return errors.Join(err, lost)
	}
	for rank, text := range all {
		if len(text) > 0 {
			return &peerError{rank, string(text)}
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
