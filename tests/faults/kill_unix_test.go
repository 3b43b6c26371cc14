// SPDX-License-Identifier: Apache-2.0

//go:build unix

package faults_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Variables that make the test binary a training process: its output folder, how many steps
// lie between checkpoints (0: none but on an interrupt), and the step at whose end it waits for
// an interrupt (0: none).
const (
	folderVariable = "LOCKSTEP_TEST_FAULTS_FOLDER"
	saveVariable   = "LOCKSTEP_TEST_FAULTS_SAVE_STEPS"
	waitVariable   = "LOCKSTEP_TEST_FAULTS_WAIT"
)

const steps = 40

func TestMain(m *testing.M) {
	if dir := os.Getenv(folderVariable); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

// point is a sample of y = 2x + 3 + noise.
type point struct {
	Inputs [1]float32
	Labels float32
}

func points() data.Source {
	r := rand.New(rand.NewPCG(1, 2))
	list := make(data.Slice[point], 61)
	for i := range list {
		x := r.NormFloat64()
		list[i] = point{[1]float32{float32(x)}, float32(2*x + 3 + 0.1*r.NormFloat64())}
	}
	return data.NewSource(list, data.Stack[point])
}

// teller writes a line for each step done and each checkpoint written, and waits at a step.
type teller struct {
	callbacks.Base
	wait int64
	done <-chan struct{}
}

func (c *teller) OnStepEnd(e *callbacks.Event) error {
	_, err := fmt.Println("step", e.State.GlobalStep)
	if e.State.GlobalStep == c.wait {
		<-c.done
	}
	return err
}

func (c *teller) OnSave(e *callbacks.Event) error {
	_, err := fmt.Println("saved", e.State.GlobalStep)
	return err
}

// training is the run of this package: it continues from the last checkpoint of dir, if there is one.
func training(dir string, saveSteps float64, tell *teller) (*trainer.Trainer, error) {
	m, err := mlp.New(nn.NewInit(tensor.CPU(), 1), mlp.Config{Sizes: []int{1, 8, 1}})
	if err != nil {
		return nil, err
	}
	a := args.Default(dir)
	a.MaxSteps, a.LearningRate, a.GradientAccumulationSteps, a.DataloaderNumWorkers = steps, 0.05, 3, 2
	a.SaveStrategy = args.StrategyNo
	if saveSteps > 0 {
		a.SaveStrategy, a.SaveSteps, a.SaveTotalLimit = args.StrategySteps, saveSteps, new(2)
	}
	if _, err := (&checkpoint.Store{Dir: dir, Log: discard}).Latest(context.Background()); err == nil {
		a.ResumeFromCheckpoint = "last"
	}
	return trainer.New(m, a, trainer.WithTrainData(points()), trainer.WithDisplay(nil), trainer.WithLogger(discard),
		trainer.WithCallbacks(tell)), nil
}

var discard = slog.New(slog.DiscardHandler)

// child trains until it is done, killed or interrupted, and gives the exit code.
func child(dir string) int {
	saveSteps, saveErr := strconv.ParseFloat(os.Getenv(saveVariable), 64)
	wait, waitErr := strconv.ParseInt(os.Getenv(waitVariable), 10, 64)
	if err := errors.Join(saveErr, waitErr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	t, err := training(dir, saveSteps, &teller{wait: wait, done: ctx.Done()})
	if err == nil {
		_, err = t.TrainContext(ctx)
	}
	switch {
	case errors.Is(err, trainer.ErrInterrupted):
		return 130
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a running child.
type process struct {
	*exec.Cmd
	lines  *bufio.Scanner
	stderr strings.Builder
}

func start(t *testing.T, dir string, saveSteps, wait int) *process {
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &process{Cmd: exec.Command(exe)}
	p.Env = append(os.Environ(), folderVariable+"="+dir, fmt.Sprintf("%s=%d", saveVariable, saveSteps),
		fmt.Sprintf("%s=%d", waitVariable, wait))
	p.Stderr = &p.stderr
	pipe, err := p.StdoutPipe()
	require.NoError(t, err)
	p.lines = bufio.NewScanner(pipe)
	require.NoError(t, p.Start())
	return p
}

// until reads lines up to the n-th that begins with a text; false if they ended before.
func (p *process) until(begin string, n int) bool {
	for p.lines.Scan() {
		if strings.HasPrefix(p.lines.Text(), begin) {
			if n--; n == 0 {
				return true
			}
		}
	}
	return false
}

// end waits for the process and gives its exit code, −1 if a signal ended it.
func (p *process) end() int {
	for p.lines.Scan() {
	}
	_ = p.Wait()
	return p.ProcessState.ExitCode()
}

// bits are the weights that the last checkpoint of dir holds, and its step.
func bits(t *testing.T, dir string) (weights string, step int64) {
	ck, err := (&checkpoint.Store{Dir: dir, Log: discard}).Latest(context.Background())
	require.NoError(t, err)
	text, err := ck.ReadPart("model.safetensors")
	require.NoError(t, err)
	return string(text), ck.Step
}

// uninterrupted trains once without disturbance and gives the last weights.
func uninterrupted(t *testing.T) string {
	dir := t.TempDir()
	p := start(t, dir, steps, 0)
	require.Equal(t, 0, p.end(), p.stderr.String())
	weights, step := bits(t, dir)
	require.EqualValues(t, steps, step)
	return weights
}

// TestKilledTrainingGoesOn kills a training process again and again at random moments, most
// of which lie in a save. What is found afterwards can always be loaded, never goes
// back, and leads to the weights of the undisturbed run.
func TestKilledTrainingGoesOn(t *testing.T) {
	want := uninterrupted(t)
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	last, kills := int64(0), 0
	for last < steps {
		p := start(t, dir, 1, 0)
		if p.until("saved", 1+r.IntN(4)) {
			time.Sleep(time.Duration(r.IntN(4_000)) * time.Microsecond)
			require.NoError(t, p.Process.Kill())
			kills++
		}
		if code := p.end(); code != -1 {
			require.Equal(t, 0, code, p.stderr.String())
		}
		_, step := bits(t, dir)
		require.Greater(t, step, last)
		last = step
	}
	require.Positive(t, kills)
	require.Equal(t, 0, start(t, dir, 1, 0).end(), "the finished run is resumed and ends at once")
	weights, step := bits(t, dir)
	require.EqualValues(t, steps, step)
	require.Equal(t, want, weights)
}

// TestInterruptedTrainingGoesOn sends SIGINT: the process finishes its step, saves, and its
// successor ends with the weights of the undisturbed run.
func TestInterruptedTrainingGoesOn(t *testing.T) {
	want := uninterrupted(t)
	dir := t.TempDir()
	for _, at := range []int{1, 8, 20} {
		p := start(t, dir, 0, at)
		require.True(t, p.until(fmt.Sprint("step ", at), 1), p.stderr.String())
		require.NoError(t, p.Process.Signal(os.Interrupt))
		require.Equal(t, 130, p.end(), p.stderr.String())
		_, step := bits(t, dir)
		require.EqualValues(t, at, step)
	}
	p := start(t, dir, steps, 0)
	require.Equal(t, 0, p.end(), p.stderr.String())
	weights, step := bits(t, dir)
	require.EqualValues(t, steps, step)
	require.Equal(t, want, weights)
}
