// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// result is what an output folder holds at the end of a run: which files there are, the bytes of those that hold the
// training's state, and what was logged.
type result struct {
	names   []string
	bits    map[string][]byte
	figures map[string]bool
}

// exact are the files that must not differ by a bit.
func exact(name string) bool {
	switch filepath.Base(name) {
	case "model.safetensors", "optimizer.safetensors", "scheduler.json", "sampler.json", "rng_state.json",
		"tokenizer.json", "config.json":
		return true
	}
	return false
}

// readResult reads an output folder.
func readResult(out string) (result, error) {
	r := result{bits: map[string][]byte{}, figures: map[string]bool{}}
	err := filepath.WalkDir(out, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == out {
			return err
		}
		name, err := filepath.Rel(out, path)
		if err != nil {
			return err
		}
		r.names = append(r.names, name)
		if e.IsDir() {
			return nil
		}
		if !e.Type().IsRegular() {
			return fmt.Errorf("%s is not a regular file", path)
		}
		text, err := os.ReadFile(path)
		if exact(name) {
			r.bits[name] = text
		}
		if name == "log.jsonl" {
			err = errors.Join(err, r.readLog(text))
		}
		return err
	})
	return r, err
}

// readLog takes what was logged apart: losses and metrics, since a run that is interrupted tells, too, how long it
// took. A kill may have cut a line off.
func (r *result) readLog(text []byte) error {
	for line := range bytes.Lines(text) {
		var record map[string]any
		if json.Unmarshal(line, &record) != nil {
			continue
		}
		if _, trained := record["loss"]; !trained && record["eval_loss"] == nil {
			continue
		}
		figure := ""
		for _, key := range []string{"step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss",
			"eval_nats_per_byte", "eval_accuracy"} {
			if v, ok := record[key].(float64); ok {
				figure += fmt.Sprintf("%s=%v ", key, v)
			}
		}
		r.figures[figure] = true
	}
	return nil
}

// compare says how a result differs from the reference; nil if it does not.
func (r result) compare(got result) error {
	var faults []error
	for _, name := range got.names {
		if !slices.Contains(r.names, name) {
			faults = append(faults, fmt.Errorf("leftover in output_dir: %s", name))
		}
	}
	for _, name := range r.names {
		if !slices.Contains(got.names, name) {
			faults = append(faults, fmt.Errorf("missing in output_dir: %s", name))
		} else if want, ok := r.bits[name]; ok && !bytes.Equal(want, got.bits[name]) {
			faults = append(faults, fmt.Errorf("wrong bits in %s", name))
		}
	}
	for figure := range got.figures {
		if !r.figures[figure] {
			faults = append(faults, fmt.Errorf("logged, but not by the reference: %s", figure))
		}
	}
	return errors.Join(faults...)
}

// grace is how long a process may take to go that has been told to.
const grace = 10 * time.Second

// leftProcesses waits until no process with the marker is left, and returns an error if some stay.
func leftProcesses(marker string, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		left := living(marker)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("leftover processes: %v", left)
		}
	}
}

// leftFiles returns an error if a folder that is there for temporary files has any but those known before.
func leftFiles(dir string, known ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var left []string
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			left = append(left, e.Name())
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("leftover files in %s: %s", dir, strings.Join(left, ", "))
	}
	return nil
}

// names of the entries of a folder.
func names(dir string) []string {
	entries, _ := os.ReadDir(dir) // none if it is not there
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// traces are what a program prints that has failed without words.
func traces(text string) error {
	for _, trace := range []string{"panic:", "goroutine ", "runtime error", "fatal error"} {
		if i := strings.Index(text, trace); i >= 0 {
			return fmt.Errorf("a trace was printed: %q", text[i:min(len(text), i+300)])
		}
	}
	return nil
}
