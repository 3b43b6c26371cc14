// SPDX-License-Identifier: Apache-2.0

package hashes

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Run is what the ranks of a run have recorded.
type Run struct {
	Path  string // its output folder
	ranks map[int][]*section
}

// Load reads the records in the output folder of a run, or in its folder of records. Without any there is no error, and
// no step. A step counts if all ranks have recorded it.
func Load(dir string) (*Run, error) {
	r := &Run{Path: dir, ranks: map[int][]*section{}}
	for _, pattern := range []string{filepath.Join(dir, Dir, "rank-*.jsonl"), filepath.Join(dir, "rank-*.jsonl")} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("hashes: %w", err)
		}
		for _, file := range files {
			number := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "rank-"), ".jsonl")
			rank, err := strconv.Atoi(number)
			if err != nil {
				return nil, fmt.Errorf("hashes: %s: want rank-N.jsonl", file)
			}
			if r.ranks[rank], err = read(file); err != nil {
				return nil, err
			}
			for _, s := range r.ranks[rank] {
				if s.header.Rank != rank {
					return nil, fmt.Errorf("hashes: %s is of rank %d: want its record in rank-%[2]d.jsonl", file,
						s.header.Rank)
				}
			}
		}
	}
	return r, nil
}

// Header is that of the first rank's last process; nil if there is no record.
func (r *Run) Header() *Header {
	for _, rank := range r.sorted() {
		if list := r.ranks[rank]; len(list) > 0 {
			return &list[len(list)-1].header
		}
	}
	return nil
}

func (r *Run) sorted() []int {
	var list []int
	for rank := range r.ranks {
		list = append(list, rank)
	}
	slices.Sort(list)
	return list
}

// view is a step of a run, over all its ranks.
type view struct {
	known   bool
	begins  bool     // only the weights at the beginning are known
	names   []string // of the parameters, rank by rank
	lr      float64
	norm    string
	data    map[int]ranked // of each micro-batch
	losses  []string
	grads   map[string]ranked // of each parameter
	state   map[string]ranked
	weights map[string]ranked
	ops     map[opKey]ranked
	order   []opKey // in which they were computed, micro-batch by micro-batch
}

// opKey names an op.
type opKey struct {
	microBatch int
	pass, path string
}

// ranked is a hash, and who has it.
type ranked struct {
	sum   Sum
	ranks []int
	// other are ranks that have the same part and another hash.
	other []int
	parts map[string]Sum
	whole map[int]Sum // of the ranks that have all of it
}

// unlike are ranks that have another hash than others of their run: those that differ from the other run's, if they
// have all of an array.
func (h ranked) unlike(of ranked) []int {
	if len(h.other) == 0 || len(of.other) > 0 || len(h.whole) == 0 {
		return h.other
	}
	var list []int
	for rank, sum := range h.whole {
		if sum != of.sum {
			list = append(list, rank)
		}
	}
	slices.Sort(list)
	return list
}

// add adds a rank's part.
func (h ranked) add(rank int, part string, sum Sum) ranked {
	if h.parts == nil {
		h.parts, h.whole = map[string]Sum{}, map[int]Sum{}
	}
	if part == "" {
		h.whole[rank] = sum
	}
	was, known := h.parts[part]
	switch {
	case !known:
		h.parts[part] = sum
		h.sum += sum
	case was != sum:
		h.other = append(h.other, rank)
		return h
	}
	h.ranks = append(h.ranks, rank)
	return h
}

// steps lists those that all ranks have recorded.
func (r *Run) steps() []int64 {
	set := map[int64]bool{}
	for _, list := range r.ranks {
		for _, s := range list {
			for n := range s.steps {
				if !set[n] {
					of, missing := r.sections(n)
					set[n] = len(of) > 0 && len(missing) == 0
				}
			}
		}
	}
	var all []int64
	for n, complete := range set {
		if complete {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

// sections are the processes that did a step, by rank, and the ranks whose record of it is missing: the run was killed,
// or their files are elsewhere. A step that was done again, after a resume, is that of the last processes, however many
// ranks there were before.
func (r *Run) sections(n int64) (of map[int]*section, missing []int) {
	of = map[int]*section{}
	var like *Header
	for _, rank := range r.sorted() {
		for _, s := range r.ranks[rank] {
			step := s.steps[n]
			if step == nil || like != nil && (s.header.Ranks != like.Ranks || s.header.FromStep != like.FromStep) {
				continue
			}
			if of[rank] == nil || len(step.Grads) > 0 {
				of[rank] = s
			}
		}
		if s := of[rank]; s != nil && like == nil {
			like = &s.header
		}
	}
	for rank := range like.ranks() {
		if of[rank] == nil {
			missing = append(missing, rank)
		}
	}
	maps.DeleteFunc(of, func(rank int, _ *section) bool { return rank >= like.ranks() })
	return of, missing
}

// ranks is how many the job had.
func (h *Header) ranks() int {
	if h == nil {
		return 0
	}
	return h.Ranks
}

// Missing lists the ranks of the run's last processes without any record.
func (r *Run) Missing() (list []int) {
	for rank := range r.Header().ranks() {
		if len(r.ranks[rank]) == 0 {
			list = append(list, rank)
		}
	}
	return list
}

// step is a step of all ranks.
func (r *Run) step(n int64) *view {
	v := &view{data: map[int]ranked{}, grads: map[string]ranked{}, state: map[string]ranked{},
		weights: map[string]ranked{}, ops: map[opKey]ranked{}}
	of, _ := r.sections(n)
	for _, rank := range slices.Sorted(maps.Keys(of)) {
		v.add(rank, &of[rank].header, of[rank].steps[n])
	}
	return v
}

func (v *view) add(rank int, h *Header, s *Step) {
	if !v.known {
		v.known, v.begins, v.lr, v.norm, v.losses = true, len(s.Grads) == 0, s.LR, s.Norm, s.Losses
	}
	for _, b := range s.Data {
		v.data[b.MicroBatch] = v.data[b.MicroBatch].add(rank, "", b.Hash)
	}
	for i, p := range h.Params {
		if _, known := v.weights[p.Name]; !known {
			v.names = append(v.names, p.Name)
		}
		if !v.begins {
			v.grads[p.Name] = v.grads[p.Name].add(rank, p.Part, s.Grads[i])
			v.state[p.Name] = v.state[p.Name].add(rank, p.Part, s.State[i])
		}
		v.weights[p.Name] = v.weights[p.Name].add(rank, p.Part, s.Weights[i])
	}
	for _, op := range s.Ops {
		key := opKey{op.MicroBatch, op.Pass, op.Path}
		if _, known := v.ops[key]; !known {
			v.order = append(v.order, key)
		}
		v.ops[key] = v.ops[key].add(rank, "", op.Hash)
	}
	slices.SortStableFunc(v.order, func(a, b opKey) int { return a.microBatch - b.microBatch })
}
