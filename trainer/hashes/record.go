// SPDX-License-Identifier: Apache-2.0

package hashes

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Dir is the folder of the records in the output folder of a run.
const Dir = "hashes"

// version of the format.
const version = 1

// Header is the first line of what a process records, and the first after each resume.
type Header struct {
	Version  int               `json:"version"`
	Rank     int               `json:"rank"`
	Ranks    int               `json:"ranks"`
	Program  []string          `json:"program"`  // with its arguments
	Dir      string            `json:"dir"`      // in which it runs
	Launched int               `json:"launched"` // processes of the job; 1: ranks are goroutines
	FromStep int64             `json:"from_step"`
	Settings map[string]any    `json:"settings"` // the arguments of the run
	Versions map[string]string `json:"versions"` // of what computes
	Params   []Param           `json:"params"`
}

// Param is what a rank has of a parameter.
type Param struct {
	Name string `json:"name"`
	Part string `json:"part,omitempty"` // of it, "" for all
}

// Step is a line: an optimizer step as a rank sees it. Lists of hashes follow the header's parameters. The first line
// of a process has the weights alone, after the step at which it begins.
type Step struct {
	Step    int64    `json:"step"`
	LR      float64  `json:"learning_rate"`
	Data    []Batch  `json:"data"`   // the micro-batches that this rank reads
	Losses  []string `json:"losses"` // of all micro-batches of the step, as sums of their terms
	Norm    string   `json:"grad_norm"`
	Grads   []Sum    `json:"gradients,omitempty"` // as the optimizer reads them, before clipping
	State   []Sum    `json:"state,omitempty"`     // of the optimizer, after the step
	Weights []Sum    `json:"weights"`             // after the step
	Ops     []Op     `json:"ops,omitempty"`
}

// Batch is the hash of a micro-batch's tensors.
type Batch struct {
	MicroBatch int `json:"micro_batch"`
	Hash       Sum `json:"hash"`
}

// The passes of an op.
const (
	Forward  = "forward"  // the module's outputs
	Backward = "backward" // the gradients of the module's outputs
	Gradient = "gradient" // of a parameter, in the micro-batch's group so far
)

// Op is the result of a module in a pass.
type Op struct {
	MicroBatch int    `json:"micro_batch"`
	Pass       string `json:"pass"`
	Path       string `json:"path"` // of the module, or the parameter's name
	Hash       Sum    `json:"hash"`
}

// Float is a number as text with all its digits.
func Float(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// Writer writes the record of a rank.
type Writer struct{ f *os.File }

// Create begins the record of a rank in a run's output folder, or continues with it if the run continues after a step.
func Create(dir string, h Header) (*Writer, error) {
	h.Version = version
	dir = filepath.Join(dir, Dir)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("hashes: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("rank-%d.jsonl", h.Rank))
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if h.FromStep > 0 {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
		if err := dropPartialLine(path); err != nil {
			return nil, fmt.Errorf("hashes: %w", err)
		}
	}
	f, err := os.OpenFile(path, flags, 0o666)
	if err != nil {
		return nil, fmt.Errorf("hashes: %w", err)
	}
	w := &Writer{f}
	if err := w.line(h); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// dropPartialLine cuts off the line in which the process was killed that wrote the file, if there is one.
func dropPartialLine(path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	block := make([]byte, 64<<10)
	for at := end; at > 0; {
		n := min(at, int64(len(block)))
		at -= n
		if _, err := f.ReadAt(block[:n], at); err != nil {
			return err
		}
		if i := bytes.LastIndexByte(block[:n], '\n'); i >= 0 {
			return f.Truncate(at + int64(i) + 1)
		}
	}
	return f.Truncate(0)
}

// Write adds a step.
func (w *Writer) Write(s *Step) error { return w.line(s) }

func (w *Writer) line(v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = w.f.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("hashes: %w", err)
	}
	return nil
}

// Close ends the record.
func (w *Writer) Close() error { return w.f.Close() }

// section is what a process has recorded.
type section struct {
	header Header
	steps  map[int64]*Step
}

// maxLine bounds a line of a record, in bytes.
const maxLine = 256 << 20

// read reads the record of a rank. A last line that is not complete is left out: the run was killed in it.
func read(path string) (list []*section, err error) {
	f, err := vfs.OS.Open(path)
	if err != nil {
		return nil, fmt.Errorf("hashes: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	lines.Split(func(data []byte, _ bool) (advance int, line []byte, err error) {
		if end := bytes.IndexByte(data, '\n'); end >= 0 {
			return end + 1, data[:end], nil
		}
		return 0, nil, nil
	})
	for n := 1; lines.Scan(); n++ {
		if list, err = parse(list, lines.Bytes()); err != nil {
			return nil, fmt.Errorf("hashes: %s, line %d: %w", path, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("hashes: %s: %w", path, err)
	}
	return list, nil
}

// parse adds a line to what was read.
func parse(list []*section, line []byte) ([]*section, error) {
	var kind struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(line, &kind); err != nil {
		return nil, err
	}
	if kind.Version != 0 {
		s := &section{steps: map[int64]*Step{}}
		if kind.Version != version {
			return nil, fmt.Errorf("version %d: want %d", kind.Version, version)
		}
		return append(list, s), json.Unmarshal(line, &s.header)
	}
	if len(list) == 0 {
		return nil, errors.New("a step without a header: want a file that record_hashes wrote")
	}
	s, step := list[len(list)-1], &Step{}
	if err := json.Unmarshal(line, step); err != nil {
		return nil, err
	}
	n := len(s.header.Params)
	begins := len(step.Grads)+len(step.State) == 0 // the weights before the first step
	if !begins && (len(step.Grads) != n || len(step.State) != n) || len(step.Weights) != n {
		return nil, fmt.Errorf("step %d has %d, %d and %d hashes: want %d of each, one for each parameter", step.Step,
			len(step.Grads), len(step.State), len(step.Weights), n)
	}
	s.steps[step.Step] = step
	return list, nil
}
