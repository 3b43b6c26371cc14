// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// The kinds of findings.
const (
	FindingNone     = "none"     // nothing went wrong
	FindingMissing  = "missing"  // ranks did not come to a call
	FindingMismatch = "mismatch" // ranks called something else than most
	FindingError    = "error"    // the group failed otherwise
)

// Finding is the conclusion from the flight records of one group.
type Finding struct {
	Group    string   `json:"group"`
	Kind     string   `json:"kind"`     // FindingNone, …
	Seq      uint64   `json:"seq"`      // the call that went wrong, 0 if none did
	Members  []int    `json:"members"`  // of the group: ranks of the job, as all that follow
	Culprits []int    `json:"culprits"` // ranks that did not come, or that called something else than most
	Absent   []int    `json:"absent"`   // ranks without a flight file, whose process was killed for instance
	Errors   []string `json:"errors"`   // that killed the group, each once
	Text     string   `json:"text"`
}

// String says it in one sentence.
func (f Finding) String() string { return f.Text }

// Report is the result of [Diagnose]: a finding for each group, in order of names and members.
type Report struct {
	Records  []FlightRecord `json:"-"`
	Findings []Finding      `json:"findings"`
}

// Diagnose reads the flight files in dir (see [Group.DumpFlight]) and finds, for each group, the first collective call
// that not all ranks finished, the ranks that did not join it, and those that called something else. It is an error if
// there is no file or one cannot be read.
func Diagnose(dir string) (*Report, error) {
	names, err := filepath.Glob(filepath.Join(dir, "flight_*.json"))
	if err != nil {
		return nil, fmt.Errorf("comm: flight records: %w", err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("comm: no flight_*.json in %s", dir)
	}
	report := &Report{}
	groups := map[string][]FlightRecord{} // those of sub-groups that different ranks gave one name are apart
	for _, name := range names {
		record, err := readFlight(name)
		if err != nil {
			return nil, err
		}
		report.Records = append(report.Records, record)
		key := fmt.Sprint(record.Group, record.Members)
		groups[key] = append(groups[key], record)
	}
	for _, records := range groups {
		report.Findings = append(report.Findings, find(records))
	}
	slices.SortFunc(report.Findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), slices.Compare(a.Members, b.Members))
	})
	return report, nil
}

// What a flight file may hold.
const (
	maxFlightFile  = 64 << 20 // bytes
	maxFlightRanks = 1 << 16
)

func readFlight(name string) (record FlightRecord, err error) {
	text, err := vfs.ReadFile(vfs.OS, name, maxFlightFile)
	if err != nil {
		return record, fmt.Errorf("comm: flight record: %w", err)
	}
	if err = json.Unmarshal(text, &record); err == nil {
		err = record.check()
	}
	for i := 0; i < len(record.Entries) && err == nil; i++ {
		e := &record.Entries[i]
		e.members = record.Members
		e.DType, err = dtype.Parse(e.DTypeName)
	}
	if err != nil {
		return record, fmt.Errorf("comm: flight record %s: %w", name, err)
	}
	return record, nil
}

// check refuses what no group writes.
func (r *FlightRecord) check() error {
	switch {
	case r.Version != flightVersion || r.Size < 1 || r.Size > maxFlightRanks || r.GroupRank < 0 ||
		r.GroupRank >= r.Size:
		return fmt.Errorf("version %d, rank %d of %d: want version %d and a rank below the size, which is at most %d",
			r.Version, r.GroupRank, r.Size, flightVersion, maxFlightRanks)
	case len(r.Members) != 0 && len(r.Members) != r.Size || jobRank(r.Members, r.GroupRank) != r.Rank:
		return fmt.Errorf("rank %d of the job is rank %d of a group of %d with %d members: want that it is this member",
			r.Rank, r.GroupRank, r.Size, len(r.Members))
	}
	return nil
}

// find looks at one group's records.
func find(records []FlightRecord) Finding {
	slices.SortFunc(records, func(a, b FlightRecord) int { return a.GroupRank - b.GroupRank })
	f := Finding{Group: records[0].Group, Kind: FindingNone, Culprits: []int{}, Absent: []int{}}
	for r := range records[0].Size {
		job := jobRank(records[0].Members, r)
		f.Members = append(f.Members, job)
		if !slices.ContainsFunc(records, func(x FlightRecord) bool { return x.Rank == job }) {
			f.Absent = append(f.Absent, job)
		}
	}
	for _, r := range records {
		if r.Error != "" && !slices.Contains(f.Errors, r.Error) {
			f.Errors = append(f.Errors, r.Error)
		}
	}
	f.Seq = firstUnfinished(records)
	f.explain(records)
	f.Text = fmt.Sprintf("group %q%s: %s", f.Group, f.of(records[0]), f.Text)
	if len(f.Absent) > 0 {
		f.Text += fmt.Sprintf("; there is no record of %s", RankList(f.Absent))
	}
	return f
}

// firstUnfinished returns the number of the first collective call that some rank began and none finished, 0 if there is
// none. Records may be of different times: what one rank finished, all came to.
func firstUnfinished(records []FlightRecord) uint64 {
	var finished, first uint64
	for _, r := range records {
		for _, e := range r.Entries {
			if !e.Op.PointToPoint() && e.State == Finished {
				finished = max(finished, e.Seq)
			}
		}
	}
	for _, r := range records {
		for _, e := range r.Entries {
			if !e.Op.PointToPoint() && (e.State == Started || e.State == Failed) && e.Seq > finished &&
				(first == 0 || e.Seq < first) {
				first = e.Seq
			}
		}
	}
	return first
}

// maxNamed is how many members of a group a finding lists.
const maxNamed = 16

// of names the ranks of a sub-group, since sub-groups may have one name, and its errors number its ranks from 0.
func (f *Finding) of(r FlightRecord) string {
	switch {
	case len(r.Members) == 0:
		return ""
	case len(f.Members) > maxNamed:
		return fmt.Sprintf(" of %s, …", RankList(f.Members[:maxNamed]))
	}
	return " of " + RankList(f.Members)
}

// explain sets the kind, the culprits and the text.
func (f *Finding) explain(records []FlightRecord) {
	calls := map[string][]int{} // what was called, by whom
	var came, absent []int
	var waited time.Duration
	for _, r := range records {
		i := slices.IndexFunc(r.Entries, func(e FlightEntry) bool {
			return !e.Op.PointToPoint() && e.Seq == f.Seq && e.State != Queued
		})
		if i < 0 {
			absent = append(absent, r.Rank)
			continue
		}
		came = append(came, r.Rank)
		e := &r.Entries[i]
		end := e.EndedAt
		if end.IsZero() {
			end = r.Time
		}
		waited = max(waited, end.Sub(e.StartedAt))
		text := e.Signature.String()
		calls[text] = append(calls[text], r.Rank)
	}
	switch {
	case f.Seq == 0 && len(f.Errors) == 0:
		f.Text = "all recorded calls are finished"
	case len(calls) > 1:
		f.Kind = FindingMismatch
		f.mismatch(calls)
	case f.Seq != 0 && len(absent) > 0:
		f.Kind, f.Culprits = FindingMissing, absent
		f.Text = fmt.Sprintf("%s did not come to %s; %s waited %v", RankList(absent), only(calls), RankList(came),
			waited.Round(time.Millisecond))
	case f.Seq != 0 && len(f.Absent) > 0:
		f.Kind, f.Culprits = FindingMissing, f.Absent
		f.Text = fmt.Sprintf("%s did not finish %s after %v", RankList(came), only(calls),
			waited.Round(time.Millisecond))
	case f.Seq != 0 && len(f.Errors) == 0:
		f.Text = fmt.Sprintf("all ranks are in %s, since %v", only(calls), waited.Round(time.Millisecond))
	default:
		f.Kind = FindingError
		f.Text = strings.Join(f.Errors, "; ")
	}
}

func only(calls map[string][]int) string {
	for text := range calls {
		return text
	}
	return "a call"
}

// mismatch names the ranks that are not with the largest party.
func (f *Finding) mismatch(calls map[string][]int) {
	texts := slices.SortedFunc(maps.Keys(calls), func(a, b string) int {
		return cmp.Or(len(calls[b])-len(calls[a]), calls[a][0]-calls[b][0])
	})
	var parts []string
	for i, text := range texts {
		if i > 0 {
			f.Culprits = append(f.Culprits, calls[text]...)
		}
		parts = append(parts, fmt.Sprintf("%s called %s", RankList(calls[text]), text))
	}
	slices.Sort(f.Culprits)
	f.Text = "the ranks disagree: " + strings.Join(parts, ", ")
}
