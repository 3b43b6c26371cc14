// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Placed is a part of a tensor that a rank has.
type Placed struct {
	tensor.Placement
	Set   string // the set of tensors that it belongs to, "model" or "optimizer": the base name for OpenTensors
	DType tensor.DType
	// Write writes the elements, little-endian. It is called at most once: not for an empty part, nor for one that a
	// rank before has too.
	Write func(w io.Writer) error
}

// NewPlaced is a part of a tensor of the set whose elements are those of p.Tensor. It is copied to the host when it is
// written.
func NewPlaced(c *tensor.Ctx, set string, p tensor.Placed) Placed {
	return Placed{Placement: p.Placement, Set: set, DType: p.Tensor.DType(), Write: func(w io.Writer) (err error) {
		if fault := tensor.Try(func() { _, err = w.Write(tensor.ReadBytes(c, p.Tensor)) }); fault != nil {
			return fault
		}
		return err
	}}
}

// RankError says that a collective save or load failed on another rank.
type RankError struct {
	Rank    int    // in the job
	Message string // of the error on that rank
}

// Error implements error.
func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Message) }

// SaveShards writes the checkpoint checkpoint-<step> as Save does, but by all ranks of g together: each writes what
// it has of tensors into a file, shard-0000k-of-0000n.safetensors, and rank 0 writes the other parts, pieces.json,
// which lists what each file has of each tensor, and the manifest. All ranks call it, with the same step; their stores
// must mean the same folder. The tensors of a set are read with OpenTensors, by any number of ranks. A nil g is one
// rank.
//
// If one rank fails, all ranks return an error that names it (a RankError on the others) and the checkpoint does not
// appear. If a rank is lost, the others return the group's error; then a temporary folder may stay until the next save.
// A cancelled ctx counts as a failure of the rank whose it is.
func (s *Store) SaveShards(ctx context.Context, g *comm.Group, step int64, content Content) (Info, error) {
	name := fmt.Sprintf("%s%d", prefix, step)
	sv := &shardSave{s: s, g: g, step: step, name: name, content: content}
	if sv.first() { // the ranks may share the store
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	info, err := sv.save(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("saving %s: %w", s.path(name), err)
	}
	return info, nil
}

// CheckShared returns an error, on all ranks, if their stores do not mean the same folder, so that SaveShards would
// fail. All ranks call it.
func (s *Store) CheckShared(ctx context.Context, g *comm.Group) error {
	probe, err := "", error(nil)
	if g.Rank() == 0 {
		probe = s.path(writePrefix + "probe-" + rand.Text()) // the next save would remove it
		if err = vfs.MkdirAll(s.fs(), s.Dir); err == nil {
			err = s.fs().Mkdir(probe)
		}
		if err == nil {
			defer func() { _ = s.fs().Remove(probe) }() // after all have looked
		}
	}
	names, err := agree(ctx, g, "probe", filepath.Base(probe), err)
	if err != nil {
		return err
	}
	if _, err = s.fs().Stat(s.path(names[0])); errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("a folder that rank 0 made in %s is not here: want the same output folder on all hosts: %w",
			s.Dir, err)
	}
	_, err = agree(ctx, g, "look", 0, err)
	return err
}

// shardSave is one rank's side of SaveShards.
type shardSave struct {
	s       *Store
	g       *comm.Group
	step    int64
	name    string
	content Content

	info   Info   // of the checkpoint; complete on rank 0 alone until the end
	tmp    string // name of the temporary folder
	index  safetensors.Placements
	mine   string // name of this rank's file, "" if it writes no elements
	writes []bool // which of content.Placed
	short  bool   // this rank's writing was cut short
}

func (sv *shardSave) rank() int {
	if sv.g == nil {
		return 0
	}
	return sv.g.Rank()
}

func (sv *shardSave) first() bool { return sv.rank() == 0 }

// together reports whether tensors may lie in the files of several ranks.
func (sv *shardSave) together() bool { return sv.g != nil || len(sv.content.Placed) > 0 }

// opening is what ranks tell each other before anything of the checkpoint is written.
type opening struct {
	Step   int64         `json:"step"`
	Dir    string        `json:"dir,omitempty"` // rank 0's temporary folder
	ID     int64         `json:"id,omitempty"`  // of the save
	RunID  string        `json:"run_id,omitempty"`
	Placed []placedEntry `json:"placed"`
}

// placedEntry is a Placed without its elements.
type placedEntry struct {
	tensor.Placement
	Set   string
	DType string
}

// entries are the parts of a rank, checked, without their elements.
func entries(parts []Placed) (list []placedEntry, err error) {
	for _, p := range parts {
		if err := p.Validate(); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", p.Name, p.Set, err)
		}
		if p.Write == nil && p.Numel() > 0 {
			return nil, fmt.Errorf("%v of %s has no Write: want a function that writes its elements", p.Placement,
				p.Set)
		}
		list = append(list, placedEntry{p.Placement, p.Set, p.DType.String()})
	}
	return list, nil
}

func (sv *shardSave) save(ctx context.Context) (info Info, err error) {
	release := func() {}
	defer func() { release() }()
	open, openErr := opening{}, error(nil)
	panicked := sv.catch(&openErr, func() error {
		open, release, err = sv.open(ctx)
		return err
	})
	committed := false
	defer func() {
		if !committed {
			sv.clean()
		}
	}()
	all, err := agree(ctx, sv.g, "open", open, openErr)
	if err != nil {
		return Info{}, panicked.or(err)
	}
	first := all[0]
	sv.tmp, sv.info = first.Dir, Info{Path: sv.s.path(sv.name), Manifest: Manifest{FormatVersion: formatVersion,
		RunID: first.RunID, SaveID: first.ID, Step: sv.step}}
	files, err := sv.write(ctx, all)
	if err != nil {
		return Info{}, err
	}
	var aside string
	panicked = sv.catch(&err, func() error {
		if !sv.first() {
			return nil
		}
		aside, err = sv.commit(ctx, files)
		return err
	})
	committed = err == nil
	if err == nil && sv.first() {
		err = sv.s.finish(sv.info, aside)
	}
	infos, err := agree(ctx, sv.g, "commit", sv.info, err)
	if err != nil {
		return Info{}, panicked.or(err)
	}
	info = infos[0]
	info.Path = sv.s.path(sv.name) // which ranks may write differently
	committed = true
	return info, nil
}

// open checks what this rank is to write. Rank 0 takes the folder and makes the temporary one.
func (sv *shardSave) open(ctx context.Context) (open opening, release func(), err error) {
	open, release = opening{Step: sv.step, RunID: sv.content.RunID}, func() {}
	if sv.step < 0 {
		return open, release, fmt.Errorf("checkpoint of step %d: want a step of at least 0", sv.step)
	}
	if open.Placed, err = entries(sv.content.Placed); err != nil {
		return open, release, err
	}
	if !sv.first() {
		return open, release, ctx.Err()
	}
	parts := sv.content.Parts
	if sv.together() {
		parts = append([]Part{{Name: safetensors.PlacementsFile}, {Name: shardFile(0, 1)}}, parts...)
	}
	if err := (Content{Parts: parts}).check(); err != nil {
		return open, release, err
	}
	if release, err = sv.s.Acquire(ctx); err != nil {
		return open, func() {}, err
	}
	if open.ID, err = sv.s.prepare(); err != nil {
		return open, release, err
	}
	dir := fmt.Sprintf("%s%d-%d", writePrefix, sv.step, open.ID)
	if sv.g != nil { // a unique name: a rank of an earlier job that still lives must not write into it
		dir += "-" + rand.Text()
	}
	if err := sv.s.fs().Mkdir(sv.s.path(dir)); err != nil {
		return open, release, err
	}
	sv.tmp, open.Dir = dir, dir
	return open, release, ctx.Err()
}

// plan puts together what all ranks write. All ranks come to the same result.
func (sv *shardSave) plan(all []opening) error {
	var lists [][]placedEntry
	for r, open := range all {
		if open.Step != sv.step {
			return fmt.Errorf("rank %d saves step %d, rank %d step %d: want the same", sv.g.JobRank(r), open.Step,
				sv.g.JobRank(sv.g.Rank()), sv.step)
		}
		lists = append(lists, open.Placed)
	}
	turns := firsts(lists)
	writers := 0
	for _, mine := range turns {
		if slices.Contains(mine, true) {
			writers++
		}
	}
	files := make([]string, len(lists))
	k := 0
	for r, mine := range turns {
		if slices.Contains(mine, true) {
			files[r] = shardFile(k, writers)
			k++
		}
	}
	sv.mine, sv.writes = files[sv.rank()], turns[sv.rank()]
	var err error
	sv.index, err = indexOf(sv.g, lists, turns, files)
	return err
}

// indexOf says where the parts of tensors are: those that are a rank's turn in its file.
func indexOf(g *comm.Group, lists [][]placedEntry, turns [][]bool, files []string) (safetensors.Placements, error) {
	index := safetensors.Placements{}
	for r, list := range lists {
		for i, p := range list {
			err := add(index, p, files[r], turns[r][i])
			switch {
			case err == nil:
			case g != nil:
				return nil, fmt.Errorf("rank %d: %w", g.JobRank(r), err)
			default:
				return nil, err
			}
		}
	}
	for _, set := range index {
		for _, a := range set {
			slices.SortFunc(a.Stored, func(a, b safetensors.Stored) int {
				return placement.Compare(a.Placement, b.Placement)
			})
		}
	}
	return index, index.Check()
}

func shardFile(k, n int) string { return fmt.Sprintf("shard-%05d-of-%05d.safetensors", k+1, n) }

// firsts marks, of the parts that each rank has, those that no rank before it has. They are what it writes: a part that
// several ranks have is written once. Empty parts are not.
func firsts(lists [][]placedEntry) [][]bool {
	seen, marks := map[string]bool{}, make([][]bool, len(lists))
	for r, list := range lists {
		marks[r] = make([]bool, len(list))
		for i, p := range list {
			key := p.Set + "/" + p.String()
			marks[r][i] = p.Numel() > 0 && !seen[key]
			seen[key] = true
		}
	}
	return marks
}

// add puts a part of a tensor into the index, as one that file has if it is written.
func add(index safetensors.Placements, p placedEntry, file string, written bool) error {
	dt, err := dtype.Parse(p.DType)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", p.Name, p.Set, err)
	}
	if index[p.Set] == nil {
		index[p.Set] = map[string]safetensors.Scattered{}
	}
	a, known := index[p.Set][p.Name]
	if known && (a.DType != dt || !slices.Equal(a.Shape, p.Shape)) {
		return fmt.Errorf("%s of %s is %v%v here, %v%v on a rank before", p.Name, p.Set, dt, p.Shape, a.DType, a.Shape)
	}
	a.DType, a.Shape = dt, p.Shape
	if written {
		a.Stored = append(a.Stored, safetensors.Stored{Placement: p.Placement, File: file})
	}
	index[p.Set][p.Name] = a
	return nil
}

// write writes this rank's file and, on rank 0, the other parts, and gathers what all have written.
func (sv *shardSave) write(ctx context.Context, all []opening) (files []File, err error) {
	if err := sv.plan(all); err != nil {
		return nil, err // on all ranks alike
	}
	if sv.g != nil {
		var stop func()
		ctx, stop = context.WithCancel(ctx)
		defer stop()
		go func() {
			select {
			case <-sv.g.Dead(): // the save is lost: stop writing
				stop()
			case <-ctx.Done():
			}
		}()
	}
	var mine []File
	var failed error
	panicked := sv.catch(&failed, func() error {
		mine, err = sv.writeMine(ctx)
		return err
	})
	sv.short = failed != nil
	lists, err := agree(ctx, sv.g, "write", mine, failed)
	return slices.Concat(lists...), panicked.or(err)
}

func (sv *shardSave) writeMine(ctx context.Context) (files []File, err error) {
	var parts []Part
	if sv.mine != "" {
		parts = append(parts, Part{Name: sv.mine, Write: sv.writePlaced})
	}
	if sv.first() {
		parts = append(parts, sv.content.Parts...)
	}
	for _, p := range parts {
		f, err := sv.s.writePart(ctx, sv.s.path(sv.tmp), p)
		if errors.Is(err, fs.ErrNotExist) && !sv.first() {
			err = fmt.Errorf("rank 0 made the folder, but it is not here: want the same output folder on all hosts: %w",
				err)
		}
		if err != nil {
			return nil, fmt.Errorf("part %s: %w", p.Name, err)
		}
		files = append(files, f)
	}
	return files, nil
}

func (sv *shardSave) writePlaced(w io.Writer) error {
	var list []safetensors.Tensor
	for i, p := range sv.content.Placed {
		if sv.writes[i] {
			list = append(list, safetensors.StoredTensor(p.Set, p.DType, p.Placement, p.Write))
		}
	}
	return safetensors.WriteStored(w, list, savedAs(sv.info.Manifest))
}

// savedAs is how the files of the ranks name a checkpoint.
func savedAs(m Manifest) safetensors.Save {
	return safetensors.Save{Run: m.RunID, ID: strconv.FormatInt(m.SaveID, 10)}
}

// commit is rank 0's: what comes after the files of all ranks.
func (sv *shardSave) commit(ctx context.Context, files []File) (aside string, err error) {
	tmp := sv.s.path(sv.tmp)
	if sv.together() {
		text, err := sv.index.Encode()
		if err != nil {
			return "", err
		}
		f, err := sv.s.writePart(ctx, tmp, BytesPart(safetensors.PlacementsFile, text))
		if err != nil {
			return "", fmt.Errorf("part %s: %w", safetensors.PlacementsFile, err)
		}
		files = append(files, f)
	}
	sv.info.Files = files
	return sv.s.seal(ctx, tmp, sv.name, &sv.info)
}

// clean removes an unfinished checkpoint. That is rank 0's, but if the group has failed, it does not wait for ranks
// that are still writing: they then remove what they have written. What a rank has reported as written is not its own
// any more: rank 0 may be making a checkpoint of it.
func (sv *shardSave) clean() {
	if sv.tmp == "" {
		return
	}
	fsys, tmp := sv.s.fs(), sv.s.path(sv.tmp)
	switch {
	case sv.first():
		if err := vfs.RemoveAll(fsys, tmp); err != nil {
			sv.s.log().Warn("unfinished checkpoint not deleted", "path", tmp, "err", err)
		}
	case sv.short && sv.mine != "" && sv.g.Err() != nil:
		_ = fsys.Remove(filepath.Join(tmp, sv.mine)) // rank 0 may have been faster
		_ = fsys.Remove(tmp)                         // if it is empty
	}
}

// raised is a panic of this rank, kept until the other ranks know that it failed.
type raised struct{ value any }

// catch runs f and turns a panic into an error, so that the other ranks do not wait.
func (sv *shardSave) catch(err *error, f func() error) (panicked *raised) {
	if sv.g == nil { // nobody waits: the panic keeps its stack
		*err = f()
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			panicked = &raised{v}
			*err = fmt.Errorf("panic: %v", v)
		}
	}()
	*err = f()
	return nil
}

// or is err, unless there was a panic, which continues.
func (r *raised) or(err error) error {
	if r != nil {
		panic(r.value)
	}
	return err
}

// agree gathers what all ranks have come to. If any failed, all get an error: their own, or that of the lowest rank.
// The ranks wait for each other even if ctx is done: a rank that went away by itself would leave the others waiting.
func agree[T any](ctx context.Context, g *comm.Group, what string, v T, err error) ([]T, error) {
	if g == nil { // one rank
		return []T{v}, err
	}
	type result struct {
		Value T      `json:"value"`
		Err   string `json:"err,omitempty"`
	}
	mine := result{Value: v}
	if err != nil {
		mine = result{Err: cmp.Or(err.Error(), "failed")}
	}
	all, lost := comm.AllGatherObject(context.WithoutCancel(ctx), g, mine)
	if lost != nil {
		return nil, errors.Join(err, fmt.Errorf("agreeing with the other ranks (%s): %w", what, lost))
	}
	values := make([]T, len(all))
	for r, one := range all {
		values[r] = one.Value
		if one.Err != "" && err == nil {
			err = &RankError{Rank: g.JobRank(r), Message: one.Err}
		}
	}
	return values, err
}
