// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
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

// traceEvent is an entry of the Trace Event Format (Google, "Trace Event Format", 2016): X is an event with a length, M
// names a process or thread. Times are microseconds.
type traceEvent struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	TS    float64        `json:"ts"`
	Dur   *float64       `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

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
	list := []traceEvent{{Name: "process_name", Phase: "M", PID: p.o.Rank,
		Args: map[string]any{"name": fmt.Sprintf("rank %d", p.o.Rank)}}}
	for i, name := range laneNames {
		list = append(list, traceEvent{Name: "thread_name", Phase: "M", PID: p.o.Rank, TID: i,
			Args: map[string]any{"name": name}})
	}
	const head = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"begin\":%q,\"dropped_events\":%d},\"traceEvents\":[\n"
	if _, err := fmt.Fprintf(w, head, p.begin.UTC().Format(time.RFC3339Nano), p.dropped); err != nil {
		return err
	}
	for i := range len(list) + len(p.events) {
		var e traceEvent
		if i < len(list) {
			e = list[i]
		} else {
			e = p.entry(&p.events[i-len(list)], offset)
		}
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append([]byte(",\n"), text...)
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "\n]}\n")
	return err
}

// entry is a recorded event in the trace's terms.
func (p *Profiler) entry(e *event, offset time.Duration) traceEvent {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	length := us(e.length)
	t := traceEvent{Name: e.name, Cat: laneNames[e.lane], Phase: "X", TS: us(offset + e.start.Sub(p.begin)),
		Dur: &length, PID: p.o.Rank, TID: int(e.lane), Args: map[string]any{}}
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
