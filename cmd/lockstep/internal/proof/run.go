// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/launch"
	"github.com/lockstep-ml/lockstep/trainer/hashes"
)

// Steps are those of each run.
const Steps = 24

const (
	samplesOfStep = 8 // one micro-batch each
)

// Arrangement is how a run is spread over ranks.
type Arrangement struct {
	Name string
	// Control is true of a run whose bits must differ from those of all others: one rank forms its sums as a whole, and
	// not in the parts that ranks along tp share.
	Control bool
	// Phases follow each other; each continues from the last one's checkpoint.
	Phases []Phase
}

// Phase is a part of a run, on ranks that are goroutines of one process or processes.
type Phase struct {
	Ranks     int
	Processes bool
	Until     int // the step after which it ends
	Kill      int // the step after which rank 1 is killed; 0: none
	Args      []string
}

// Arrangements are those of the proof, in runs of so many steps, a multiple of 6. The first has one rank, and the last
// is the control.
func Arrangements(steps int) []Arrangement {
	whole := func(p Phase) []Phase {
		p.Until = steps
		return []Phase{p}
	}
	third, kill := steps/3, steps/2+2
	killed := fmt.Sprintf(", rank 1 killed after step %d", kill)
	cube := []string{"--pp_size", "2", "--fsdp", "full_shard", "--tp_size", "2"}
	return []Arrangement{
		{"1 rank", false, whole(Phase{Ranks: 1})},
		{"4 goroutines", false, whole(Phase{Ranks: 4})},
		{"4 processes" + killed, false, whole(Phase{Ranks: 4, Processes: true, Kill: kill})},
		{"4, then 2, then 8 goroutines", false, []Phase{{Ranks: 4, Until: third}, {Ranks: 2, Until: 2 * third},
			{Ranks: 8, Until: steps}}},
		{"fsdp 4 on processes, then tp 4, then pp 4", false, []Phase{
			{Ranks: 4, Processes: true, Until: third, Args: []string{"--fsdp", "full_shard"}},
			{Ranks: 4, Until: 2 * third, Args: []string{"--tp_size", "4"}},
			{Ranks: 4, Until: steps, Args: []string{"--pp_size", "4"}}}},
		{"tp 4 processes", false, whole(Phase{Ranks: 4, Processes: true, Args: []string{"--tp_size", "4"}})},
		{"pp 2 × fsdp 2 × tp 2" + killed, false,
			whole(Phase{Ranks: 8, Processes: true, Kill: kill, Args: cube})},
		{"dp 2 × tp 4, then fsdp 2 × tp 2, then 1 rank", false, []Phase{
			{Ranks: 8, Until: third, Args: []string{"--tp_size", "4"}},
			{Ranks: 4, Until: 2 * third, Args: []string{"--fsdp", "full_shard", "--tp_size", "2"}},
			{Ranks: 1, Until: steps}}},
		{"control: 1 rank, sums not in parts", true, whole(Phase{Ranks: 1})},
	}
}

// Parts is how many parts the sums of all runs have, but those of the control (tp_parts).
const Parts = 4

// Result is what a run ended with.
type Result struct {
	Arrangement
	Digest hashes.Sum
	Time   time.Duration
}

// Job is how the runs are started.
type Job struct {
	Dir   string
	Steps int
	// Program is this program, with the words that make it call Rank.
	Program []string
	Guard   []string // see launch.Config
}

// Run does an arrangement's run.
func (j *Job) Run(ctx context.Context, a Arrangement) (r Result, err error) {
	r.Arrangement = a
	began := time.Now()
	dir, err := os.MkdirTemp(j.Dir, "run-")
	if err != nil {
		return r, err
	}
	for i, p := range a.Phases {
		parts := Parts
		if a.Control {
			parts = 1
		}
		if err := j.phase(ctx, dir, parts, p, i > 0); err != nil {
			return r, fmt.Errorf("%s: %w", a.Name, err)
		}
	}
	run, err := hashes.Load(dir)
	if err != nil {
		return r, err
	}
	digest, done, err := run.Digest()
	switch last := a.Phases[len(a.Phases)-1]; {
	case err != nil:
	case done != j.Steps:
		err = fmt.Errorf("%s: %d steps are recorded: want %d", a.Name, done, j.Steps)
	case last.Kill > 0 && run.Header().FromStep == 0:
		err = fmt.Errorf("%s: the run was not started again: want it killed", a.Name)
	}
	r.Digest, r.Time = digest, time.Since(began)
	return r, errors.Join(err, os.RemoveAll(dir))
}

// phase does a part of a run.
func (j *Job) phase(ctx context.Context, dir string, parts int, p Phase, goesOn bool) error {
	argv := append(append([]string{}, j.Program[1:]...), "--output_dir", dir, "--max_steps", strconv.Itoa(j.Steps),
		"--save_strategy", "steps", "--save_steps", strconv.Itoa(j.Steps/6), "--report_to", "none",
		"--disable_tqdm", "true", "--tp_parts", strconv.Itoa(parts))
	argv = append(argv, p.Args...)
	if p.Until < j.Steps {
		argv = append(argv, "--stop_after", strconv.Itoa(p.Until))
	}
	if p.Kill > 0 {
		argv = append(argv, "--kill_after", strconv.Itoa(p.Kill), "--kill_rank", "1")
	}
	if goesOn {
		argv = append(argv, "--resume_from_checkpoint", "last")
	}
	var output bytes.Buffer
	err := j.start(ctx, p, argv, &output)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(output.Bytes()))
	}
	return cmp.Or(context.Cause(ctx), err)
}

// start runs a phase's processes to their end. The launcher replaces what another left in the environment, and ends the
// processes with this one.
func (j *Job) start(ctx context.Context, p Phase, argv []string, output io.Writer) error {
	c := launch.Config{Program: j.Program[0], Args: argv, ProcsPerNode: 1, Stdout: output, Stderr: output,
		Guard: j.Guard, RestartDelay: 100 * time.Millisecond, Settle: 100 * time.Millisecond, Grace: time.Second}
	if p.Processes {
		c.ProcsPerNode = p.Ranks
	} else {
		c.Args = append(c.Args, "--num_replicas", strconv.Itoa(p.Ranks))
	}
	if p.Kill > 0 {
		c.MaxRestarts = 1
	}
	return launch.Run(ctx, c)
}

// Same reports whether all runs have the bits of the first, but the controls, which have others.
func Same(all []Result) bool {
	for _, r := range all {
		if (r.Digest == all[0].Digest) == r.Control {
			return false
		}
	}
	return len(all) > 0
}
