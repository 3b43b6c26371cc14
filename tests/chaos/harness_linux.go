// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"
	"github.com/lockstep-ml/lockstep/tests/internal/twohosts"
)

// The jobs: how many steps they have, and how many lie between two checkpoints.
const (
	steps     = 300
	saveSteps = 10
)

// harness runs scenarios, one after the other.
type harness struct {
	options
	outer   string // the folder as it is seen from outside
	dir     string // the same, as it is seen here
	plan    plan
	want    map[int]result    // the references, by the samples of a step
	without map[kind]string   // why a kind of fault is left out
	no      map[layout]string // why a layout is
	disks   bool              // jobs have their own file systems
	known   map[string][]string
	stopped atomic.Bool
	began   time.Time
	done    []outcome
}

// temporary are the folders that jobs leave as they find them.
var temporary = []string{"/tmp", "/dev/shm", "/run"}

// newHarness finds out what can be done here.
func newHarness(outer string, o options) (*harness, error) {
	h := &harness{options: o, outer: outer, dir: outer, without: map[kind]string{}, no: map[layout]string{},
		known: map[string][]string{}, began: time.Now()}
	if err := enter(outer); err == nil {
		h.dir, h.disks = private, true
		for _, dir := range temporary {
			h.known[dir] = append(names(dir), "netns")
		}
	} else {
		for _, k := range []kind{diskFull, diskReadOnly, shmFull} {
			h.without[k] = err.Error()
		}
		h.no[hosts] = err.Error()
	}
	if h.no[hosts] == "" {
		two, err := twohosts.New("chaos", 0, nil)
		if err == nil {
			err = two.Close()
		}
		if err != nil {
			h.no[hosts] = err.Error()
		}
	}
	for k, try := range map[kind]func(string) error{clockWall: tryWallClock, clockMono: tryMonotonicClock} {
		if err := try(h.bin("chaos")); err != nil {
			h.without[k] = err.Error()
		}
	}
	h.plan = newPlan(o.seed, func(k kind) bool { return h.without[k] != "" }, func(l layout) bool {
		return h.no[l] != ""
	})
	for _, k := range traits {
		if !slices.Contains(h.plan.kinds, k.kind) && h.without[k.kind] == "" {
			h.without[k.kind] = h.no[k.layouts[0]]
		}
	}
	return h, nil
}

func (h *harness) bin(name string) string { return filepath.Join(h.dir, "bin", name) }

// batch is how many samples a step of a job has. Bits are the same on 1, 2, 4 and 8 ranks; 3 ranks have their own.
func batch(ranks int) int {
	if ranks == 3 {
		return 12
	}
	return 8
}

// argv are the flags of a job.
func (h *harness) argv(out string, batch int) []string {
	return clmtest.Tiny(filepath.Join(h.dir, "corpus"), filepath.Join(h.dir, "heldout"), out,
		"--max_steps", strconv.Itoa(steps), "--save_steps", strconv.Itoa(saveSteps), "--eval_steps", "100",
		"--save_total_limit", "3",
		"--global_train_batch_size", strconv.Itoa(batch))
}

// environ is the caller's environment without its settings.
func environ(more ...string) []string {
	list := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "LOCKSTEP_") && !strings.HasPrefix(e, "LOCKSTEP_KERNELS=") ||
			strings.HasPrefix(e, "CHAOS_") && !strings.HasPrefix(e, runVariable)
	})
	return append(list, more...)
}

// prepare makes the reference and checks that the harness sees what it is there to see.
func (h *harness) prepare() error {
	for _, t := range traits {
		if why := h.without[t.kind]; why != "" {
			fmt.Printf("chaos: LEFT OUT: %s: %s\n", t.kind, why)
		}
	}
	h.want = map[int]result{}
	for _, ranks := range []int{1, 3} {
		out := filepath.Join(h.dir, fmt.Sprintf("reference-%d", ranks))
		cmd := exec.Command(h.bin("clm"), append(h.argv(out, batch(ranks)), "--num_replicas", strconv.Itoa(ranks))...)
		cmd.Env = environ("TMPDIR=" + h.dir)
		begin := time.Now()
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("the reference run: %w\n%s", err, text)
		}
		fmt.Printf("chaos: the reference of %d ranks took %.1f s\n", ranks, time.Since(begin).Seconds())
		var err error
		if h.want[batch(ranks)], err = readResult(out); err != nil {
			return err
		}
	}
	if err := errors.Join(selfCheck(h.dir, h.want[batch(1)]), h.drill()); err != nil {
		return fmt.Errorf("the harness does not see what it should: %w", err)
	}
	return nil
}

// scenario runs one, and says in a line how it went. The error is for a scenario that could not begin.
func (h *harness) scenario(index int) error {
	s := h.plan.scenario(index)
	begin := time.Now()
	j, err := h.newJob(s)
	if err != nil {
		return err
	}
	err = errors.Join(j.run(), j.close())
	o := outcome{scenario: s, counts: j.counts, err: err, took: time.Since(begin)}
	if h.stopped.Load() {
		return nil // whatever failed, failed because of that
	}
	h.done = append(h.done, o)
	fmt.Println(o.line())
	if err == nil {
		return nil
	}
	fmt.Printf("%s\n", indent(err.Error()))
	fmt.Printf("    repeat: CHAOS_SEED=%d CHAOS_SCENARIO=%d .ci/run chaos\n", h.seed, index)
	fmt.Printf("    kept:   %s\n", filepath.Join(h.outer, failedFolder, strconv.Itoa(index)))
	return nil
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

// keep copies what is left of a failed scenario to where it stays.
func (h *harness) keep(j *job, err error) error {
	to := filepath.Join(h.dir, failedFolder, strconv.Itoa(j.index))
	if e := os.MkdirAll(to, 0o755); e != nil {
		return e
	}
	text := fmt.Sprintf("CHAOS_SEED=%d CHAOS_SCENARIO=%d\n%s\n\n%v\n\n%s", h.seed, j.index, j.scenario, err, j.log)
	e := os.WriteFile(filepath.Join(to, "log.txt"), []byte(text), 0o644)
	for _, dir := range []string{"out", "tmp", "home"} {
		if _, missing := os.Stat(filepath.Join(j.dir, dir)); missing == nil {
			e = errors.Join(e, exec.Command("cp", "-a", filepath.Join(j.dir, dir), to).Run())
		}
	}
	return e
}
