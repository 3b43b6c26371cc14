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
	if p.Checkpoint != "" {
		ck, err := s.Open(ctx, p.Checkpoint)
		if err == nil {
			return ck, nil
		}
		tried = append(tried, err)
	}
	ck, broken, err := s.newest(ctx, l.all(), p.Checkpoint)
	tried = append(tried, broken...)
	switch {
	case err != nil:
		return nil, err
	case ck == nil && len(tried) > 0:
		return nil, fmt.Errorf("%w in %s can be loaded%s: %w", ErrNone, s.Dir, l.exceptReplaced(),
			errors.Join(tried...))
	case ck == nil:
		return nil, fmt.Errorf("%w in %s%s", ErrNone, s.Dir, l.exceptReplaced())
	case len(tried) > 0:
		s.log().Warn("falling back to the newest undamaged checkpoint", "path", ck.Path, "step", ck.Step, "err",
			errors.Join(tried...))
	default:
		s.log().Warn("no "+LatestFile+" file: taking the newest checkpoint", "path", ck.Path, "step", ck.Step)
	}
	return ck, nil
}

// exceptReplaced names the folders of earlier runs that were renamed, if there are any.
func (l listing) exceptReplaced() string {
	if len(l.replaced) == 0 {
		return ""
	}
	return ", except those of an earlier run by their folders (" + strings.Join(l.replaced, ", ") + ")"
}

// newest opens the names in order, newest save first, until one is undamaged; not the one
// that has been tried. ck is nil if none is; err is ctx's.
func (s *Store) newest(ctx context.Context, names []string, except string) (ck *Checkpoint, broken []error, err error) {
	complete, broken := s.survey(slices.DeleteFunc(names, func(n string) bool { return n == except }))
	for _, info := range slices.Backward(complete) {
		ck, err := open(ctx, s.fs(), info.Path)
		if err == nil {
			return ck, broken, nil
		}
		broken = append(broken, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, broken, ctx.Err()
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
