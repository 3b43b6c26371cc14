// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/trainer"
)

// stagesEstimate is what the command shows of a mesh with pipelines.
type stagesEstimate struct {
	ModelType    string          `json:"model_type"`
	Count        int             `json:"num_parameters"`
	Mesh         string          `json:"mesh"`
	Schedule     string          `json:"pp_schedule"`
	MicroBatches int             `json:"micro_batches"`
	Split        []int           `json:"pp_split"` // parts of each stage
	Ranks        []stageEstimate `json:"ranks"`    // of a pipeline
}

// stageEstimate is what a rank of a pipeline needs.
type stageEstimate struct {
	Stages []int `json:"stages"`
	*trainer.MemoryEstimate
}

// estimateStages estimates the memory of each rank of a pipeline.
func (p *program) estimateStages(a *args.TrainingArguments, s *estimateSettings, m *sampleModel,
	dtype string) error {
	play, err := m.play(a, s.Ranks)
	if err != nil {
		return err
	}
	list, r, err := play.EstimateMemory()
	if err != nil {
		return err
	}
	e := &stagesEstimate{ModelType: m.modelType, Count: m.parameters, Mesh: play.Mesh.String(),
		Schedule: r.Schedule.Name, MicroBatches: r.Schedule.MicroBatches, Split: r.Split}
	for i, of := range list {
		e.Ranks = append(e.Ranks, stageEstimate{r.Schedule.StagesOf(i), of})
	}
	if s.JSON {
		return p.json(e)
	}
	fmt.Fprint(p.stdout, terminal.Lines(fmt.Sprintf("%s, %d parameters in %s, %s of %s, %s\nmesh %s: %s, %s of %s "+
		"parts\nMiB on each rank of a pipeline\n", e.ModelType, e.Count, dtype,
		quantity.Of(e.MicroBatches, "micro-batch"), quantity.Of(a.PerDeviceTrainBatchSize, "sample"), a.Optim,
		e.Mesh, e.Schedule, quantity.Of(len(e.Split), "stage"), numbers(e.Split)), terminal.Width(p.stdout)))
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "rank\tstages\tparams\tgrads\toptim\tactivations\tgathered\tpeak\t")
	for i, r := range e.Ranks {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", i, numbers(r.Stages), mebibytes(r.Parameters),
			mebibytes(r.Gradients), mebibytes(r.OptimizerState), mebibytes(r.Activations), mebibytes(r.Gathered),
			mebibytes(r.Peak))
	}
	return w.Flush()
}

// numbers lists numbers: "4, 4, 6".
func numbers(list []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ", ")
}
