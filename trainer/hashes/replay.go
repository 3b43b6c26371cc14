// SPDX-License-Identifier: Apache-2.0

package hashes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// maxManifest bounds the size of a manifest, in bytes.
const maxManifest = 16 << 20

// prefix of the names of checkpoints.
const prefix = "checkpoint-"

// Checkpoints lists the steps of the checkpoints that two runs both have, in ascending order.
func Checkpoints(a, b string) (steps []int64, err error) {
	names, err := filepath.Glob(filepath.Join(a, prefix+"*", checkpoint.ManifestFile))
	if err != nil {
		return nil, fmt.Errorf("hashes: %w", err)
	}
	for _, name := range names {
		folder := filepath.Base(filepath.Dir(name))
		step, err := strconv.ParseInt(strings.TrimPrefix(folder, prefix), 10, 64)
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(b, folder, checkpoint.ManifestFile)); err == nil {
			steps = append(steps, step)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("hashes: %w", err)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// tensors are the SHA-256 of the files of tensors of a checkpoint, by name.
func tensors(run string, step int64) (map[string]string, error) {
	path := filepath.Join(run, prefix+strconv.FormatInt(step, 10), checkpoint.ManifestFile)
	text, err := vfs.ReadFile(vfs.OS, path, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("hashes: %w", err)
	}
	var m checkpoint.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("hashes: %s: %w", path, err)
	}
	sums := map[string]string{}
	for _, f := range m.Files {
		if filepath.Ext(f.Name) == ".safetensors" {
			sums[f.Name] = f.SHA256
		}
	}
	return sums, nil
}

// LastEqual halves the list of steps of two runs' checkpoints until it has the last in which they have the same
// tensors, 0 for none, and the first in which they have not, 0 for none. What parts stays apart. ok is false if the
// checkpoints cannot be compared, since the runs saved them in other files.
func LastEqual(a, b string, steps []int64) (equal, differs int64, ok bool, err error) {
	ok = true
	n := sort.Search(len(steps), func(i int) bool {
		if err != nil || !ok {
			return true
		}
		var x, y map[string]string
		if x, err = tensors(a, steps[i]); err != nil {
			return true
		}
		if y, err = tensors(b, steps[i]); err != nil {
			return true
		}
		parted := false
		if ok = len(x) == len(y); !ok {
			return true
		}
		for name, sum := range x {
			other, there := y[name]
			if ok = ok && there; other != sum {
				parted = true
			}
		}
		return parted
	})
	if n > 0 {
		equal = steps[n-1]
	}
	if n < len(steps) {
		differs = steps[n]
	}
	return equal, differs, ok, err
}

// Replay is how a run is run again.
type Replay struct {
	Dir  string   // in which
	Argv []string // with its program
	Out  string   // its output folder
}

// String is the command for a shell.
func (r *Replay) String() string {
	words := make([]string, len(r.Argv))
	for i, w := range r.Argv {
		words[i] = quote(w)
	}
	return fmt.Sprintf("(cd %s && %s)", quote(r.Dir), strings.Join(words, " "))
}

// quote is a word for a shell.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("-_./=,:+@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// without leaves out a flag of a list, which takes a value and would be added to one that comes later.
func without(argv []string, list string) (rest []string) {
	for i := 0; i < len(argv); i++ {
		flag, isFlag := strings.CutPrefix(argv[i], "--")
		name, _, joined := strings.Cut(flag, "=")
		switch {
		case !isFlag || strings.ReplaceAll(name, "-", "_") != list:
			rest = append(rest, argv[i])
		case !joined:
			i++
		}
	}
	return rest
}

// Again is how a run is run again from a checkpoint, 0 for its beginning, until after a step, with hashes of a kind
// (see args.RecordHashes). Its programs were started by a launcher if it had several processes.
func (r *Run) Again(from, until int64, record, out, launcher string) (*Replay, error) {
	h := r.Header()
	if h == nil || len(h.Program) == 0 {
		return nil, fmt.Errorf("hashes: %s has no record of its program: want a run with record_hashes", r.Path)
	}
	var argv []string
	if h.Launched > 1 {
		argv = []string{launcher, "launch", "--nproc_per_node", strconv.Itoa(h.Launched), "--"}
	}
	argv = append(argv, without(h.Program, "report_to")...)
	out, err := filepath.Abs(out)
	if err != nil {
		return nil, fmt.Errorf("hashes: %w", err)
	}
	argv = append(argv, "--output_dir", out, "--record_hashes", record, "--record_until",
		strconv.FormatInt(until, 10), "--save_strategy", "no", "--eval_strategy", "no",
		"--load_best_model_at_end=false", "--report_to", "none")
	if from > 0 {
		path, err := filepath.Abs(filepath.Join(r.Path, prefix+strconv.FormatInt(from, 10)))
		if err != nil {
			return nil, fmt.Errorf("hashes: %w", err)
		}
		argv = append(argv, "--resume_from_checkpoint", path)
	}
	return &Replay{Dir: h.Dir, Argv: argv, Out: out}, nil
}
