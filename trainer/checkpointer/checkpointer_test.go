// SPDX-License-Identifier: Apache-2.0

package checkpointer_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// alone is the only rank of a job.
type alone struct{ g *comm.Group }

func (alone) Rank() int            { return 0 }
func (alone) WorldSize() int       { return 1 }
func (a alone) Group() *comm.Group { return a.g }
func (alone) GatherBytes(_ context.Context, mine []byte) ([][]byte, error) {
	return [][]byte{mine}, nil
}

// residual is a communication hook with a state.
type residual struct{ own, loaded []float32 }

func (r *residual) HookState() (string, ddp.HookState, bool) {
	return "residual", ddp.HookState{Steps: 3, Own: map[string][]float32{"w": r.own}}, r.own != nil
}

func (r *residual) SetHookState(_ string, ranks []ddp.HookState) error {
	r.loaded = ranks[0].Own["w"]
	return nil
}

// counter is a training loop that has done some steps.
func counter(steps int64) checkpointer.Loop {
	return checkpointer.Loop{RunID: "a run", Step: steps,
		State: func() *callbacks.State { return &callbacks.State{GlobalStep: steps} },
		Files: func() map[string]any {
			return map[string]any{
				checkpointer.ProgressFile: checkpointer.Origin{RunID: "a run", Job: "a job", MicroBatches: 1},
				"counter.json":            steps,
			}
		}}
}

// newRun is what saves into a folder, with an optimizer whose moments are not zero.
func newRun(t *testing.T, disk vfs.FS, seed uint64) (*checkpointer.Checkpointer, *optim.Optimizer) {
	m, err := mlp.New(nn.NewInit(tensor.CPU(), seed), mlp.Config{Sizes: []int{2, 3, 1}})
	require.NoError(t, err)
	c, rank := tensor.NewCtx(tensor.CPU()), alone{local.New(1, comm.Options{})[0]}
	params := nn.NamedParameters(m)
	opt := optim.AdamW{}.New(c, []*optim.Group{{Params: params, LR: 1}})
	for _, p := range params {
		p.SwapGrad(tensor.Full(c.NoGrad(), p.DType(), float64(seed), p.Shape()...), true)
	}
	opt.Step(c)
	return &checkpointer.Checkpointer{Args: args.Default("out"), Model: m, Log: slog.New(slog.DiscardHandler),
		Store: &checkpoint.Store{Dir: "out", FS: disk}, Ctx: c, Ranks: rank, Data: rank, Hook: &residual{},
		Params: params}, opt
}

// values are the bits of a model and of its optimizer.
func values(c *checkpointer.Checkpointer, opt *optim.Optimizer) map[string][]byte {
	all := map[string][]byte{}
	for _, p := range nn.NamedParameters(c.Model) {
		all[p.Name] = tensor.ReadBytes(c.Ctx, p.Tensor)
	}
	for name, s := range opt.State().Tensors {
		all[name] = tensor.ReadBytes(c.Ctx, s)
	}
	return all
}

func TestARunIsSavedAndRestoredWithoutATrainer(t *testing.T) {
	for _, hook := range [][]float32{nil, {1, -2, 0.5}} {
		disk := vfs.NewMem()
		c, opt := newRun(t, disk, 1)
		c.Hook = &residual{own: hook}
		info, err := c.Save(t.Context(), counter(7), opt)
		require.NoError(t, err)
		require.Equal(t, "checkpoint-7", info.Name())

		other, fresh := newRun(t, disk, 2)
		require.NotEqual(t, values(c, opt), values(other, fresh))
		other.Args.ResumeFromCheckpoint = "last"
		ck, err := other.Open(t.Context(), "", false)
		require.NoError(t, err)
		var step int64
		require.NoError(t, ck.ReadJSON("counter.json", &step))
		require.EqualValues(t, 7, step)
		require.NoError(t, other.Restore(t.Context(), ck, fresh))
		require.Equal(t, values(c, opt), values(other, fresh))
		require.Equal(t, hook, other.Hook.(*residual).loaded)
	}
}

func TestARestartGoesOnWithItsOwnCheckpointAlone(t *testing.T) {
	disk := vfs.NewMem()
	c, opt := newRun(t, disk, 1)
	_, err := c.Save(t.Context(), counter(7), opt)
	require.NoError(t, err)
	for _, at := range []struct {
		job       string
		restarted bool
		found     bool
	}{{"a job", true, true}, {"a job", false, false}, {"another", true, false}, {"", true, false}} {
		ck, err := c.Open(t.Context(), at.job, at.restarted)
		require.NoError(t, err)
		require.Equal(t, at.found, ck != nil, "%+v", at)
	}
}

func TestFilesBesideTheModelThatHaveChangedAreNamed(t *testing.T) {
	disk := vfs.NewMem()
	c, opt := newRun(t, disk, 1)
	for name, text := range map[string]string{"tokenizer.json": "one", "vocab.txt": "two", "notes.txt": "three"} {
		c.Beside = append(c.Beside, checkpoint.BytesPart(name, []byte(text)))
	}
	info, err := c.Save(t.Context(), counter(7), opt)
	require.NoError(t, err)
	ck, err := c.Store.Open(t.Context(), info.Name())
	require.NoError(t, err)
	changed, err := c.ChangedFiles(ck)
	require.NoError(t, err)
	require.Empty(t, changed)
	for i, p := range c.Beside {
		if p.Name != "vocab.txt" {
			c.Beside[i] = checkpoint.BytesPart(p.Name, []byte("another"))
		}
	}
	changed, err = c.ChangedFiles(ck)
	require.NoError(t, err)
	require.Equal(t, []string{"tokenizer.json"}, changed, "notes.txt belongs to no tokenizer")
}

// A checkpoint has its files in one order, so that two saves of the same state have the same manifest except for the
// time.
func TestFilesAreWrittenInOneOrder(t *testing.T) {
	var lists [][]string
	for range 8 {
		c, opt := newRun(t, vfs.NewMem(), 1)
		info, err := c.Save(t.Context(), counter(7), opt)
		require.NoError(t, err)
		var names []string
		for _, f := range info.Files {
			names = append(names, f.Name)
		}
		lists = append(lists, names)
	}
	require.Len(t, slices.CompactFunc(lists, slices.Equal), 1)
	require.Equal(t, []string{"model.safetensors", "config.json", "trainer_state.json", "training_args.json",
		"optimizer.safetensors", "counter.json", "optimizer.json", "progress.json"}, lists[0])
}
