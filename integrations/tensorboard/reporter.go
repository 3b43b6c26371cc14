// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"encoding/json"
	"fmt"
	"image"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/sink"
)

// LoggingDirVariable is the environment variable that names the folder of the event files.
const LoggingDirVariable = "TENSORBOARD_LOGGING_DIR"

func init() {
	callbacks.RegisterReporter("tensorboard", func(a *args.TrainingArguments) (callbacks.Callback, error) {
		return New(logDir(a.OutputDir, a.RunName, time.Now())), nil
	})
}

// logDir returns TENSORBOARD_LOGGING_DIR, or else <outputDir>/runs/<date_host>, with the run's name before the date.
func logDir(outputDir, run string, now time.Time) string {
	if dir := os.Getenv(LoggingDirVariable); dir != "" {
		return dir
	}
	name := now.Format("Jan02_15-04-05") + "_" + hostName()
	if run != "" {
		name = plainName(run) + "_" + name
	}
	return filepath.Join(outputDir, "runs", name)
}

// plainName is a run's name as a part of a path: what is no letter, digit, dot, hyphen or underscore becomes one.
func plainName(run string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(".-_", r) {
			return r
		}
		return '_'
	}, run)
}

// Reporter writes the records of a run: the arguments as a text and as the hyperparameters of the HPARAMS tab, the
// model's configuration as a text, each number as a scalar, each text as a text, under the names of
// [callbacks.MetricName]. Writing never holds the run up: it happens on another goroutine, and failures are counted and
// told in the log.
type Reporter struct {
	callbacks.Base
	dir      string
	training bool
	sink     *sink.Sink
	put      func(job func(*Writer) error) // queues a job with the open file
}

// New returns a reporter that writes to event files in dir, one for each training, evaluation or prediction.
func New(dir string) *Reporter { return &Reporter{dir: dir} }

// CallbackName returns HuggingFace's name.
func (*Reporter) CallbackName() string { return "TensorBoardCallback" }

// OnTrainBegin begins a file with the arguments and the configuration of a model that has one.
func (r *Reporter) OnTrainBegin(e *callbacks.Event) error {
	_ = r.Close() // of a run that broke off
	r.training = true
	r.open()
	text, err := e.Args.JSON()
	if err != nil {
		return fmt.Errorf("writing the arguments: %w", err)
	}
	r.text("args", 0, asCode(text))
	now, settings := time.Now(), e.Args.Clone() // which belong to the run's goroutine
	r.put(func(w *Writer) error { return w.AddHParams(now, settings) })
	if m, ok := e.Model.(interface{ Config() any }); ok {
		if text, err = json.MarshalIndent(m.Config(), "", "  "); err != nil {
			return fmt.Errorf("writing the model's configuration: %w", err)
		}
		r.text("model_config", 0, asCode(text))
	}
	return nil
}

// asCode makes Markdown that shows a text as it is.
func asCode(text []byte) string {
	return "```json\n" + strings.TrimSuffix(string(text), "\n") + "\n```"
}

// OnLog writes a record.
func (r *Reporter) OnLog(e *callbacks.Event) error {
	if r.sink == nil {
		r.open()
	}
	var step int64
	if e.State != nil {
		step = e.State.GlobalStep
	}
	var tags []string
	var values []float64
	for tag, x := range e.Record.Metrics() {
		tags, values = append(tags, tag), append(values, x)
	}
	for _, key := range e.Record.Keys() {
		if text, ok := e.Record[key].(string); ok {
			r.text(callbacks.MetricName(key), step, text)
		}
	}
	now := time.Now()
	r.put(func(w *Writer) error { return w.AddScalars(now, step, tags, values) })
	return nil
}

// OnEvaluate ends the file of an evaluation outside of training.
func (r *Reporter) OnEvaluate(*callbacks.Event) error { return r.pause() }

// OnPredict ends the file of a prediction.
func (r *Reporter) OnPredict(*callbacks.Event) error { return r.pause() }

// OnTrainEnd closes the file. A run that was interrupted, or stopped because of a loss that was not finite, is no
// success.
func (r *Reporter) OnTrainEnd(e *callbacks.Event) error {
	kind := e.Control.StopReason.Kind
	return r.end(kind != callbacks.StopInterrupted && kind != callbacks.StopNonfinite)
}

// Close writes what waits and closes the file, also when a run broke off. A later record begins another file.
func (r *Reporter) Close() error { return r.end(false) }

// end ends the run under way, if there is one, and the file.
func (r *Reporter) end(success bool) error {
	if r.training {
		now := time.Now()
		r.put(func(w *Writer) error { return w.AddSessionEnd(now, success) })
	}
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

// open starts the goroutine. The file is made by its first job.
func (r *Reporter) open() {
	f := &lazyFile{dir: r.dir}
	r.sink = sink.New(sink.Options{Name: "tensorboard", Flush: f.flush, Close: f.close})
	r.put = func(job func(*Writer) error) { r.sink.Put(func() error { return f.do(job) }) }
}

func (r *Reporter) text(tag string, step int64, text string) {
	now := time.Now()
	r.put(func(w *Writer) error { return w.AddText(now, step, tag, text) })
}

// AddHistogram writes how values are distributed, such as those of a weight at a step: see Writer.AddHistogram. The
// values belong to the reporter from here on. Call it from a callback, while the run continues.
func (r *Reporter) AddHistogram(step int64, tag string, values []float64) {
	now := time.Now()
	r.add(func(w *Writer) error { return w.AddHistogram(now, step, tag, values) })
}

// AddImage writes an image, which belongs to the reporter from here on: see Writer.AddImage. Call it from a callback,
// while the run continues.
func (r *Reporter) AddImage(step int64, tag string, m image.Image) {
	now := time.Now()
	r.add(func(w *Writer) error { return w.AddImage(now, step, tag, m) })
}

// add queues a job of a caller.
func (r *Reporter) add(job func(*Writer) error) {
	if r.sink == nil {
		r.open()
	}
	r.put(job)
}

// lazyFile is an event file that is made when there is something to write.
type lazyFile struct {
	dir string
	w   *Writer
}

func (f *lazyFile) do(job func(*Writer) error) error {
	if f.w == nil {
		w, err := NewWriter(f.dir)
		if err != nil {
			return err
		}
		f.w = w
	}
	return job(f.w)
}

func (f *lazyFile) flush() error {
	if f.w == nil {
		return nil
	}
	return f.w.Flush()
}

func (f *lazyFile) close() error {
	if f.w == nil {
		return nil
	}
	return f.w.Close()
}
