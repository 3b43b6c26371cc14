// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/picture"
)

// memoryNames are the ways to shard a model as the picture writes them.
var memoryNames = map[string]string{"": "DDP", "zero_1": "ZeRO-1", "zero_2": "ZeRO-2",
	"full_shard": "full_shard, gathered", "full_shard_shared": "full_shard, shared"}

// memoryOf is the memory of a rank under each contender.
func memoryOf(note string, names []string, all map[string]*measured) *memory {
	m := &memory{note: note}
	for _, name := range names {
		_, strategy := engineOf(name)
		if short, ok := memoryNames[strategy]; ok && !isTorch(name) {
			strategy = short
		} else if strategy == "" {
			strategy = name
		}
		r := all[name].last[0]
		m.rows = append(m.rows, memoryRow{strategy, float64(r.State) / 1e6, float64(r.PSS) / 1e6})
	}
	return m
}

// draw draws the memory: two bars for each row. How is the command that does so.
func (m *memory) draw(how string) *picture.Picture {
	const left, right, bar, row = 170.0, picture.Width - 82, 15.0, 43.0
	most := 1.0
	for _, r := range m.rows {
		most = max(most, r.tensors, r.process)
	}
	p := picture.New("Memory of a rank by strategy", m.note, how)
	bottom := picture.Top + row*float64(len(m.rows)) + 4
	x := picture.NewAxis(0, most, left, right, 8).Widen()
	p.XAxis(x, picture.Top, bottom, "memory of a rank (MB)")
	for i, name := range []string{"parameters, gradients, optimizer state", "the process between steps (PSS)"} {
		p.Key(name, func(p *picture.Picture, x, y float64) { p.Box(x-6, y-6, 12, 12, fmt.Sprint("fill", i+1), "") })
	}
	for i, r := range m.rows {
		y := picture.Top + 8 + row*float64(i)
		p.Text(left-12, y+bar+5, "text end", strings.ReplaceAll(r.name, ":", ", "))
		for j, v := range []float64{r.tensors, r.process} {
			if v == 0 {
				continue // PyTorch's tensors are not counted
			}
			at := y + float64(j)*(bar+1)
			p.Box(left, at, x.At(v)-left, bar, fmt.Sprintf("fill%d memory", j+1), "")
			p.Text(x.At(v)+6, at+12, "text small", fmt.Sprintf("%.0f", v))
		}
	}
	p.Height = bottom + 54
	return p
}
