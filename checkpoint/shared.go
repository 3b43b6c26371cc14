// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
)

// OpenShared opens a checkpoint on all ranks of g, as Open does, but each rank verifies the hashes of a part of the
// files only. All ranks call it with the same name, and all get an error if any of them does: it names every damaged
// file and, for those that another rank has read, the rank. A nil g is one rank.
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
	rank, ranks := 0, 1
	if g != nil {
		rank, ranks = g.Rank(), g.Size()
	}
	ck, err = s.verifyPart(ctx, name, rank, ranks)
	mine := verdict{Cancelled: ctx.Err() != nil}
	if err != nil {
		mine.Err = err.Error()
	} else {
		mine.SHA256 = ck.SHA256
	}
	all, lost := gather(ctx, g, mine)
	if lost != nil {
		return nil, mine.Cancelled, errors.Join(err, fmt.Errorf("opening %s: %w", s.path(name), lost))
	}
	errs := []error{err}
	for r, v := range all {
		cancelled = cancelled || v.Cancelled
		switch {
		case r == rank:
		case v.Err != "":
			errs = append(errs, &RankError{Rank: g.JobRank(r), Message: v.Err})
		case err == nil && v.SHA256 != mine.SHA256:
			errs = append(errs,
				fmt.Errorf("%s is not the same on rank %d and on rank %d: want the same output folder on "+
					"all hosts", s.path(name), g.JobRank(rank), g.JobRank(r)))
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
