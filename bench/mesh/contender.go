// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/bench/internal/workers"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// usual are the contenders that run unless others are named, in the order in which they take turns.
var usual = []string{"one", "1f1b", "zb_h1", "zbv", "interleaved_1f1b", "torch-one", "torch-1f1b"}

func isTorch(name string) bool { return strings.HasPrefix(name, "torch-") }

// The contenders that divide matrices, and those of one process.
const (
	one     = "one"
	divided = "tp"
	inParts = "parts"
)

// alone reports whether a contender is one process.
func alone(name string) bool { return strings.TrimPrefix(name, "torch-") == one || name == inParts }

// whole reports whether a contender has no stages.
func whole(name string) bool {
	return alone(name) || strings.TrimPrefix(name, "torch-") == divided || methodOf(name) != nil
}

// methodOf is how the ranks of a contender attend to the tokens of others; nil: each has all tokens.
func methodOf(name string) *cp.Method {
	for _, m := range []*cp.Method{cp.Gather, cp.Ulysses, cp.Ring} {
		if name == "cp-"+m.String() {
			return m
		}
	}
	return nil
}

// schedule is that of a contender.
func (s *settings) schedule(contender string) (*schedule.Schedule, error) {
	shape := schedule.Shape{Ranks: s.Ranks, MicroBatches: s.MicroBatches}
	return schedule.Load(strings.TrimPrefix(contender, "torch-"), shape)
}

// split cuts the model into a contender's stages.
func (s *settings) split(contender string) ([]int, error) {
	if whole(contender) {
		return nil, nil
	}
	of, err := s.schedule(contender)
	if err != nil {
		return nil, err
	}
	m, err := s.model(nn.NewInit(tensor.CPU(), 1).Deferred())
	if err != nil {
		return nil, err
	}
	costs, err := pp.Measure(m, forward, s.batches(tensor.NewCtx(tensor.CPU()))[0])
	if err != nil {
		return nil, err
	}
	return pp.Partition(costs, of.Stages())
}

// model makes the GPT-2.
func (s *settings) model(in *nn.Init) (*gpt2.Model, error) {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = s.Layers, s.Width, s.Heads, s.Vocabulary, s.Block
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = 0, 0, 0
	return gpt2.New(in, cfg)
}

// round runs a contender once and returns what each of its ranks reports.
func (b *bench) round(name string) ([]report, error) {
	split, err := b.split(name)
	if err != nil {
		return nil, err
	}
	j := workers.Job{Cores: slices.Collect(slices.Chunk(b.cores[:b.Ranks], 1)), Connected: !alone(name)}
	if alone(name) {
		j.Cores = j.Cores[:1]
	}
	if b.peer > 0 && j.Connected {
		j.Link, j.Address = []int{0, b.peer}, b.address
	}
	if isTorch(name) {
		j.Script = "mesh/peer/mesh.py"
	}
	j.Settings = func(rank int) any {
		s := b.settings
		s.Contender, s.Rank, s.Split, s.Link = name, rank, split, b.peer > 0
		return s
	}
	return workers.Run[report](j)
}
