// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func init() { roles["trainers"] = severalTrainers }

type point struct{ Inputs, Labels [1]float32 }

// severalTrainers trains one model after the other in a folder, and evaluates some of them; it closes every second
// trainer. None may leave anything behind once it is gone: no shared memory after any, and fewer goroutines after all
// than one each, counted from the second, since what serves them all begins when it is first needed.
func severalTrainers(ctx context.Context, p *program.Process) error {
	const trainers = 6
	dir, engine, before := p.Args[0], args.Backend(p.Args[1]), 0
	for i := range trainers {
		if err := trainOnce(ctx, dir, engine, p.Args[2:], i%2 == 1, i%3 == 0); err != nil {
			return fmt.Errorf("trainer %d: %w", i, err)
		}
		limit := math.MaxInt
		if i == trainers-1 {
			limit = before + trainers - 2
		}
		held, segments := 0, 0
		for range 2000 { // what the collector closes takes a moment
			runtime.GC()
			maps, err := os.ReadFile("/proc/self/maps")
			if err != nil {
				return err
			}
			held, segments = runtime.NumGoroutine(), strings.Count(string(maps), "/memfd:lockstep")
			if held < limit && segments == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if held >= limit || segments > 0 {
			return fmt.Errorf("after trainer %d: %d goroutines, %d segments; after the second: %d", i, held, segments,
				before)
		}
		if i == 1 {
			before = held
		}
	}
	fmt.Fprintln(p.Stdout, "all trained")
	return nil
}

// trainOnce trains and saves a small model.
func trainOnce(ctx context.Context, dir string, engine args.Backend, fsdp []string, closed, evaluate bool) error {
	a := args.Default(dir)
	a.MaxSteps, a.SaveSteps, a.LoggingSteps, a.OverwriteOutputDir = 3, 2, 1, true
	a.ReportTo, a.FSDP, a.DDPBackend = []string{"jsonl"}, fsdp, engine
	m, err := mlp.New(nn.NewInit(tensor.CPU(), 1), mlp.Config{Sizes: []int{1, 8, 1}, Loss: "mse"})
	if err != nil {
		return err
	}
	samples := data.NewSource(make(data.Slice[point], 64), data.Stack[point])
	t := trainer.New(m, a, trainer.WithDisplay(nil), trainer.WithTrainData(samples), trainer.WithEvalData(samples))
	if closed {
		defer t.Close()
	}
	if _, err := t.TrainContext(ctx); err != nil {
		return err
	}
	if evaluate {
		if _, err := t.EvaluateContext(ctx); err != nil {
			return err
		}
	}
	return t.SaveModel("")
}

// A process may train several models one after the other with the same ranks, closing its trainers or not. What a
// trainer held is free once nothing refers to it, and no flight record speaks of a lost rank.
func TestSeveralTrainersInAJob(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	for _, fsdp := range [][]string{nil, {"full_shard"}} {
		for _, engine := range []string{"shm", "tcp"} {
			dir := filepath.Join(t.TempDir(), "out")
			line := append([]string{lockstep, "launch", "--nproc_per_node", "2", "--", self, dir, engine}, fsdp...)
			p := succeed(t, line, role+"=trainers")
			require.Contains(t, p.stdout.String(), "all trained")
			require.NotContains(t, p.stderr.String(), "flight record")
			require.FileExists(t, filepath.Join(dir, "model.safetensors"))
			log, err := os.ReadFile(filepath.Join(dir, "log.jsonl"))
			require.NoError(t, err)
			require.Contains(t, string(log), "train_loss", "the reporter has written all")
		}
	}
}
