// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/tensor"
)

// trace is what one rank has: numbers and tensors by step and name, and the hash of the weights at the end.
type trace struct {
	numbers map[string]float64
	tensors map[string][]byte
	hash    string
}

// rank checks a step of a rank, or notes it.
type rank struct {
	*accelerate.Accelerator
	note, want *trace
	step       int
}

// key is that of a thing in this step.
func (r *rank) key(what string) string { return fmt.Sprint(r.step, " ", what) }

// samples checks that ranks which share the work on the same samples have the same, and that others have others.
func (r *rank) samples(ctx context.Context, batches []*data.Batch) error {
	h := sha256.New()
	for _, b := range batches {
		h.Write(tensor.ReadBytes(r.Ctx().NoGrad(), b.Tensors[data.InputIDs]))
	}
	mine := h.Sum(nil)
	same, err := r.ModelRanks().GatherBytes(ctx, mine)
	if err != nil {
		return err
	}
	for other, theirs := range same {
		if !bytes.Equal(theirs, mine) {
			return fmt.Errorf("ranks %d and %d share the work on the same samples, and have others", r.Rank(),
				r.ModelRanks().Group().JobRank(other))
		}
	}
	others, err := r.DataRanks().GatherBytes(ctx, mine)
	if err != nil {
		return err
	}
	for other, theirs := range others {
		if other != r.DataRanks().Rank() && bytes.Equal(theirs, mine) {
			return fmt.Errorf("ranks %d and %d have the same samples: want others", r.Rank(),
				r.DataRanks().Group().JobRank(other))
		}
	}
	return nil
}

// number checks a number that all ranks have.
func (r *rank) number(what string, x float64) error {
	if r.note != nil {
		if r.note.numbers == nil {
			r.note.numbers = map[string]float64{}
		}
		r.note.numbers[r.key(what)] = x
		return nil
	}
	if want := r.want.numbers[r.key(what)]; x != want {
		return fmt.Errorf("rank %d: the %s is %v: want %v, as on 1 rank", r.Rank(), what, x, want)
	}
	return nil
}

// pieces checks what this rank has of a tensor of each parameter, and that all ranks together have every element.
func (r *rank) pieces(what string, of func(p tensor.Named) *tensor.Tensor) error {
	var mine []piece
	for _, p := range r.Trained() {
		at := p.Placed().Placement
		if s := r.Shards(); s != nil {
			at, _ = s.Placement(p.Name)
		}
		t := of(p)
		if t == nil {
			return fmt.Errorf("rank %d: no %s of %v", r.Rank(), what, at)
		}
		if err := r.piece(what, at, tensor.ReadBytes(r.Ctx().NoGrad(), t)); err != nil {
			return err
		}
		mine = append(mine, piece{p.Name, at.String(), at.Numel()})
	}
	return r.complete(what, mine)
}

// piece checks a part of an array of float32.
func (r *rank) piece(what string, at tensor.Placement, text []byte) error {
	key := r.key(what + " of " + at.Name)
	if r.note != nil {
		if r.note.tensors == nil {
			r.note.tensors = map[string][]byte{}
		}
		r.note.tensors[key] = text
		return nil
	}
	const width = 4
	whole := r.want.tensors[key]
	for run := range at.Intersect(tensor.WholePlacement(at.Name, at.Shape...)) {
		if !bytes.Equal(text[run.At*width:(run.At+run.Len)*width], whole[run.Other*width:(run.Other+run.Len)*width]) {
			return fmt.Errorf("rank %d differs from 1 rank in the %s of %v", r.Rank(), what, at)
		}
	}
	return nil
}

// piece names what a rank has of a parameter.
type piece struct {
	Name, Place string
	Numel       int
}

// complete checks that each element of the model is in a piece of some rank, and in no two that differ.
func (r *rank) complete(what string, mine []piece) error {
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	all, err := r.GatherBytes(context.Background(), text)
	if err != nil {
		return err
	}
	seen, elements := map[string]bool{}, map[string]int{}
	for _, text := range all {
		var theirs []piece
		if err := json.Unmarshal(text, &theirs); err != nil {
			return err
		}
		for _, p := range theirs {
			if !seen[p.Place] {
				seen[p.Place], elements[p.Name] = true, elements[p.Name]+p.Numel
			}
		}
	}
	for _, p := range r.whole() {
		if elements[p.Name] != p.Numel {
			return fmt.Errorf("the ranks have %d elements of the %s of %s: want %d", elements[p.Name], what, p.Name,
				p.Numel)
		}
	}
	return nil
}

// whole lists the parameters of the model.
func (r *rank) whole() (list []piece) {
	for _, p := range r.Tree().State() {
		list = append(list, piece{Name: p.Name, Numel: p.Numel()})
	}
	return list
}

// end checks the weights when each rank has all of them again.
func (j *job) end(hash string) error {
	if j.note != nil {
		j.note.hash = hash
		return nil
	}
	if hash != j.want.hash {
		return fmt.Errorf("the whole weights are %s at the end: want %s, as on 1 rank", hash, j.want.hash)
	}
	return nil
}
