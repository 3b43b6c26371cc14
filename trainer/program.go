// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Program says which reporters, engines and devices the running program has, by the packages that it imports. A loader
// that is told (args.Loader.ForProgram) reports a missing one together with all other faults of the command line:
//
//	loader := args.Bind(flags, a)
//	loader.ForProgram(trainer.Program())
func Program() args.Program {
	p := args.Program{Reporters: callbacks.ReporterNames(), Engines: rendezvous.EngineNames(),
		Devices: tensor.DeviceNames()}
	p.Mesh = func(a *args.TrainingArguments, ranks int) error {
		_, err := accelerate.MeshOf(a, ranks)
		return err
	}
	p.Tensors = func(a *args.TrainingArguments, model any) error {
		m, _ := model.(nn.Module)
		return checkTensors(a, m)
	}
	p.Tokens = func(a *args.TrainingArguments, model any) error {
		m, _ := model.(nn.Module)
		return accelerate.CheckTokens(a, m)
	}
	p.Stages = func(name string, ranks, microBatches int) (int, error) {
		if microBatches == 0 && slices.Contains(schedule.Names(), name) {
			microBatches = 2 * ranks // which all of them take
		}
		s, err := schedule.Load(name, schedule.Shape{Ranks: ranks, MicroBatches: microBatches})
		if err != nil {
			return 0, err
		}
		return s.Stages(), nil
	}
	if comm.HasDeviceEngine(string(args.BackendNCCL)) {
		p.Engines = append(p.Engines, string(args.BackendNCCL))
	}
	return p
}

// ProgramFor is Program for the training of the model: args.TrainingArguments.ValidateFor then also compares the stages
// of a pipeline with the model's parts, tp_size, tp_plan and tp_parts with its matrices, and cp_strategy and cp_chunks
// with its attentions. New does that too; a program that reads much data first may do it before.
func ProgramFor(model models.Model) args.Program {
	p := Program()
	if m, ok := model.(models.Pipelined); ok {
		p.Parts = len(m.Parts())
	}
	p.Tensors = func(a *args.TrainingArguments, _ any) error { return checkTensors(a, model) }
	p.Tokens = func(a *args.TrainingArguments, _ any) error { return accelerate.CheckTokens(a, model) }
	return p
}

// checkTensors is what is wrong with how the matrices of a model are divided. A model that makes an example shows
// whether the rules of its plan fit each other.
func checkTensors(a *args.TrainingArguments, m nn.Module) error {
	err := accelerate.CheckTensors(a, m)
	example, ok := m.(interface {
		models.Model
		models.Example
	})
	if err != nil || !ok {
		return err
	}
	return accelerate.RehearseTensors(a, example, func(c *nn.Ctx, m nn.Module) {
		m.(models.Model).Forward(c, example.ExampleBatch(c.Ctx, 1, 0))
	})
}
