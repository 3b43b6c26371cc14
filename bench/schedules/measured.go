// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"encoding/csv"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

// sleeper is a model whose stages sleep: a pass takes the time that it is given and no processor, so that one machine
// runs the ranks of many.
type sleeper struct {
	Blocks []*nn.Linear `nn:"blocks"`
	Costs  []schedule.StageCosts
}

// pause sleeps for a number of milliseconds.
func pause(ms float64) { time.Sleep(time.Duration(ms * 1e6)) }

func newSleeper(in *nn.Init, costs []schedule.StageCosts) *sleeper {
	m := &sleeper{Costs: costs}
	for i, c := range costs {
		block := nn.NewLinear(in.Sub(fmt.Sprint("blocks.", i)), nn.LinearConfig{In: 1, Out: 1, NoBias: true})
		block.Weight.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { pause(c.Weight) })
		m.Blocks = append(m.Blocks, block)
	}
	return m
}

// Parts lists the blocks.
func (m *sleeper) Parts() (list []nn.Part) {
	for _, b := range m.Blocks {
		list = append(list, nn.Part{b})
	}
	return list
}

// forward runs a stage.
func (m *sleeper) forward(c *nn.Ctx, of pp.Model, b *data.Batch) (pp.Output, error) {
	x := c.Received(b.Tensors["x"])[0]
	for i, block := range of.(*sleeper).Blocks {
		x = nn.RunPart1(c, nn.Part{block}, func(x *tensor.Tensor) *tensor.Tensor {
			return m.sleep(c, i, block.Forward(c, x))
		}, x)
	}
	if c.Runs(of.(*sleeper).Blocks[len(m.Blocks)-1]) {
		return pp.Output{Loss: tensor.Sum(c.Ctx, x, nil, false), Count: 1}, nil
	}
	return pp.Output{Hidden: []*tensor.Tensor{x}}, nil
}

// sleep sleeps for the time of F, and in the backward pass for that of I.
func (m *sleeper) sleep(c *nn.Ctx, stage int, x *tensor.Tensor) *tensor.Tensor {
	training := c.Training
	return tensor.Custom(c.Ctx, tensor.CustomOp{Name: "sleep",
		Forward: func(c *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) {
			if training {
				pause(m.Costs[stage].Forward)
			}
			return in, nil
		},
		Backward: func(_ *tensor.Ctx, _, grads []*tensor.Tensor, _ []bool) []*tensor.Tensor {
			pause(m.Costs[stage].Input)
			return grads
		}}, x)[0]
}

// measure runs a setting's step on goroutines: the median of three.
func (s setting) measure(name string) (bubble float64, err error) {
	of, err := s.schedule(name)
	if err != nil {
		return 0, err
	}
	costs, bubbles := s.costs(of), []float64(nil)
	err = local.Run(s.ranks, comm.Options{}, func(g *comm.Group) error {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		c, listeners := tensor.NewCtx(dev), &trace.Listeners{}
		m := newSleeper(nn.NewInit(dev, 1), costs.Stages)
		stages, err := pp.Stages(m.Parts(), slices.Repeat([]int{1}, of.Stages()))
		if err != nil {
			return err
		}
		job := strategy.Job{Ctx: c, Tree: nn.Walk(m), Trace: listeners,
			Layout: samplers.WindowLayout{AccumulationSteps: s.microBatches, WorldSize: 1}}
		p, err := pp.New(pp.Config{Job: job, Model: m, Group: g, Schedule: of, Stages: stages, Forward: m.forward,
			Context: func(c *tensor.Ctx, tree *nn.Tree, _ *data.Batch, training bool) *nn.Ctx {
				return nn.NewCtx(c, tree, training)
			}})
		if err != nil {
			return err
		}
		var batches []*data.Batch
		for i := range s.microBatches {
			x := tensor.Full(c.NoGrad(), tensor.Float32, 1, 1, 1)
			batches = append(batches, &data.Batch{Tensors: map[string]*tensor.Tensor{"x": x}, Size: 1, MicroBatch: i})
		}
		listeners.Listen(func(trace.Span) {})
		for range 3 {
			if _, err := p.Step(context.Background(), batches, 1); err != nil {
				return err
			}
			line, err := p.Timeline(context.Background())
			if err != nil {
				return err
			}
			if line != nil {
				bubbles = append(bubbles, line.Measured.Idle())
			}
		}
		return p.Close(true)
	})
	return stats.Median(bubbles), err
}

// record is measured.tsv: the bubbles that were measured, by source, model, schedule, p and m.
//
//go:embed measured.tsv
var record string

// key is a setting's in the record.
func (s setting) key(name string) string {
	return fmt.Sprintf("%s\t%s\t%s\t%d\t%d", s.source, s.model, name, s.ranks, s.microBatches)
}

// measured reads the record.
func measured() (map[string]float64, error) {
	r := csv.NewReader(strings.NewReader(record))
	r.Comma, r.Comment = '\t', '#'
	rows, err := r.ReadAll()
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, row := range rows {
		if len(row) != 6 {
			return nil, fmt.Errorf("measured.tsv: %q: want 6 columns", row)
		}
		x, err := strconv.ParseFloat(row[5], 64)
		if err != nil {
			return nil, fmt.Errorf("measured.tsv: %w", err)
		}
		out[strings.Join(row[:5], "\t")] = x
	}
	return out, nil
}

// measureAll writes the record.
func measureAll(file string) error {
	out := "# Bubbles of steps whose passes sleep: source, model, schedule, ranks, micro-batches, bubble. " +
		"go run -C bench ./schedules --measure FILE\n"
	for _, s := range settings {
		for _, name := range s.names() {
			bubble, err := s.measure(name)
			if err != nil {
				return err
			}
			out += fmt.Sprintf("%s\t%.4f\n", s.key(name), bubble)
			log.Printf("%s\t%.4f", s.key(name), bubble)
		}
	}
	return os.WriteFile(file, []byte(out), 0o644)
}
