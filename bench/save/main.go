// SPDX-License-Identifier: Apache-2.0

// Save measures how long a checkpoint interrupts training, from the end of a step to the event save, with and without
// async_save. It trains a GPT-2 and writes its weights and AdamW's state after every step into a temporary folder.
//
//	go run -C bench ./save --n_embd 768 --n_layer 12 --saves 5
package main

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// bench is what is measured.
type bench struct {
	model gpt2.Config
	saves int
}

func main() {
	b := bench{model: gpt2.DefaultConfig()}
	pflag.IntVar(&b.model.NLayer, "n_layer", 6, "layers")
	pflag.IntVar(&b.model.NEmbd, "n_embd", 384, "width")
	pflag.IntVar(&b.model.NHead, "n_head", 6, "heads")
	pflag.IntVar(&b.model.VocabSize, "vocab_size", 8192, "tokens of the vocabulary")
	pflag.IntVar(&b.model.NPositions, "block", 64, "tokens per sample")
	pflag.IntVar(&b.saves, "saves", 5, "checkpoints")
	pflag.Parse()
	if err := b.run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// stall measures the time from the end of a step to the event save.
type stall struct {
	callbacks.Base
	since time.Time
	times []float64 // seconds
}

func (s *stall) OnStepEnd(*callbacks.Event) error {
	s.since = time.Now()
	return nil
}

func (s *stall) OnSave(*callbacks.Event) error {
	s.times = append(s.times, time.Since(s.since).Seconds())
	return nil
}

// run measures and prints.
func (b *bench) run(w io.Writer) error {
	var medians []float64
	for _, async := range []bool{false, true} {
		s, bytes, err := b.train(async)
		if err != nil {
			return err
		}
		medians = append(medians, stats.Median(s.times))
		fmt.Fprintf(w, "async_save %-5t %8.1f ms of standstill for a checkpoint of %.0f MB (median of %d)\n", async,
			1e3*stats.Median(s.times), float64(bytes)/1e6, len(s.times))
	}
	fmt.Fprintf(w, "RATIO async_save 1 %.2f\n", medians[0]/medians[1])
	return nil
}

// train runs as many steps as there are checkpoints. Each step takes long enough that the disk has written the one
// before.
func (b *bench) train(async bool) (s *stall, bytes int64, err error) {
	dir, err := os.MkdirTemp("", "save-*")
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 42), b.model)
	if err != nil {
		return nil, 0, err
	}
	a := args.Default(dir)
	a.MaxSteps, a.PerDeviceTrainBatchSize, a.AsyncSave = b.saves, 1, async
	a.SaveSteps, a.SaveTotalLimit = 1, new(1)
	s = &stall{}
	text := make([]int32, b.model.NPositions)
	written := &settled{dir: dir}
	_, err = trainer.New(m, a, trainer.WithTrainData(data.NewSource(data.Slice[[]int32]{text}, data.CausalLM(0))),
		trainer.WithDisplay(nil), trainer.WithLogger(slog.New(slog.DiscardHandler)),
		trainer.WithCallbacks(written, s)).Train()
	for _, p := range nn.NamedParameters(m) {
		bytes += 3 * int64(p.Numel()) * int64(p.DType().Size()) // AdamW has two moments
	}
	return s, bytes, err
}

// settled waits at the beginning of a step until the checkpoint before is complete: else the next save would wait.
type settled struct {
	callbacks.Base
	dir string
}

func (s *settled) OnStepBegin(e *callbacks.Event) error {
	if e.State.GlobalStep == 0 {
		return nil
	}
	path := fmt.Sprintf("%s/checkpoint-%d", s.dir, e.State.GlobalStep)
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s is not there after a minute", path)
}
