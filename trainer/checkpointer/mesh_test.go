// SPDX-License-Identifier: Apache-2.0

package checkpointer_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// twoStages is a model of two stages. The first table is tied to the head, which the last stage has, and the last stage
// has buffers.
type twoStages struct {
	First  *nn.Embedding `nn:"first"`
	Middle *nn.Linear    `nn:"middle"`
	Norm   *nn.BatchNorm `nn:"norm"`
	Last   *nn.Linear    `nn:"last"`
	Head   *nn.LMHead    `nn:"head"`
}

func (*twoStages) Forward(*nn.Ctx, *data.Batch) models.Output { return models.Output{} }

func newTwoStages() *twoStages {
	in := nn.NewInit(tensor.CPU(), 1).Deferred()
	first := nn.NewEmbedding(in.Sub("first"), nn.EmbeddingConfig{Rows: 96, Dim: 64})
	return &twoStages{First: first, Middle: nn.NewLinear(in.Sub("middle"), nn.LinearConfig{In: 64, Out: 64}),
		Norm: nn.NewBatchNorm(in.Sub("norm"), nn.BatchNormConfig{Channels: 64}),
		Last: nn.NewLinear(in.Sub("last"), nn.LinearConfig{In: 64, Out: 64}), Head: &nn.LMHead{Weight: first.Weight}}
}

// stageOf are the stages that have a parameter or buffer.
func stageOf(name string) []int {
	switch module, _, _ := strings.Cut(name, "."); module {
	case "first":
		return []int{0, 1}
	case "middle":
		return []int{0}
	}
	return []int{1}
}

// rankOn is a rank's place on a mesh, as the strategy that would spread a twoStages over it: strategy.Shards.
type rankOn struct {
	mesh  comm.Mesh
	coord comm.Mesh
	c     *tensor.Ctx
	tree  *nn.Tree
	local map[string]*tensor.Tensor
}

// onMesh makes the model of a rank, with memory for what it has.
func onMesh(mesh comm.Mesh, rank int, m *twoStages) *rankOn {
	full, err := mesh.Of(mesh.Size(^comm.Axes(0)))
	if err != nil {
		panic(err)
	}
	r := &rankOn{mesh: mesh, c: tensor.NewCtx(tensor.CPU()).NoGrad(), tree: nn.Walk(m),
		local: map[string]*tensor.Tensor{}, coord: comm.Mesh{DPShard: full.Coord(rank, comm.DPShard),
			PP: full.Coord(rank, comm.PP), TP: full.Coord(rank, comm.TP)}}
	for _, p := range r.tree.State() {
		at := r.at(p)
		switch d, tp := divided[p.Name]; {
		case at.Numel() == 0 && at.BoxNumel() > 0:
		case r.Cut(p.Name):
			shape := []int{at.Numel()}
			if tp && mesh.TP > 1 && mesh.DPShard <= 1 {
				shape = slices.Clone(p.Shape())
				shape[d] /= mesh.TP
			}
			r.local[p.Name] = tensor.Zeros(r.c, p.DType(), shape...).SetRequiresGrad(true)
		default:
			r.local[p.Name] = p.Tensor
		}
	}
	if mesh.TP > 1 {
		r.tree.EachParameter(func(name string, p *nn.Parameter) {
			if _, ok := divided[name]; ok && r.local[name] != nil {
				p.Divide(r.local[name])
			}
		})
		r.tree = nn.Walk(m)
	}
	return r
}

// divided are the dims along which tensor parallelism divides parameters.
var divided = map[string]int{"first.weight": 0, "middle.weight": 0, "middle.bias": 0, "last.weight": 1}

func (r *rankOn) at(p tensor.Named) tensor.Placement {
	at := p.Placed().Placement
	if d, ok := divided[p.Name]; ok && r.mesh.TP > 1 { // as of two matrices one after the other, each divided
		half := p.Size(d) / 2
		own := half / r.mesh.TP
		at = at.Along(d, tensor.Range{Start: r.coord.TP * own, Stop: (r.coord.TP + 1) * own},
			tensor.Range{Start: half + r.coord.TP*own, Stop: half + (r.coord.TP+1)*own})
	}
	switch n := at.Numel(); {
	case r.mesh.PP > 1 && !slices.Contains(stageOf(p.Name), r.coord.PP):
		return at.Slice(0, 0)
	case r.mesh.DPShard > 1 && r.Cut(p.Name):
		return at.Slice(n*r.coord.DPShard/r.mesh.DPShard, n*(r.coord.DPShard+1)/r.mesh.DPShard)
	default:
		return at
	}
}

func (r *rankOn) Placed() (list []tensor.Placed) {
	for _, p := range r.tree.State() {
		if t := r.local[p.Name]; t != nil {
			list = append(list, tensor.Placed{Placement: r.at(p), Tensor: t})
		}
	}
	return list
}

func (r *rankOn) Cut(name string) bool {
	_, ok := divided[name]
	return r.mesh.DPShard > 1 && strings.HasSuffix(name, ".weight") || r.mesh.TP > 1 && ok
}

func (r *rankOn) Placement(name string) (at tensor.Placement, ok bool) {
	for i, p := range r.tree.State() {
		if p.Name == name && i < len(r.tree.Parameters()) {
			return r.at(p), true
		}
	}
	return at, false
}

func (*rankOn) Publish(context.Context) error { return nil }

// trained is what the rank's optimizer updates.
func (r *rankOn) trained() (list []tensor.Named) {
	for _, p := range r.tree.Parameters() {
		if t := r.local[p.Name]; t != nil {
			list = append(list, tensor.Named{Name: p.Name, Tensor: t})
		}
	}
	return list
}

// elements are those that a placement has of a tensor, as a save of a number has them.
func elements(save int64, dt tensor.DType, at tensor.Placement) (text []byte) {
	h := fnv.New32()
	fmt.Fprint(h, save, at.Name)
	for run := range at.Intersect(tensor.WholePlacement(at.Name, at.Shape...)) {
		for i := run.Other; i < run.Other+run.Len; i++ {
			switch x := float32((h.Sum32()+uint32(i)*2654435761)>>8) / (1 << 24); dt {
			case tensor.Float32:
				text = binary.LittleEndian.AppendUint32(text, math.Float32bits(x))
			default:
				text = binary.LittleEndian.AppendUint64(text, uint64(x*1000))
			}
		}
	}
	return text
}

// state lists all that a rank has of a run: of the model and of the optimizer.
func (r *rankOn) state(opt *optim.Optimizer) (list []tensor.Placed) {
	list = r.Placed()
	for name, t := range opt.State().Tensors {
		at, _ := r.Placement(name[:strings.LastIndexByte(name, '.')])
		list = append(list, tensor.Placed{Placement: at.Of(name, at.Shape...), Tensor: t})
	}
	return list
}

// folder is where a run saves.
type folder struct {
	disk vfs.FS
	dir  string
}

func inMemory() folder { return folder{vfs.NewMem(), "out"} }

// meshRun is the checkpointer of a rank on a mesh.
func meshRun(to folder, mesh comm.Mesh, g *comm.Group) (*checkpointer.Checkpointer, *rankOn, *optim.Optimizer) {
	m := newTwoStages()
	r := onMesh(mesh, g.Rank(), m)
	opt := optim.AdamW{}.New(r.c, []*optim.Group{{Params: r.trained(), LR: 1}})
	c := &checkpointer.Checkpointer{Args: args.Default(to.dir), Model: m, Log: slog.New(slog.DiscardHandler),
		Store: &checkpoint.Store{Dir: to.dir, FS: to.disk, Log: slog.New(slog.DiscardHandler)}, Ctx: r.c,
		Ranks: peersOf(g), Mesh: mesh, Data: alone{}, First: g.Rank() == 0, Hook: &residual{}}
	for _, p := range r.tree.Parameters() { // as the accelerator has it, those of the rank's stage
		if r.local[p.Name] != nil {
			c.Params = append(c.Params, p)
		}
	}
	if g.Size() > 1 {
		c.Shards = r
	}
	return c, r, opt
}

func peersOf(g *comm.Group) checkpointer.Peers {
	if g.Size() == 1 {
		return alone{}
	}
	return new(ranks.PeersOf(g))
}

// onRanks runs f as the ranks of a mesh.
func onRanks(t *testing.T, mesh comm.Mesh, f func(g *comm.Group) error) {
	t.Helper()
	n := mesh.Size(^comm.Axes(0))
	opts := comm.Options{Timeout: 30 * time.Second, Log: slog.New(slog.DiscardHandler)}
	errs := make([]error, n)
	err := local.Run(n, opts, func(g *comm.Group) error {
		errs[g.Rank()] = f(g)
		return errs[g.Rank()]
	})
	require.NoError(t, errors.Join(append(errs, err)...))
}

// fill gives a rank its part of the state that a save of a number has, after one step.
func (r *rankOn) fill(save int64, opt *optim.Optimizer) {
	for _, p := range r.trained() {
		if opt.State().Steps[p.Name] == 0 {
			p.SwapGrad(tensor.Zeros(r.c, p.DType(), p.Shape()...), true)
		}
	}
	opt.Step(r.c)
	for _, p := range r.trained() {
		p.SwapGrad(nil, false)
	}
	for _, p := range r.state(opt) {
		tensor.CopyInto(r.c, p.Tensor, tensor.FromBytes(r.c, elements(save, p.Tensor.DType(), p.Placement),
			p.Tensor.DType(), p.Tensor.Shape()...))
	}
}

// numbered is a training loop at a step, whose save has a number.
func numbered(step, save int64) checkpointer.Loop {
	loop := counter(step)
	files := loop.Files
	loop.Files = func() map[string]any {
		list := files()
		list["save.json"] = save
		return list
	}
	return loop
}

// saveOn saves a run on a mesh.
func saveOn(t *testing.T, to folder, mesh comm.Mesh, set func(a *args.TrainingArguments)) {
	t.Helper()
	onRanks(t, mesh, func(g *comm.Group) error {
		c, r, opt := meshRun(to, mesh, g)
		set(c.Args)
		r.fill(1, opt)
		_, err := c.Save(t.Context(), numbered(7, 1), opt)
		return err
	})
}

var (
	meshes = []comm.Mesh{{}, {DPShard: 4}, {PP: 2}, {PP: 2, DPReplicate: 2}, {PP: 2, DPShard: 2},
		{PP: 2, DPReplicate: 2, DPShard: 2}, {TP: 4}, {DPReplicate: 2, TP: 2}, {DPShard: 2, TP: 2}, {PP: 2, TP: 2},
		{PP: 2, DPShard: 2, TP: 2}}
	whole     = func(*args.TrainingArguments) {}
	scattered = func(a *args.TrainingArguments) { a.FSDPStateDictType = args.ShardedStateDict }
)

// read is the content of a file.
func read(t *testing.T, disk vfs.FS, path string) string {
	text, err := vfs.ReadFile(disk, path, 1<<24)
	require.NoError(t, err)
	return string(text)
}

// exported copies a folder to the machine's disk.
func exported(t *testing.T, disk vfs.FS, path string) string {
	dir := t.TempDir()
	entries, err := disk.ReadDir(path)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.WriteFile(filepath.Join(dir, e.Name()), []byte(read(t, disk, path+"/"+e.Name())), 0o644))
	}
	return dir
}

// On any mesh a run saves the files of one rank, and from its shards the same are made. On any other mesh it resumes,
// and each rank reads the elements that it has and no others.
func TestCheckpointsOverMeshes(t *testing.T) {
	const path = "out/checkpoint-7"
	files := []string{"model.safetensors", "optimizer.safetensors", "optimizer.json"}
	one := inMemory()
	saveOn(t, one, comm.Mesh{}, whole)
	for _, mesh := range meshes {
		resumeOn(t, one, mesh)
		disk := inMemory()
		saveOn(t, disk, mesh, whole)
		for _, name := range files {
			require.Equal(t, read(t, one.disk, path+"/"+name), read(t, disk.disk, path+"/"+name), "%v: %s", mesh, name)
		}
		disk = inMemory()
		saveOn(t, disk, mesh, scattered)
		merged := t.TempDir()
		_, err := checkpointer.MergeWeights(t.Context(), exported(t, disk.disk, path), merged,
			checkpointer.MergeOptions{Optimizer: true})
		require.NoError(t, err)
		for _, name := range files {
			require.Equal(t, read(t, one.disk, path+"/"+name), read(t, vfs.OS, filepath.Join(merged, name)),
				"%v, merged: %s", mesh, name)
		}
		for _, other := range meshes {
			if !testing.Short() || other == (comm.Mesh{PP: 2, DPReplicate: 2}) {
				resumeOn(t, disk, other)
			}
		}
	}
}

// counts counts the bytes that are read of files of tensors.
type counts struct {
	mu sync.Mutex
	n  int
}

func (n *counts) fs(disk vfs.FS) vfs.FS {
	return errorfs.Wrap(disk, func(op errorfs.Op) error {
		if op.Kind == errorfs.Read && strings.HasSuffix(op.Path, ".safetensors") {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.n += op.Size
		}
		return nil
	})
}

// resumeOn resumes a run on a mesh, and checks what each rank has and has read.
func resumeOn(t *testing.T, from folder, mesh comm.Mesh) {
	t.Helper()
	onRanks(t, mesh, func(g *comm.Group) error {
		var n counts
		c, r, opt := meshRun(folder{n.fs(from.disk), from.dir}, mesh, g)
		c.Args.ResumeFromCheckpoint = "last"
		ck, err := c.Open(t.Context(), "", false)
		if err != nil {
			return err
		}
		verified := n.n
		var save int64
		if err := ck.ReadJSON("save.json", &save); err != nil {
			return err
		}
		headers, err := headersOf(from.disk, ck)
		if err != nil {
			return err
		}
		if err := c.Restore(t.Context(), ck, opt); err != nil {
			return err
		}
		for name, n := range opt.State().Steps {
			if n != 1 {
				return fmt.Errorf("%v, rank %d: %d steps of %s: want 1", mesh, g.Rank(), n, name)
			}
		}
		own := 0
		for _, p := range r.state(opt) {
			want := elements(save, p.Tensor.DType(), p.Placement)
			if string(want) != string(tensor.ReadBytes(r.c, p.Tensor)) {
				return fmt.Errorf("%v, rank %d: %v has other elements", mesh, g.Rank(), p.Placement)
			}
			own += len(want)
		}
		if verified > 0 != (g.Rank() == 0) {
			return fmt.Errorf("%v, rank %d read %d bytes to verify: want rank 0 to do so", mesh, g.Rank(), verified)
		}
		if got := n.n - verified; got < own || got > own+2*headers {
			return fmt.Errorf("%v, rank %d read %d bytes: want the %d that it has, and headers of at most %d", mesh,
				g.Rank(), got, own, 2*headers)
		}
		for _, p := range r.tree.Parameters() {
			if r.local[p.Name] == nil && p.Deferred() == nil {
				return fmt.Errorf("%v, rank %d: %s takes memory where it is not held", mesh, g.Rank(), p.Name)
			}
		}
		return nil
	})
}

// headersOf is the number of bytes of the files of tensors that are no elements.
func headersOf(disk vfs.FS, ck *checkpoint.Checkpoint) (n int, err error) {
	for _, f := range ck.Files {
		if strings.HasSuffix(f.Name, ".safetensors") {
			text, err := vfs.ReadFile(disk, filepath.Join(ck.Path, f.Name), 1<<24)
			if err != nil {
				return 0, err
			}
			n += 8 + int(binary.LittleEndian.Uint64(text))
		}
	}
	return n, nil
}

func TestAResumeSaysThatTheMeshIsAnother(t *testing.T) {
	for saved, want := range map[string]string{"": "", "dp_shard=1": "", "pp=2": "resuming on another mesh"} {
		disk := vfs.NewMem()
		c, opt := newRun(t, disk, 1)
		loop := counter(7)
		loop.Files = func() map[string]any {
			return map[string]any{checkpointer.ProgressFile: checkpointer.Origin{MicroBatches: 1, Mesh: saved}}
		}
		_, err := c.Save(t.Context(), loop, opt)
		require.NoError(t, err)
		var log strings.Builder
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Args.ResumeFromCheckpoint = "last"
		_, err = c.Open(t.Context(), "", false)
		require.NoError(t, err)
		require.Contains(t, log.String(), want)
		require.Equal(t, want != "", strings.Contains(log.String(), "checkpoint=\"pp=2\" now=\"one rank\""),
			log.String())
	}
}
