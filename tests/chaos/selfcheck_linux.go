// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// selfCheck requires a harness that can fail: it must see one wrong bit, a wrong figure, files that are left or
// missing, and a process that stays.
func selfCheck(dir string, good result) error {
	if err := good.compare(good); err != nil {
		return fmt.Errorf("a result differs from itself: %w", err)
	}
	if len(good.bits) < 10 || len(good.figures) < steps {
		return fmt.Errorf("the reference has %d exact files and %d figures: want more", len(good.bits),
			len(good.figures))
	}
	var faults []error
	for name := range good.bits {
		bad := good.clone()
		bad.bits[name] = slices.Clone(bad.bits[name])
		bad.bits[name][len(bad.bits[name])/2] ^= 1
		faults = append(faults, unseen(good.compare(bad), "a wrong bit in "+name))
	}
	bad := good.clone()
	bad.names = append(bad.names, "checkpoint-290/.tmp-x")
	faults = append(faults, unseen(good.compare(bad), "a planted file"))
	bad = good.clone()
	bad.names = bad.names[1:]
	faults = append(faults, unseen(good.compare(bad), "a missing file"))
	bad = good.clone()
	bad.figures["step=3 loss=1 "] = true
	faults = append(faults, unseen(good.compare(bad), "a wrong figure"))
	return errors.Join(errors.Join(faults...), checkLeftovers(dir))
}

// drill runs two jobs that nothing disturbs and whose end is spoilt: the harness must see it.
func (h *harness) drill() error {
	j, err := h.newJob(scenario{index: -1, layout: shm, ranks: 2})
	if err != nil {
		return err
	}
	j.sabotage = func() error {
		name := filepath.Join(j.out(), "model.safetensors")
		weights, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		weights[len(weights)-1] ^= 1
		return errors.Join(os.WriteFile(name, weights, 0o600),
			os.WriteFile(filepath.Join(j.dir, "tmp", "planted"), nil, 0o600))
	}
	err = errors.Join(j.run(), j.close())
	for _, want := range []string{"wrong bits in model.safetensors",
		"leftover files in " + filepath.Join(j.dir, "tmp") + ": planted"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("of a spoilt job this was seen: %w: want %s", err, want)
		}
	}
	if j, err = h.newJob(scenario{index: -1, layout: shm, ranks: 2}); err != nil {
		return err
	}
	j.grace = 0
	cmd := exec.Command("sleep", "60")
	cmd.Env = append(os.Environ(), j.marker)
	if err := cmd.Start(); err != nil {
		return err
	}
	err = errors.Join(j.run(), j.close()) // kills it, too
	_ = cmd.Wait()                        // killed
	if err == nil || !strings.Contains(err.Error(), "leftover processes") {
		return fmt.Errorf("of a job that left a process this was seen: %w", err)
	}
	return nil
}

func (r result) clone() result {
	return result{slices.Clone(r.names), maps.Clone(r.bits), maps.Clone(r.figures)}
}

func unseen(err error, what string) error {
	if err == nil {
		return fmt.Errorf("%s is not seen", what)
	}
	return nil
}

// checkLeftovers plants a process and a file.
func checkLeftovers(dir string) error {
	marker := fmt.Sprintf("CHAOS_JOB=%016x", rand.Uint64())
	cmd := exec.Command("sleep", "60")
	cmd.Env = append(os.Environ(), marker)
	if err := cmd.Start(); err != nil {
		return err
	}
	seen := leftProcesses(marker, 0)
	for deadline := time.Now().Add(5 * time.Second); seen == nil && time.Now().Before(deadline); { // until it has begun
		seen = leftProcesses(marker, 0)
	}
	err := errors.Join(unseen(seen, "a planted process"), cmd.Process.Kill())
	_ = cmd.Wait() // killed
	empty, err2 := os.MkdirTemp(dir, "planted-*")
	if err = errors.Join(err, err2, leftProcesses(marker, grace)); err != nil {
		return err
	}
	err = leftFiles(empty)
	if e := os.WriteFile(filepath.Join(empty, "planted"), nil, 0o600); e != nil {
		return e
	}
	return errors.Join(err, unseen(leftFiles(empty), "a planted file"), os.RemoveAll(empty))
}
