// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
)

// OpenShared opens a checkpoint on all ranks of g, as Open does, but each rank verifies the hashes of a part of the
// files only. All ranks call it with the same name, and all get an error if any of them does: it names every damaged
// file and, for those that another rank has read, the rank.
func (s *Store) OpenShared(ctx context.Context, g *comm.Group, name string) (*Checkpoint, error) {
	ck, _, err := s.openShared(ctx, g, name)
	return ck, err
}

// openShared also reports whether a rank has been cancelled.
func (s *Store) openShared(ctx context.Context, g *comm.Group, name string) (ck *Checkpoint, cancelled bool,
	err error) {
	type verdict struct {
		SHA256    string `json:"sha256"` // of the manifest
		Cancelled bool   `json:"cancelled"`
		Err       string `json:"err"`
	}
	ck, err = s.verifyPart(ctx, name, g.Rank(), g.Size())
	mine := verdict{Cancelled: ctx.Err() != nil}
	if err != nil {
		mine.Err = err.Error()
	} else {
		mine.SHA256 = ck.SHA256
	}
	all, lost := comm.AllGatherObject(context.WithoutCancel(ctx), g, mine)
	if lost != nil {
		return nil, mine.Cancelled, errors.Join(err, fmt.Errorf("opening %s: %w", s.path(name), lost))
	}
	errs := []error{err}
	for r, v := range all {
		cancelled = cancelled || v.Cancelled
		switch {
		case r == g.Rank():
		case v.Err != "":
			errs = append(errs, &RankError{Rank: g.JobRank(r), Message: v.Err})
		case err == nil && v.SHA256 != mine.SHA256:
			errs = append(errs,
				fmt.Errorf("%s is not the same on rank %d and on rank %d: want the same output folder on "+
					"all hosts", s.path(name), g.JobRank(g.Rank()), g.JobRank(r)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, cancelled, err
	}
	return ck, cancelled, nil
}

// verifyPart opens the checkpoint and verifies the hashes of those files that fall to the rank.
func (s *Store) verifyPart(ctx context.Context, name string, rank, ranks int) (*Checkpoint, error) {
	path := s.path(name)
	m, err := openManifest(s.fs(), path)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, owner := range shares(m.Files, ranks) {
		file := filepath.Join(path, m.Files[i].Name)
		if owner != rank {
			errs = append(errs, checkSize(s.fs(), file, m.Files[i]))
			continue
		}
		err := verify(ctx, s.fs(), file, m.Files[i])
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Checkpoint{Info: Info{Path: path, Manifest: m}, fsys: s.fs()}, nil
}

// shares deals files out over ranks, the largest first, each to the rank that has the fewest bytes.
func shares(files []File, ranks int) (owner []int) {
	order := make([]int, len(files))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(min(max(files[b].Size-files[a].Size, -1), 1)) })
	owner, load := make([]int, len(files)), make([]int64, ranks)
	for _, i := range order {
		least := 0
		for r := range load {
			if load[r] < load[least] {
				least = r
			}
		}
		owner[i] = least
		load[least] += files[i].Size
	}
	return owner
}

// LatestShared opens on all ranks of g what Latest finds on rank 0. Each rank verifies a part of the files: see
// OpenShared. All ranks call it.
func (s *Store) LatestShared(ctx context.Context, g *comm.Group) (*Checkpoint, error) {
	type found struct {
		Names []string `json:"names"`
		None  bool     `json:"none"`
	}
	var mine found
	var tried []error
	var err error
	if g.Rank() == 0 {
		mine.Names, tried, err = s.candidates()
		if errors.Is(err, ErrNone) { // which the other ranks' callers must be able to tell
			mine.None, err = true, nil
		}
	}
	all, err := agree(ctx, g, "latest", mine, err)
	if err != nil {
		return nil, err
	}
	if all[0].None {
		return nil, noFolder(s.Dir)
	}
	for i, name := range all[0].Names {
		ck, cancelled, err := s.openShared(ctx, g, name)
		if err == nil {
			if (i > 0 || len(tried) > 0) && g.Rank() == 0 {
				s.log().Warn("falling back to the newest undamaged checkpoint", "path", ck.Path, "step", ck.Step, "err",
					errors.Join(tried...))
			}
			return ck, nil
		}
		if tried = append(tried, err); cancelled || g.Err() != nil {
			return nil, err
		}
	}
	if len(tried) > 0 {
		return nil, fmt.Errorf("%w in %s can be loaded: %w", ErrNone, s.Dir, errors.Join(tried...))
	}
	return nil, fmt.Errorf("%w in %s", ErrNone, s.Dir)
}

// candidates lists what Latest may open, the best first, and what is wrong with the rest.
func (s *Store) candidates() (names []string, tried []error, err error) {
	l, err := s.list()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, ErrNone
	}
	if err != nil {
		return nil, nil, err
	}
	p, err := s.readPointer()
	if err != nil {
		tried = append(tried, err)
	}
	if p.Checkpoint != "" {
		names = append(names, p.Checkpoint)
	}
	complete, broken := s.survey(slices.DeleteFunc(l.all(), func(n string) bool { return n == p.Checkpoint }))
	for _, info := range slices.Backward(complete) {
		names = append(names, info.Name())
	}
	if p.Checkpoint == "" {
		tried = append(tried, broken...)
	}
	return names, tried, nil
}
