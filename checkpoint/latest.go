// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/comm"
)

// Latest opens and verifies the checkpoint that LATEST names. If there is no LATEST, or
// the checkpoint is damaged, it is the newest undamaged one by save id, with a warning.
// ErrNone if there is none; the error then tells what is wrong with each that was tried.
// The folder is not changed.
func (s *Store) Latest(ctx context.Context) (*Checkpoint, error) { return s.LatestShared(ctx, nil) }

// candidates are the checkpoints that Latest may open.
type candidates struct {
	Names  []string `json:"names"`  // the best first
	Named  bool     `json:"named"`  // LATEST names the first
	None   bool     `json:"none"`   // there is no folder
	Except string   `json:"except"` // the folders of earlier runs that were renamed, in words
	broken []error  // what is wrong with LATEST and with other folders
}

// LatestShared opens on all ranks of g what Latest finds on rank 0. Each rank verifies a part of the files: see
// OpenShared. All ranks call it. A nil g is one rank.
func (s *Store) LatestShared(ctx context.Context, g *comm.Group) (*Checkpoint, error) {
	var mine candidates
	var err error
	if g == nil || g.Rank() == 0 {
		mine, err = s.candidates()
	}
	all, err := agree(ctx, g, "latest", mine, err)
	if err != nil {
		return nil, err
	}
	found, tried := all[0], mine.broken
	if found.None {
		return nil, noFolder(s.Dir)
	}
	for i, name := range found.Names {
		ck, cancelled, err := s.openShared(ctx, g, name)
		if err == nil {
			if (i > 0 || !found.Named) && (g == nil || g.Rank() == 0) {
				s.warnOfFallback(ck, tried)
			}
			return ck, nil
		}
		if tried = append(tried, err); cancelled || g != nil && g.Err() != nil {
			return nil, err
		}
	}
	if len(tried) > 0 {
		return nil, fmt.Errorf("%w in %s can be loaded%s: %w", ErrNone, s.Dir, found.Except, errors.Join(tried...))
	}
	return nil, fmt.Errorf("%w in %s%s", ErrNone, s.Dir, found.Except)
}

// warnOfFallback logs that ck is not the one that LATEST names.
func (s *Store) warnOfFallback(ck *Checkpoint, tried []error) {
	if len(tried) == 0 {
		s.log().Warn("no "+LatestFile+" file: taking the newest checkpoint", "path", ck.Path, "step", ck.Step)
		return
	}
	s.log().Warn("falling back to the newest undamaged checkpoint", "path", ck.Path, "step", ck.Step, "err",
		errors.Join(tried...))
}

func (s *Store) candidates() (c candidates, err error) {
	l, err := s.list()
	if errors.Is(err, fs.ErrNotExist) { // which the other ranks' callers must be able to tell
		return candidates{None: true}, nil
	}
	if err != nil {
		return c, err
	}
	if len(l.replaced) > 0 {
		c.Except = ", except those of an earlier run by their folders (" + strings.Join(l.replaced, ", ") + ")"
	}
	p, err := s.readPointer()
	if err != nil {
		c.broken = append(c.broken, err)
	}
	if c.Named = p.Checkpoint != ""; c.Named {
		c.Names = append(c.Names, p.Checkpoint)
	}
	complete, broken := s.survey(slices.DeleteFunc(l.all(), func(n string) bool { return n == p.Checkpoint }))
	for _, info := range slices.Backward(complete) {
		c.Names = append(c.Names, info.Name())
	}
	c.broken = append(c.broken, broken...)
	return c, nil
}

// Rotate deletes the oldest checkpoints of a run, by save id, until limit are left. The newest,
// the one that LATEST names and the protected ones (names or paths: only the last element
// counts, so that a moved output folder does not matter) are never deleted and count
// towards limit, as in HuggingFace's Trainer (save_total_limit): with limit 1 and another
// best one, two stay. limit ≤ 0 keeps all. Checkpoints of earlier runs that were renamed to make way (SetAside) count
// as the oldest. Other checkpoints of other runs, and folders that are not complete checkpoints, are left alone and do
// not count. It returns the names of the deleted ones, also beside an error.
func (s *Store) Rotate(limit int, runID string, protected ...string) (deleted []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit <= 0 {
		return nil, nil
	}
	infos, err := s.List()
	infos = slices.DeleteFunc(infos, func(i Info) bool { return i.RunID != runID })
	if err != nil || len(infos) == 0 {
		return nil, err
	}
	l, err := s.list()
	if err != nil {
		return nil, err
	}
	earlier, _ := s.survey(l.replaced)
	if infos = append(earlier, infos...); len(infos) <= limit {
		return nil, nil
	}
	release, err := s.Acquire(context.Background())
	if err != nil {
		return nil, err
	}
	defer release()
	keep := map[string]bool{infos[len(infos)-1].Name(): true}
	p, err := s.readPointer()
	if err != nil {
		return nil, err
	}
	keep[p.Checkpoint] = true
	for _, path := range protected {
		keep[filepath.Base(path)] = true
	}
	var errs []error
	excess := len(infos) - limit
	for _, info := range infos {
		if excess == 0 {
			break
		}
		if keep[info.Name()] {
			continue
		}
		excess--
		if err := s.discard(info.Name()); err != nil {
			errs = append(errs, fmt.Errorf("deleting %s: %w", info.Path, err))
			continue
		}
		deleted = append(deleted, info.Name())
	}
	return deleted, errors.Join(errs...)
}
