// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
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

// reader looks at a weight after each step, on the rank that it runs on: rank 0.
type reader struct {
	callbacks.Base
	sums []float64
}

func (r *reader) OnStepEnd(e *callbacks.Event) error {
	r.sums = append(r.sums, sumOfWeight(e))
	return nil
}

func sumOfWeight(e *callbacks.Event) (sum float64) {
	p := nn.NamedParameters(e.Model)[0]
	for _, x := range tensor.ToSlice[float32](tensor.NewCtx(p.Device()).NoGrad(), p.Tensor) {
		sum += float64(x)
	}
	return sum
}

// everyReader does so within Summon, on every rank.
type everyReader struct {
	callbacks.Base
	mu   sync.Mutex // ranks are goroutines
	sums map[int64][]float64
}

func (*everyReader) EveryRank() {}

func (r *everyReader) OnStepEnd(e *callbacks.Event) error {
	return e.Summon(false, func() error {
		sum := sumOfWeight(e)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sums[e.State.GlobalStep] = append(r.sums[e.State.GlobalStep], sum)
		return nil
	})
}

// engines are the ways in which ranks have the parameters of a sharded model: in memory that they share, gathered, and
// gathered between processes of several hosts.
var engines = map[string]func(t *testing.T, a *args.TrainingArguments, opts ...trainer.Option) error{
	"shared": func(t *testing.T, a *args.TrainingArguments, opts ...trainer.Option) error {
		return trainAll(t, a, local.New(2, comm.Options{Log: quiet}), opts...)
	},
	"gathered": func(t *testing.T, a *args.TrainingArguments, opts ...trainer.Option) error {
		a.FSDPShareParameters = false
		return trainAll(t, a, local.New(2, comm.Options{Log: quiet}), opts...)
	},
	"tcp": func(t *testing.T, a *args.TrainingArguments, opts ...trainer.Option) error {
		return trainAll(t, a, tcpGroups(t, 2), opts...)
	},
}

// tcpGroups are the groups of ranks that are connected by TCP.
func tcpGroups(t *testing.T, n int) []*comm.Group {
	groups := make([]*comm.Group, n)
	token := rendezvous.NewToken()
	server, err := rendezvous.Serve("127.0.0.1:0", token, rendezvous.TLS{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	var all sync.WaitGroup
	for r := range groups {
		all.Go(func() {
			g, err := tcp.Join(t.Context(), rendezvous.Config{Rank: r, World: n, Token: token, External: true,
				Address: server.Addr().String()}, comm.Options{Log: quiet})
			if assert.NoError(t, err) {
				groups[r] = g
			}
		})
	}
	all.Wait()
	require.False(t, t.Failed())
	return groups
}

// trainAll trains on the ranks of groups and returns rank 0's error. Each rank has options of its own.
func trainAll(t *testing.T, a *args.TrainingArguments, groups []*comm.Group, opts ...trainer.Option) error {
	errs := make([]error, len(groups))
	models := make([]*gpt2.Model, len(groups))
	for r := range models {
		models[r] = newGPT2(t, 0)
	}
	var all sync.WaitGroup
	for r, g := range groups {
		all.Go(func() {
			a := a.Clone()
			tr := newTrainer(vfs.NewMem(), models[r], a, append([]trainer.Option{trainer.WithGroup(g),
				trainer.WithTrainData(raggedTexts(51))}, opts...)...)
			_, errs[r] = tr.Train()
			assert.NoError(t, tr.Close())
			assert.NoError(t, g.Close())
		})
	}
	all.Wait()
	return errs[0]
}

func shardedArgs() *args.TrainingArguments {
	a := rankArgs(2)
	a.NumReplicas, a.EvalStrategy, a.SaveStrategy = 1, args.StrategyNo, args.StrategyNo
	a.FSDP = []string{"full_shard", "auto_wrap"}
	return a
}

// What is wrong where ranks gather parameters is wrong where they share them.
func TestFaultsDoNotDependOnTheEngine(t *testing.T) {
	for name, train := range engines {
		t.Run(name, func(t *testing.T) {
			a := shardedArgs()
			a.FSDPTransformerLayerClsToWrap = []string{"LlamaDecoderLayer"}
			require.ErrorContains(t, train(t, a), "the model has no module of class LlamaDecoderLayer "+
				"(fsdp_transformer_layer_cls_to_wrap): want one of")

			err := train(t, shardedArgs(), trainer.WithCallbacks(&reader{}))
			require.ErrorContains(t, err, "EveryRank")
			require.ErrorContains(t, err, "Summon")
			var failed *callbacks.Error
			require.ErrorAs(t, err, &failed)
			require.Equal(t, "reader", failed.Callback)
		})
	}
}

// Within Summon, callbacks of every rank read the same weights whatever the engine, as one rank does.
func TestSummonInACallback(t *testing.T) {
	alone := &reader{}
	a := shardedArgs()
	_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
		trainer.WithCallbacks(alone)).Train()
	require.NoError(t, err)
	require.NotEmpty(t, alone.sums)
	for name, train := range engines {
		every := &everyReader{sums: map[int64][]float64{}}
		require.NoError(t, train(t, shardedArgs(), trainer.WithCallbacks(every)), name)
		require.Len(t, every.sums, len(alone.sums))
		for i, sum := range alone.sums {
			require.Equal(t, []float64{sum, sum}, every.sums[int64(i+1)], "%s: step %d", name, i+1)
		}
	}
}

// The first line of a run says how the model is cut, or that one rank has nothing to cut.
func TestTheStartLineSaysHowTheModelIsCut(t *testing.T) {
	for want, c := range map[string]struct {
		ranks int
		set   func(a *args.TrainingArguments)
	}{
		`, float32: `: {2, func(*args.TrainingArguments) {}},
		`, full_shard has no effect on one rank: `: {1,
			func(a *args.TrainingArguments) { gather(a, "full_shard") }},
		`, zero_stage 1: 0\.\d MB of parameters per rank: `: {2, func(a *args.TrainingArguments) { a.ZeroStage = 1 }},
		`, full_shard: 3 units, 0\.\d MB of parameters per rank, gathered: `: {2,
			func(a *args.TrainingArguments) { gather(a, "full_shard", "auto_wrap") }},
		`, full_shard: 0\.\d MB of parameters per rank, shared by the ranks of the host: `: {2,
			func(a *args.TrainingArguments) { a.FSDP = []string{"full_shard"} }},
		`, float32, mesh pp=2 \[0 1\], zbv \(micro-batches: 8\), 4 stages \(parts: 1, 1, 1, 1\), ` +
			`predicted idle \d+\.\d %, 0\.\d MB of parameters per rank: `: {2,
			func(a *args.TrainingArguments) { a.PPSize, a.PPSchedule = 2, "zbv" }},
		`, mesh pp=2,dp_replicate=2 \[\[0 1\] \[2 3\]\], 1f1b \(micro-batches: 4\), 2 stages \(parts: 3, 1\), ` +
			`predicted idle \d+\.\d %, `: {4,
			func(a *args.TrainingArguments) { a.PPSize, a.PPSplit = 2, []string{"3", "1"} }},
		`, mesh dp_replicate=2,dp_shard=2 \[\[0 1\] \[2 3\]\], full_shard: 3 units, 0\.\d MB of parameters per rank, ` +
			`gathered: `: {4,
			func(a *args.TrainingArguments) {
				a.DPReplicateSize = 2
				gather(a, "hybrid_shard", "auto_wrap")
			}},
	} {
		a := rankArgs(c.ranks)
		a.MaxSteps, a.EvalStrategy, a.SaveStrategy = 1, args.StrategyNo, args.StrategyNo
		c.set(a)
		line := &starter{}
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithCallbacks(line)).Train()
		require.NoError(t, err)
		require.Regexp(t, want, line.text)
	}
}

// starter keeps the first line of a run.
type starter struct {
	callbacks.Base
	text string
}

func (s *starter) OnTrainBegin(e *callbacks.Event) error {
	s.text = e.Run.String()
	return nil
}
