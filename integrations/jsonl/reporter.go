// SPDX-License-Identifier: Apache-2.0

// Package jsonl writes the log records of a run to a file, one JSON object per line. Use it to read the course of a run
// with other tools, such as pandas or jq: import the package for its side effect, and set the argument report_to to
// jsonl.
//
// The file is not the trainer_state.json of a checkpoint, which holds the same records up to its own step.
package jsonl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/sink"
)

// FileName is the name of the log in the output folder.
const FileName = "log.jsonl"

func init() {
	callbacks.RegisterReporter("jsonl", func(a *args.TrainingArguments) (callbacks.Callback, error) {
		return New(filepath.Join(a.OutputDir, FileName)), nil
	})
}

// Reporter appends each record to a file as it comes. A resumed run continues with the file that is there, from which
// an unfinished last line is cut; a new run begins a new one and keeps the old as <path>.old. Writing never holds the
// run up: it happens on another goroutine, and failures are counted and told in the log.
type Reporter struct {
	callbacks.Base
	path     string
	training bool
	sink     *sink.Sink
	put      func(line []byte) // queues a line for the open file
}

// New returns a reporter that writes to path. Folders are made when it first writes.
func New(path string) *Reporter { return &Reporter{path: path} }

// CallbackName returns the reporter's name.
func (*Reporter) CallbackName() string { return "jsonl" }

// OnTrainBegin opens the file.
func (r *Reporter) OnTrainBegin(e *callbacks.Event) error {
	_ = r.Close() // of a run that broke off
	r.training = true
	r.open(e.State.GlobalStep == 0)
	return nil
}

// OnLog writes the record.
func (r *Reporter) OnLog(e *callbacks.Event) error {
	record := e.Record
	if e.Args != nil && e.Args.RunName != "" {
		record = maps.Clone(record)
		record["run_name"] = e.Args.RunName
	}
	line, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("writing a record as JSON: %w", err)
	}
	if r.sink == nil {
		r.open(false)
	}
	r.put(append(line, '\n'))
	return nil
}

// OnEvaluate ends what an evaluation outside of training wrote.
func (r *Reporter) OnEvaluate(*callbacks.Event) error { return r.pause() }

// OnPredict ends what a prediction wrote.
func (r *Reporter) OnPredict(*callbacks.Event) error { return r.pause() }

// OnTrainEnd closes the file.
func (r *Reporter) OnTrainEnd(*callbacks.Event) error { return r.Close() }

// Close writes what waits and closes the file, also when a run broke off. A later record opens it again.
func (r *Reporter) Close() error {
	r.training = false
	return r.pause()
}

func (r *Reporter) pause() error {
	if !r.training && r.sink != nil {
		r.sink.Close()
		r.sink = nil
	}
	return nil
}

// open starts the goroutine, whose first job is to open the file.
func (r *Reporter) open(anew bool) {
	f := &file{path: r.path, anew: anew}
	r.sink = sink.New(sink.Options{Name: "jsonl", Close: f.close})
	r.put = func(line []byte) { r.sink.Put(func() error { return f.write(line) }) }
}

// file is the log as the goroutine sees it.
type file struct {
	path string
	anew bool
	f    *os.File
	end  int64 // behind the last whole line
}

func (w *file) write(line []byte) error {
	if w.f == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	if _, err := w.f.WriteAt(line, w.end); err != nil {
		return errors.Join(err, w.f.Truncate(w.end))
	}
	w.end += int64(len(line))
	return nil
}

func (w *file) open() error {
	if err := os.MkdirAll(filepath.Dir(w.path), 0o777); err != nil {
		return err
	}
	if w.anew {
		if err := os.Rename(w.path, w.path+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		w.anew = false
	}
	f, err := os.OpenFile(w.path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	end, err := afterLastLine(f)
	if err == nil {
		err = f.Truncate(end)
	}
	if err != nil {
		f.Close()
		return err
	}
	w.f, w.end = f, end
	return nil
}

// afterLastLine returns the offset behind the last line break, searching from the end.
func afterLastLine(f *os.File) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	block := make([]byte, 64<<10)
	for end > 0 {
		n := min(end, int64(len(block)))
		if _, err := f.ReadAt(block[:n], end-n); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(block[:n], '\n'); i >= 0 {
			return end - n + int64(i) + 1, nil
		}
		end -= n
	}
	return 0, nil
}

func (w *file) close() error {
	if w.f == nil {
		return nil
	}
	return w.f.Close()
}
