// SPDX-License-Identifier: Apache-2.0

package env

import (
	"fmt"
	"strings"
)

// Lookup finds an environment variable; os.LookupEnv is one.
type Lookup func(name string) (value string, ok bool)

// Get is a variable's value without spaces around it, "" where it is not set. One that is set to nothing counts as not
// set.
func (l Lookup) Get(name string) string {
	v, _ := l(name)
	return strings.TrimSpace(v)
}

// Map is a Lookup in a map.
func Map(variables map[string]string) Lookup {
	return func(name string) (string, bool) {
		v, ok := variables[name]
		return v, ok
	}
}

// Kind names who placed this process.
type Kind string

// The kinds, in the order of precedence: a launcher that runs inside another one is asked
// first.
const (
	Lockstep   Kind = "lockstep launch"
	Torchrun   Kind = "torchrun"
	OpenMPI    Kind = "Open MPI"
	MVAPICH    Kind = "MVAPICH"
	MPICH      Kind = "MPICH"
	Horovod    Kind = "Horovod"
	Jsrun      Kind = "LSF jsrun"
	Slurm      Kind = "Slurm"
	PyTorchJob Kind = "Kubeflow PyTorchJob"
	TrainJob   Kind = "Kubeflow TrainJob"
	IndexedJob Kind = "Kubernetes Indexed Job"
	None       Kind = "none"
)

// Unknown stands for a number that the launcher does not tell.
const Unknown = -1

// Environment is a process's place in its job.
type Environment struct {
	Kind Kind `json:"kind"`
	// Rank is the process's number in the job, 0 ≤ Rank < WorldSize.
	Rank      int `json:"rank"`
	WorldSize int `json:"world_size"`
	// LocalRank is its number among the LocalWorldSize processes of this host.
	LocalRank      int `json:"local_rank"`
	LocalWorldSize int `json:"local_world_size"`
	// NodeRank is the host's number; Unknown where the launcher does not tell.
	NodeRank int `json:"node_rank"`
	// Nodes is the number of hosts; Unknown where the launcher does not tell.
	Nodes int `json:"nodes"`
	// MasterAddr is the host name or address at which rank 0 is met; empty in a world of one.
	MasterAddr string `json:"master_addr"`
	// MasterPort is the TCP port at MasterAddr; 0 in a world of one.
	MasterPort int `json:"master_port"`
	// AgentStore says that torchrun's agent serves its store at MasterAddr and MasterPort: rank 0
	// cannot listen there, and finds the other ranks through that store.
	AgentStore bool `json:"agent_store"`
	// JobID is what the launcher calls the job, the same on all ranks; it may be empty.
	JobID string `json:"job_id"`
	// RestartCount is how often the launcher has started the job again (torchrun's
	// TORCHELASTIC_RESTART_COUNT, Slurm's SLURM_RESTART_COUNT); MaxRestarts is how often it may.
	RestartCount int `json:"restart_count"`
	MaxRestarts  int `json:"max_restarts"`
	// Findings says where every value came from, in the order of the fields.
	Findings []Finding `json:"findings"`
	// Notes says what was seen and passed over, and why.
	Notes []string `json:"notes"`

	lookup Lookup
}

// Finding is a value and its reason.
type Finding struct {
	Field  string `json:"field"`
	Value  string `json:"value"`
	Source string `json:"source"` // the variable's name, or the rule in words
}

// Distributed reports whether the job has more than one rank.
func (e *Environment) Distributed() bool { return e.WorldSize > 1 }

// OneHost reports whether all ranks run on this host.
func (e *Environment) OneHost() bool { return e.LocalWorldSize == e.WorldSize }

// String is the place in one line, for a log.
func (e *Environment) String() string {
	s := fmt.Sprintf("%s: rank %d of %d, local rank %d of %d", e.Kind, e.Rank, e.WorldSize, e.LocalRank,
		e.LocalWorldSize)
	switch {
	case e.AgentStore:
		s += fmt.Sprintf(", torchrun's store at %s port %d", e.MasterAddr, e.MasterPort)
	case e.MasterAddr != "":
		s += fmt.Sprintf(", rank 0 at %s port %d", e.MasterAddr, e.MasterPort)
	}
	return s
}

// Error is everything that is wrong with an environment.
type Error struct {
	Kind   Kind
	Faults []string // one sentence each, with the variables' names and values
}

// Error lists the faults, one a line if there are several.
func (e *Error) Error() string {
	if len(e.Faults) == 1 {
		return fmt.Sprintf("environment of %s: %s", e.Kind, e.Faults[0])
	}
	return fmt.Sprintf("environment of %s: %d faults:\n  - %s", e.Kind, len(e.Faults), strings.Join(e.Faults, "\n  - "))
}

// launcher is one kind's way to tell ranks their place.
type launcher struct {
	kind Kind
	// sign returns the variable by which the launcher is known, "" if it is not there, and
	// a note if it seems to be there but does not place this process.
	sign func(l Lookup) (variable, note string)
	read func(r *reader)
	// inner launchers start every rank themselves: what they say replaces, and may differ
	// from, what the launchers around them say.
	inner func(l Lookup) bool
}

// launchers are asked in this order.
var launchers = []launcher{
	lockstepLauncher, torchrunLauncher, openMPILauncher, mvapichLauncher, mpichLauncher, horovodLauncher,
	jsrunLauncher, slurmLauncher, pytorchJobLauncher, trainJobLauncher, indexedJobLauncher,
}

// Detect finds the process's place. Without any launcher it is a world of one, of kind
// None. The error is an *Error: a variable that is no number, a set of variables that lacks
// one, a rank outside of its world, or two launchers that disagree.
func Detect(lookup Lookup) (*Environment, error) {
	var notes []string
	var found *reader
	for _, l := range launchers {
		variable, note := l.sign(lookup)
		if note != "" {
			notes = append(notes, note)
		}
		if variable == "" {
			continue
		}
		r := newReader(lookup, l.kind, variable)
		l.read(r)
		if found == nil {
			found = r
			found.inner = l.inner != nil && l.inner(lookup)
			continue
		}
		notes = append(notes, found.compare(r))
	}
	if found == nil {
		found = newReader(lookup, None, "")
		readNone(found)
	}
	e, err := found.finish()
	if err != nil {
		return nil, err
	}
	for _, n := range notes {
		if n != "" {
			e.Notes = append(e.Notes, n)
		}
	}
	return e, nil
}
