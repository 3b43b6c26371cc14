// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// length is the tokens of a sample.
const length = 64

// events are what happens to a run besides its training.
type events struct {
	StopAfter int64 `json:"stop_after" usage:"save and end after this step; 0: never"`
	KillAfter int64 `json:"kill_after" usage:"step after which a rank is killed, unless it was started again; 0: none"`
	KillRank  int   `json:"kill_rank" usage:"the rank that is killed"`
}

// Rank trains: it is the program of a process of the proof, for program.Run. The first word of the command line is the
// command's name.
func Rank(ctx context.Context, p *program.Process) error {
	p.Args = p.Args[1:]
	a, happens := settings(""), &events{}
	if _, err := p.Parse(args.Bind(p.Flags(), a, happens)); err != nil {
		return err
	}
	place, err := env.Detect(os.LookupEnv)
	if err != nil {
		return err
	}
	model, err := model()
	if err != nil {
		return err
	}
	samples, err := samples()
	if err != nil {
		return err
	}
	t := trainer.New(model, a, trainer.WithTrainData(samples),
		trainer.WithCallbacks(&fate{events: *happens, of: place, dir: a.OutputDir}))
	_, err = t.TrainContext(ctx)
	return err
}

// settings are those of all runs.
func settings(dir string) *args.TrainingArguments {
	a := args.Default(dir)
	a.LearningRate, a.LRSchedulerType, a.WarmupSteps, a.WeightDecay = 2e-3, args.SchedulerCosine, 4, 0.1
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 1, samplesOfStep
	a.RecordHashes, a.LoggingSteps = args.RecordStep, 1
	return a
}

// model is a GPT-2 of 830,000 parameters with dropout.
func model() (*gpt2.Model, error) {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 4, 128, 8, 256, length
	cfg.BosTokenID, cfg.EosTokenID = nil, nil
	return gpt2.New(nn.NewInit(tensor.CPU(), 42), cfg)
}

// samples are pieces of a text that every program contains, the help of the trainer's settings. A token is a byte.
func samples() (data.Source, error) {
	text := args.Bind(pflag.NewFlagSet("", pflag.ContinueOnError), args.Default("")).Usage()
	ids := make(data.TokenSlice, len(text))
	for i := range ids {
		ids[i] = int32(text[i])
	}
	blocks, err := data.TrainBlocks(ids, length)
	if err != nil {
		return nil, err
	}
	return data.NewSource(blocks, data.CausalLM(0)), nil
}

// fate ends runs.
type fate struct {
	callbacks.Base
	events
	of  *env.Environment
	dir string
}

// EveryRank makes the callback one of every rank.
func (*fate) EveryRank() {}

// OnStepEnd kills the process, or ends the run.
func (f *fate) OnStepEnd(e *callbacks.Event) error {
	switch step := e.State.GlobalStep; {
	case step == f.KillAfter && f.of.RestartCount == 0 && f.of.Rank == f.KillRank:
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			return err
		}
		if err := self.Kill(); err != nil {
			return err
		}
		select {} // until it dies
	case step == f.StopAfter:
		e.Control.ShouldSave = true
		e.Control.StopTraining(fmt.Sprintf("stop_after %d", step))
	}
	return nil
}
