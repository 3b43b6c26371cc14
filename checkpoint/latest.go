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
)

// Latest opens and verifies the checkpoint that LATEST names. If there is no LATEST, or
// the checkpoint is damaged, it is the newest undamaged one by save id, with a warning.
// ErrNone if there is none; the error then tells what is wrong with each that was tried.
// The folder is not changed.
func (s *Store) Latest(ctx context.Context) (*Checkpoint, error) {
	l, err := s.list()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noFolder(s.Dir)
	}
	if err != nil {
		return nil, err
	}
	var tried []error
	p, err := s.readPointer()
	if err != nil {
		tried = append(tried, err)
	}
	complete, broken := s.survey(slices.DeleteFunc(l.all(), func(n string) bool { return n == p.Checkpoint }))
	if p.Checkpoint != "" {
		complete = append(complete, Info{Path: s.path(p.Checkpoint)}) // to be tried first
	}
	tried = append(tried, broken...)
	for _, info := range slices.Backward(complete) {
		ck, err := s.Open(ctx, info.Name())
		if err == nil {
			if info.Name() != p.Checkpoint {
				s.warnOfFallback(ck, tried)
			}
			return ck, nil
		}
		if tried = append(tried, err); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	except := ""
	if len(l.replaced) > 0 {
		except = ", except those of an earlier run by their folders (" + strings.Join(l.replaced, ", ") + ")"
	}
	if len(tried) > 0 {
		return nil, fmt.Errorf("%w in %s can be loaded%s: %w", ErrNone, s.Dir, except, errors.Join(tried...))
	}
	return nil, fmt.Errorf("%w in %s%s", ErrNone, s.Dir, except)
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
