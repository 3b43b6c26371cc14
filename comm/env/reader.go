// SPDX-License-Identifier: Apache-2.0

package env

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// The fields' names in findings.
const (
	fieldKind           = "kind"
	fieldRank           = "rank"
	fieldWorldSize      = "world size"
	fieldLocalRank      = "local rank"
	fieldLocalWorldSize = "local world size"
	fieldNodeRank       = "node rank"
	fieldNodes          = "nodes"
	fieldMasterAddr     = "master address"
	fieldMasterPort     = "master port"
	fieldAgentStore     = "agent store"
	fieldJobID          = "job id"
	fieldRestartCount   = "restart count"
	fieldMaxRestarts    = "max restarts"
)

// DefaultMasterPort is torchrun's port, used where neither the user nor the launcher names
// one and the job has no id to derive one from.
const DefaultMasterPort = 29500

const loopback = "127.0.0.1"

// reader fills an Environment from variables and remembers where it found what.
type reader struct {
	e      Environment
	inner  bool
	lookup Lookup
	faults []string
}

// newReader starts with nothing known.
func newReader(lookup Lookup, kind Kind, sign string) *reader {
	r := &reader{lookup: lookup, e: Environment{
		Kind: kind, lookup: lookup,
		Rank: Unknown, WorldSize: Unknown, LocalRank: Unknown, LocalWorldSize: Unknown, NodeRank: Unknown,
		Nodes: Unknown,
	}}
	if sign != "" {
		r.say(fieldKind, string(kind), sign+" is set")
	} else {
		r.say(fieldKind, string(kind), "no launcher's variables are set")
	}
	return r
}

func (r *reader) say(field, value, source string) {
	r.e.Findings = append(r.e.Findings, Finding{Field: field, Value: value, Source: source})
}

func (r *reader) fault(format string, a ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, a...))
}

// has returns the first of the names that is set, or "".
func has(lookup Lookup, names ...string) string {
	for _, n := range names {
		if lookup.Get(n) != "" {
			return n
		}
	}
	return ""
}

// number reads the first of the names that is set into *to; none leaves it.
func (r *reader) number(field string, to *int, names ...string) bool {
	name := has(r.lookup, names...)
	if name == "" {
		return false
	}
	n, err := strconv.Atoi(r.lookup.Get(name))
	if err != nil || n < 0 {
		r.fault("%s is %q: want a number from 0", name, r.lookup.Get(name))
		return true
	}
	*to = n
	r.say(field, strconv.Itoa(n), name)
	return true
}

// need is number for variables that must be there.
func (r *reader) need(field string, to *int, names ...string) {
	if !r.number(field, to, names...) {
		r.missing(field, names...)
	}
}

func (r *reader) missing(field string, names ...string) {
	r.fault("%s is set, but the %s is not: want %s", r.e.Findings[0].sign(), field, strings.Join(names, " or "))
}

// sign is the variable that gave the kind away.
func (f Finding) sign() string { return strings.TrimSuffix(f.Source, " is set") }

// place reads rank, world size and place on the host from the variables of these names.
func (r *reader) place(rank, worldSize, localRank, localWorldSize string) {
	r.need(fieldRank, &r.e.Rank, rank)
	r.need(fieldWorldSize, &r.e.WorldSize, worldSize)
	r.need(fieldLocalRank, &r.e.LocalRank, localRank)
	r.need(fieldLocalWorldSize, &r.e.LocalWorldSize, localWorldSize)
}

// address is text for the address of rank 0 where it must be there.
func (r *reader) address(names ...string) {
	if !r.text(fieldMasterAddr, &r.e.MasterAddr, names...) {
		r.missing(fieldMasterAddr, names[0])
	}
}

// set gives a number that follows from a rule.
func (r *reader) set(field string, to *int, n int, rule string) {
	*to = n
	r.say(field, strconv.Itoa(n), rule)
}

// text reads the first of the names that is set into *to.
func (r *reader) text(field string, to *string, names ...string) bool {
	name := has(r.lookup, names...)
	if name == "" {
		return false
	}
	*to = r.lookup.Get(name)
	r.say(field, *to, name)
	return true
}

// alone places a process that has its host for itself.
func (r *reader) alone(rule string) {
	r.set(fieldLocalRank, &r.e.LocalRank, 0, rule)
	r.set(fieldLocalWorldSize, &r.e.LocalWorldSize, 1, rule)
}

// hosts derives the host's number where one host holds the whole job.
func (r *reader) hosts() {
	if r.e.LocalWorldSize != r.e.WorldSize || r.e.WorldSize == Unknown {
		return
	}
	const rule = "all ranks are on this host"
	if r.e.NodeRank == Unknown {
		r.set(fieldNodeRank, &r.e.NodeRank, 0, rule)
	}
	if r.e.Nodes == Unknown {
		r.set(fieldNodes, &r.e.Nodes, 1, rule)
	}
}

// master finds where rank 0 is met: the user's MASTER_ADDR and MASTER_PORT first, then
// this host if it holds all ranks; otherwise the address is missing, with the advice given.
func (r *reader) master(advice string) {
	if r.e.WorldSize <= 1 {
		return
	}
	switch {
	case r.e.MasterAddr != "" || r.text(fieldMasterAddr, &r.e.MasterAddr, VarMasterAddr):
	case r.e.LocalWorldSize == r.e.WorldSize:
		r.e.MasterAddr = loopback
		r.say(fieldMasterAddr, loopback, "all ranks are on this host")
	default:
		r.fault("%s is not set, and %s does not give the address of rank 0: %s", VarMasterAddr, r.e.Kind, advice)
	}
	r.port()
}

// port finds the TCP port of rank 0.
func (r *reader) port() {
	switch {
	case r.e.MasterPort != 0 || r.number(fieldMasterPort, &r.e.MasterPort, VarMasterPort):
	case r.e.JobID != "":
		r.set(fieldMasterPort, &r.e.MasterPort, jobPort(r.e.JobID),
			"derived from the job id; "+VarMasterPort+" overrides")
	default:
		r.set(fieldMasterPort, &r.e.MasterPort, DefaultMasterPort, "default; "+VarMasterPort+" overrides")
	}
	if r.e.MasterPort > 65535 {
		r.fault("%s is %d: want at most 65535", VarMasterPort, r.e.MasterPort)
	}
}

// jobPort is a port in 15000..24999, below the range that systems hand out by themselves,
// which all ranks of a job derive alike.
func jobPort(id string) int {
	h := fnv.New32a()
	h.Write([]byte(id)) // a hash never fails
	return 15000 + int(h.Sum32()%10000)
}

// compare holds a second launcher's word against the first one's and returns the note
// about it. A disagreement is a fault, unless the first one runs inside the second.
func (r *reader) compare(other *reader) string {
	o := &other.e
	agree := len(other.faults) == 0 && o.Rank == r.e.Rank && o.WorldSize == r.e.WorldSize
	switch {
	case agree:
		return fmt.Sprintf("%s (%s) says the same", o.Kind, o.Findings[0].Source)
	case r.inner || r.e.isMPI() && !o.isMPI() || len(other.faults) > 0:
		return fmt.Sprintf("%s is there too (%s) and was not used: %s runs inside it", o.Kind, o.Findings[0].Source,
			r.e.Kind)
	case len(r.faults) > 0:
		return ""
	}
	r.fault("%s says rank %d of %d (%s), %s says rank %d of %d (%s): unset the one that is stale",
		r.e.Kind, r.e.Rank, r.e.WorldSize, r.sources(), o.Kind, o.Rank, o.WorldSize, other.sources())
	return ""
}

// isMPI reports whether the kind is an MPI's launcher, which may itself use the scheduler
// around it to start its daemons; the scheduler's numbers then count daemons.
func (e *Environment) isMPI() bool {
	return e.Kind == OpenMPI || e.Kind == MVAPICH || e.Kind == MPICH || e.Kind == Horovod
}

// sources names the variables of rank and world size.
func (r *reader) sources() string {
	var names []string
	for _, f := range r.e.Findings {
		if f.Field == fieldRank || f.Field == fieldWorldSize {
			names = append(names, f.Source)
		}
	}
	return strings.Join(names, ", ")
}

// finish checks the ranges.
func (r *reader) finish() (*Environment, error) {
	if len(r.faults) == 0 {
		r.within(fieldRank, r.e.Rank, fieldWorldSize, r.e.WorldSize)
		r.within(fieldLocalRank, r.e.LocalRank, fieldLocalWorldSize, r.e.LocalWorldSize)
		if r.e.Nodes != Unknown && r.e.NodeRank != Unknown {
			r.within(fieldNodeRank, r.e.NodeRank, fieldNodes, r.e.Nodes)
		}
		if r.e.LocalWorldSize > r.e.WorldSize {
			r.fault("%s: more ranks on this host than in the job: %s", r.where(fieldLocalWorldSize),
				r.where(fieldWorldSize))
		}
	}
	r.worldSizeAgrees()
	if len(r.faults) > 0 {
		return nil, &Error{Kind: r.e.Kind, Faults: r.faults}
	}
	return &r.e, nil
}

func (r *reader) within(field string, n int, sizeField string, size int) {
	if n >= size {
		r.fault("%s is outside of 0..%d: %s", r.where(field), size-1, r.where(sizeField))
	}
}

// where is a value with its source: "rank 4 (RANK)".
func (r *reader) where(field string) string {
	for _, f := range r.e.Findings {
		if f.Field == field {
			return fmt.Sprintf("%s %s (%s)", f.Field, f.Value, f.Source)
		}
	}
	return field + " unknown"
}

// worldSizeAgrees refuses a WORLD_SIZE that contradicts the launcher's own number.
func (r *reader) worldSizeAgrees() {
	text := r.lookup.Get(VarWorldSize)
	if text == "" || r.inner || len(r.faults) > 0 || text == strconv.Itoa(r.e.WorldSize) {
		return
	}
	r.fault("%s is %s, but %s: unset the one that is stale", VarWorldSize, text, r.where(fieldWorldSize))
}
