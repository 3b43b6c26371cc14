// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// CallState is how far a call has come.
type CallState string

// The states of a call in the flight record.
const (
	Queued   CallState = "queued"
	Started  CallState = "started"
	Finished CallState = "finished"
	Failed   CallState = "failed"
)

// FlightEntry is one call in the flight record.
type FlightEntry struct {
	Signature
	DTypeName string    `json:"dtype"`
	State     CallState `json:"state"`
	QueuedAt  time.Time `json:"queued_at"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	Error     string    `json:"error,omitempty"`
}

// FlightRecord is the last calls of one rank in one group, oldest first: the content of a flight file. The roots and
// partners of its calls are numbers in the group.
type FlightRecord struct {
	Version   int           `json:"version"` // 2
	Group     string        `json:"group"`
	Rank      int           `json:"rank"`              // in the job
	GroupRank int           `json:"group_rank"`        // in the group
	Size      int           `json:"size"`              // of the group
	Members   []int         `json:"members,omitempty"` // job ranks, by rank of the group; none: the same numbers
	Engine    Info          `json:"engine"`
	Host      string        `json:"host"`
	PID       int           `json:"pid"`
	Time      time.Time     `json:"time"`
	Error     string        `json:"error,omitempty"` // that killed the group
	Dropped   int           `json:"dropped"`         // older calls that are no longer here
	Entries   []FlightEntry `json:"entries"`
}

// flightVersion is that of the records that this package writes and reads. Those of version 1 had numbers in the group.
const flightVersion = 2

// recorder is a ring of the last calls; it never allocates after it is made.
type recorder struct {
	mu      sync.Mutex
	ring    []FlightEntry
	next    int // calls ever recorded
	failure string
}

func newRecorder(size int) *recorder { return &recorder{ring: make([]FlightEntry, size)} }

func (r *recorder) queue(s Signature) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.next%len(r.ring)] = FlightEntry{Signature: s, DTypeName: s.DType.String(), State: Queued,
		QueuedAt: time.Now()}
	r.next++
	return r.next - 1
}

// at returns the entry, nil if newer calls have taken its place.
func (r *recorder) at(entry int) *FlightEntry {
	if entry < r.next-len(r.ring) {
		return nil
	}
	return &r.ring[entry%len(r.ring)]
}

func (r *recorder) start(entry int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.at(entry); e != nil {
		e.State, e.StartedAt = Started, time.Now()
	}
}

func (r *recorder) finish(entry int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.at(entry)
	switch {
	case e == nil:
	case err == nil:
		e.State, e.EndedAt = Finished, time.Now()
	case e.State == Started:
		e.State, e.EndedAt, e.Error = Failed, time.Now(), err.Error()
	}
}

// finished reports whether a call of this rank has ended well.
func (r *recorder) finished() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next > len(r.ring) ||
		slices.ContainsFunc(r.ring[:r.next], func(e FlightEntry) bool { return e.State == Finished })
}

func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err.Error()
}

func (r *recorder) entries() (list []FlightEntry, dropped int, failure string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dropped = max(0, r.next-len(r.ring))
	for i := dropped; i < r.next; i++ {
		list = append(list, r.ring[i%len(r.ring)])
	}
	return list, dropped, r.failure
}

// Flight returns this rank's flight record: the last calls and their states.
func (g *Group) Flight() FlightRecord {
	f := FlightRecord{Version: flightVersion, Group: g.Name(), Rank: g.JobRank(g.Rank()), GroupRank: g.Rank(),
		Size: g.Size(), Members: slices.Clone(g.members), Engine: g.Describe(), PID: os.Getpid(), Time: time.Now()}
	f.Host, _ = os.Hostname() // a record without a host's name is still a record
	f.Entries, f.Dropped, f.Error = g.flight.entries()
	return f
}

// DumpFlights writes this rank's flight records of g, of its sub-groups and of the groups that they are sub-groups of,
// unless they are closed. See [Group.DumpFlight].
func (g *Group) DumpFlights(dir string) (files []string, err error) {
	for _, member := range g.family.members() {
		file, e := member.DumpFlight(dir)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		files = append(files, file)
	}
	return files, err
}

// family is a group and all its sub-groups on this rank that are open.
type family struct {
	sent  atomic.Int64 // bytes, by those that have been closed too
	line  line         // of calls on the rank's device
	apart atomic.Bool  // see Group.Overlap

	mu     sync.Mutex
	groups []*Group
}

func (f *family) add(g *Group) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups = append(f.groups, g)
}

func (f *family) remove(g *Group) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups = slices.DeleteFunc(f.groups, func(x *Group) bool { return x == g })
}

func (f *family) members() []*Group {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.groups)
}

// DumpFlight writes this rank's flight record into dir, which it makes if need be, and returns the file's path. See
// [Diagnose].
func (g *Group) DumpFlight(dir string) (string, error) {
	text, err := json.MarshalIndent(g.Flight(), "", " ")
	if err != nil {
		return "", fmt.Errorf("comm: flight record: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("comm: flight record: %w", err)
	}
	name := filepath.Join(dir, fmt.Sprintf("flight_%s_rank%d.json",
		strings.NewReplacer("/", "-", "\\", "-", ":", "-").Replace(g.Name()), g.JobRank(g.Rank())))
	if err := vfs.Replace(name, text); err != nil { // at once, since others may look at the folder now
		return "", fmt.Errorf("comm: flight record: %w", err)
	}
	return name, nil
}
