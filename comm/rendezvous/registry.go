// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/comm"
)

// NewEngine makes a group of a job's processes. It is collective.
type NewEngine func(job *Job, opts comm.Options) (*comm.Group, error)

// Join brings the processes of a job together and returns the group of all of them.
func (f NewEngine) Join(ctx context.Context, c Config, opts comm.Options) (*comm.Group, error) {
	job, err := Join(ctx, c)
	if err != nil {
		return nil, err
	}
	g, err := f(job, opts)
	if e := job.Close(); err == nil && e != nil { // the group holds the job
		return nil, e
	}
	return g, err
}

var engines = struct {
	mu  sync.Mutex
	new map[string]NewEngine
}{new: map[string]NewEngine{}}

// RegisterEngine makes an engine from outside known under a name. Packages of engines that
// wrap a library (NCCL, MPI) call it in an init function, so that a blank import builds them
// in. It panics if the name is taken.
func RegisterEngine(name string, f NewEngine) {
	engines.mu.Lock()
	defer engines.mu.Unlock()
	if engines.new[name] != nil {
		panic(fmt.Sprintf("rendezvous: engine %q is registered twice", name))
	}
	engines.new[name] = f
}

// Engine returns a registered engine, or an error that says which there are and how more are
// built in.
func Engine(name string) (NewEngine, error) {
	engines.mu.Lock()
	defer engines.mu.Unlock()
	if f := engines.new[name]; f != nil {
		return f, nil
	}
	have := "none is"
	if len(engines.new) > 0 {
		have = "registered: " + strings.Join(slices.Sorted(maps.Keys(engines.new)), ", ")
	}
	return nil,
		fmt.Errorf("no engine %q is built into this program (%s): a program builds one in by a blank import of a "+
			"package that calls rendezvous.RegisterEngine (mpi: of comm/mpi, built with -tags mpi); shm and tcp are "+
			"always there", name, have)
}

// EngineNames returns the names of the registered engines, sorted. shm and tcp, which are always there, are not among
// them.
func EngineNames() []string {
	engines.mu.Lock()
	defer engines.mu.Unlock()
	return slices.Sorted(maps.Keys(engines.new))
}
