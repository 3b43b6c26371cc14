// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// files tells the files of one process apart that were made in the same second.
var files atomic.Int64

// Writer writes one event file. Events are buffered until Flush or Close. It is not safe for concurrent use.
type Writer struct {
	path    string
	file    *os.File
	buffer  *bufio.Writer
	records recordWriter
}

// NewWriter creates an event file with a unique name in dir, which it creates if missing, and writes the first event.
func NewWriter(dir string) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("tensorboard: %w", err)
	}
	now := time.Now()
	name := fmt.Sprintf("events.out.tfevents.%d.%s.%d.%d", now.Unix(), hostName(), os.Getpid(), files.Add(1)-1)
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("tensorboard: %w", err)
	}
	buffer := bufio.NewWriterSize(f, 64<<10)
	w := &Writer{path: path, file: f, buffer: buffer, records: recordWriter{buffer}}
	if err := w.records.write(versionEvent(now)); err != nil {
		return nil, errors.Join(fmt.Errorf("tensorboard: %w", err), f.Close())
	}
	return w, nil
}

// Path returns the file's path.
func (w *Writer) Path() string { return w.path }

// AddScalars writes numbers of one step, by tag. TensorBoard keeps them in float32.
func (w *Writer) AddScalars(at time.Time, step int64, tags []string, values []float64) error {
	encoded := make([][]byte, len(tags))
	for i, tag := range tags {
		encoded[i] = scalarValue(tag, values[i])
	}
	return w.add(summaryEvent(at, step, encoded...))
}

// AddText writes a text, which TensorBoard shows as Markdown.
func (w *Writer) AddText(at time.Time, step int64, tag, text string) error {
	return w.add(summaryEvent(at, step, textValue(tag, text)))
}

func (w *Writer) add(event []byte) error {
	if err := w.records.write(event); err != nil {
		return fmt.Errorf("tensorboard: writing %s: %w", w.path, err)
	}
	return nil
}

// Flush hands what is buffered to the system.
func (w *Writer) Flush() error {
	if err := w.buffer.Flush(); err != nil {
		return fmt.Errorf("tensorboard: writing %s: %w", w.path, err)
	}
	return nil
}

// Close flushes and closes the file.
func (w *Writer) Close() error { return errors.Join(w.Flush(), w.file.Close()) }

func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	return name
}
