// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/trainer"
)

// freezer freezes a parameter after the first step, on the rank that it runs on: rank 0.
type freezer struct {
	callbacks.Base
	name string
}

func (f *freezer) OnStepEnd(e *callbacks.Event) error {
	for _, p := range nn.NamedParameters(e.Model) {
		if p.Name == f.name && e.State.GlobalStep == 1 {
			p.SetRequiresGrad(false)
		}
	}
	return nil
}

// everyFreezer is one that runs on all ranks.
type everyFreezer struct{ freezer }

func (*everyFreezer) EveryRank() {}

// spreads are the ways in which ranks exchange gradients and share a model.
func spreads() map[string]func(a *args.TrainingArguments) {
	list := map[string]func(a *args.TrainingArguments){
		"ddp":              func(*args.TrainingArguments) {},
		"fsdp, shared":     func(a *args.TrainingArguments) { a.FSDP = []string{"full_shard", "auto_wrap"} },
		"local_sgd_steps":  func(a *args.TrainingArguments) { a.LocalSGDSteps = 2 },
		"ddp_static_graph": func(a *args.TrainingArguments) { a.DDPStaticGraph = true },
	}
	for name, set := range shardings {
		list[name] = set
	}
	return list
}

// A parameter that a callback freezes on rank 0 alone is an error that names it, however the ranks exchange gradients:
// each way would go on with another model.
func TestFreezingOnOneRankIsAnError(t *testing.T) {
	for name, set := range spreads() {
		for _, parameter := range []string{"transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"} {
			a := rankArgs(2)
			if name == "fsdp hybrid_shard" {
				a = rankArgs(4)
			}
			set(a)
			tr := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
				trainer.WithEvalData(raggedTexts(13)), trainer.WithCallbacks(&freezer{name: parameter}))
			_, err := tr.Train()
			require.NoError(t, tr.Close())
			require.ErrorContains(t, err, parameter, name)
			if name != "ddp_static_graph" { // ranks exchange nothing: its promise is broken
				require.ErrorContains(t, err, "EveryRank", name)
			}
		}
	}
}

// On every rank it is none, and leaves the same model.
func TestFreezingOnEveryRankIsNoError(t *testing.T) {
	const parameter = "transformer.h.0.mlp.c_fc.weight"
	frozen := func(ranks int, set func(*args.TrainingArguments)) map[string][]byte {
		a := rankArgs(ranks)
		set(a)
		m := newGPT2(t, 0)
		tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(13)), trainer.WithCallbacks(&everyFreezer{freezer{name: parameter}}))
		_, err := tr.Train()
		require.NoError(t, err)
		require.NoError(t, tr.Close())
		return weights(m)
	}
	want := frozen(1, func(*args.TrainingArguments) {})
	for _, name := range []string{"ddp", "fsdp, shared", "fsdp full_shard"} {
		require.Equal(t, want, frozen(2, spreads()[name]), name)
	}
}
