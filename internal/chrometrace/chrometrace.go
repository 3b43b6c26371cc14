// SPDX-License-Identifier: Apache-2.0

// Package chrometrace writes timelines in the Trace Event Format (Google, "Trace Event Format", 2016), which
// chrome://tracing and Perfetto open.
package chrometrace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"time"
)

// Event is an entry. Times are microseconds.
type Event struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"` // X: an event with a length; M: the name of a process or thread
	TS    float64        `json:"ts"`
	Dur   *float64       `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// Process names a process.
func Process(pid int, name string) Event {
	return Event{Name: "process_name", Phase: "M", PID: pid, Args: map[string]any{"name": name}}
}

// Thread names a thread of a process.
func Thread(pid, tid int, name string) Event {
	return Event{Name: "thread_name", Phase: "M", PID: pid, TID: tid, Args: map[string]any{"name": name}}
}

// Span is an event from start on, with a length.
func Span(pid, tid int, cat, name string, start, length time.Duration) Event {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	dur := us(length)
	return Event{Name: name, Cat: cat, Phase: "X", TS: us(start), Dur: &dur, PID: pid, TID: tid, Args: map[string]any{}}
}

// Write writes a trace. other is what it has besides.
func Write(to io.Writer, other any, events iter.Seq[Event]) error {
	head, err := json.Marshal(other)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "{\"displayTimeUnit\":\"ms\",\"otherData\":%s,\"traceEvents\":[", head)
	separator := "\n"
	for e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s%s", separator, text)
		separator = ",\n"
	}
	fmt.Fprint(w, "\n]}\n")
	return w.Flush()
}
