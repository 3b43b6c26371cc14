// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Copy writes a checkpoint that another folder has, under its name and with its manifest m; parts are its files, in the
// manifest's order. What does not have the manifest's hashes is an error. It appears as one of Save does.
func (s *Store) Copy(ctx context.Context, name string, m Manifest, parts []Part) (Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := Info{Path: s.path(name), Manifest: m}
	if _, ok := stepOf(name); !ok {
		return info, fmt.Errorf("copying %q: want %s<step>", name, prefix)
	}
	release, err := s.Acquire(ctx)
	if err != nil {
		return info, err
	}
	defer release()
	if err := s.copy(ctx, name, &info, parts); err != nil {
		return info, fmt.Errorf("copying %s: %w", info.Path, err)
	}
	return info, nil
}

func (s *Store) copy(ctx context.Context, name string, info *Info, parts []Part) error {
	if err := (Content{Parts: parts}).check(); err != nil {
		return err
	}
	if _, err := s.prepare(); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s%d-%d", writePrefix, info.Step, info.SaveID)
	if err := s.fs().Mkdir(s.path(tmp)); err != nil {
		return err
	}
	aside, err := s.fill(ctx, tmp, name, info, parts)
	if err != nil {
		if left := vfs.RemoveAll(s.fs(), s.path(tmp)); left != nil {
			s.log().Warn("unfinished checkpoint not deleted", "path", s.path(tmp), "err", left)
		}
		return err
	}
	return s.finish(*info, aside)
}

// fill writes the files into the temporary folder, verifies them, and gives it its name.
func (s *Store) fill(ctx context.Context, tmp, name string, info *Info, parts []Part) (aside string, err error) {
	if len(parts) != len(info.Files) {
		return "", fmt.Errorf("%d files: want the manifest's %d", len(parts), len(info.Files))
	}
	for i, p := range parts {
		f, err := s.writePart(ctx, s.path(tmp), p)
		if err != nil {
			return "", fmt.Errorf("part %s: %w", p.Name, err)
		}
		if f != info.Files[i] {
			return "", fmt.Errorf("part %s differs from the manifest", p.Name)
		}
	}
	return s.seal(ctx, s.path(tmp), name, info)
}
