// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/lockstep-ml/lockstep/internal/chrometrace"
)

// lane is a row of the trace, a thread in its terms.
type lane uint8

const (
	laneSteps lane = iota
	lanePhases
	laneKernels
	laneCollectives
	numLanes
)

var laneNames = [numLanes]string{"steps", "phases", "kernels", "collectives"}

// write writes a file of this rank.
func (p *Profiler) write(what, extension string, f func(w io.Writer) error) error {
	file, err := os.Create(p.path(what, extension))
	if err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	return errors.Join(f(w), w.Flush(), file.Close())
}

// trace writes the events. Times count from 0:00 UTC of the day on which the profile began, so that the traces of
// several ranks lie on one axis.
func (p *Profiler) trace(w io.Writer) error {
	midnight := p.begin.UTC().Truncate(24 * time.Hour)
	offset := time.Duration(p.begin.UnixNano() - midnight.UnixNano())
	other := struct {
		Begin   string `json:"begin"`
		Dropped int    `json:"dropped_events"`
	}{p.begin.UTC().Format(time.RFC3339Nano), p.dropped}
	return chrometrace.Write(w, other, func(yield func(chrometrace.Event) bool) {
		if !yield(chrometrace.Process(p.o.Rank, fmt.Sprintf("rank %d", p.o.Rank))) {
			return
		}
		for i, name := range laneNames {
			if !yield(chrometrace.Thread(p.o.Rank, i, name)) {
				return
			}
		}
		for i := range p.events {
			if !yield(p.entry(&p.events[i], offset)) {
				return
			}
		}
	})
}

// entry is a recorded event in the trace's terms.
func (p *Profiler) entry(e *event, offset time.Duration) chrometrace.Event {
	t := chrometrace.Span(p.o.Rank, int(e.lane), laneNames[e.lane], e.name, offset+e.start.Sub(p.begin), e.length)
	if e.detail != "" {
		key := "detail"
		if e.lane == laneKernels {
			key = "module"
		}
		t.Args[key] = e.detail
	}
	if e.lane == laneKernels {
		t.Args["output"] = e.shape[:e.dims]
	}
	if e.bytes > 0 {
		t.Args["bytes"] = e.bytes
	}
	if e.flops > 0 {
		t.Args["flops"] = e.flops
	}
	return t
}
