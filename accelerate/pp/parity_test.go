// SPDX-License-Identifier: Apache-2.0

package pp_test

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// torchPipelines is the record of testdata/pipelines.py.
type torchPipelines struct {
	LearningRate float64                `json:"learning_rate"`
	IDs          [][][][]int64          `json:"ids"`
	Losses       map[string][][]float64 `json:"losses"`
}

// batches are the micro-batches of a step.
func (g *torchPipelines) batches(c *tensor.Ctx, step int) (list []*data.Batch) {
	for i, samples := range g.IDs[step] {
		var flat []int64
		for _, s := range samples {
			flat = append(flat, s...)
		}
		t := tensor.FromSlice(c.NoGrad(), flat, len(samples), len(samples[0]))
		list = append(list, &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t},
			Size: len(samples), Count: float64(len(samples) * (len(samples[0]) - 1)), MicroBatch: i})
	}
	return list
}

// Pipelines have the losses of PyTorch's, which train a GPT-2 of transformers from the same weights.
func TestLossesOfPyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/pipelines.json")
	require.NoError(t, err)
	var golden torchPipelines
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden.Losses, len(schedule.Names())+1)
	s := settings{deterministic: 1, micro: len(golden.IDs[0]), pretrained: "../../models/gpt2/testdata/tiny"}
	for _, name := range schedule.Names() {
		require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
			r, err := s.rank(g, name, 0)
			if err != nil {
				return err
			}
			sgd := optim.SGD{}.New(r.c, []*optim.Group{{LR: golden.LearningRate, Params: r.Params()}})
			for step := range golden.IDs {
				batches := golden.batches(r.c, step)
				losses, err := r.Step(context.Background(), batches, 1/(batches[0].Count*float64(s.micro)))
				if err != nil {
					return err
				}
				sgd.Step(r.c)
				for i, loss := range losses {
					for _, of := range []string{name, "one"} {
						want := golden.Losses[of][step][i]
						require.InDelta(t, 1, loss.Sum/loss.Count/want, 1e-6, "%s, step %d, batch %d", of, step, i)
					}
				}
			}
			return r.Close(true)
		}))
	}
}
