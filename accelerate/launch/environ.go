// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/internal/terminal"
)

const (
	varErrorFile  = "TORCHELASTIC_ERROR_FILE"
	varGoThreads  = "GOMAXPROCS"
	varOMPThreads = "OMP_NUM_THREADS"
)

// The inherited descriptors after the standard streams; the second is rank 0's alone.
const (
	tokenFD = 3 + iota
	listenerFD
)

// environ is the environment of one rank, whose lines may have so many columns; 0 is any.
func (r *run) environ(attempt, localRank, port int, errorFile string, columns int) []string {
	c := &r.config
	rank := c.NodeRank*c.ProcsPerNode + localRank
	set := map[string]string{
		env.VarRank: strconv.Itoa(rank), env.VarWorldSize: strconv.Itoa(c.WorldSize()),
		env.VarLocalRank: strconv.Itoa(localRank), env.VarLocalWorldSize: strconv.Itoa(c.ProcsPerNode),
		env.VarNodeRank: strconv.Itoa(c.NodeRank), env.VarNodes: strconv.Itoa(c.Nodes),
		"ROLE_NAME": c.Role, "ROLE_RANK": strconv.Itoa(rank), "ROLE_WORLD_SIZE": strconv.Itoa(c.WorldSize()),
		env.VarMasterAddr: c.MasterAddr, env.VarMasterPort: strconv.Itoa(port),
		env.VarRestartCount: strconv.Itoa(attempt), env.VarMaxRestarts: strconv.Itoa(c.MaxRestarts),
		env.VarRunID: c.RunID, env.VarAgentStore: "False",
		varErrorFile:    errorFile,
		env.VarLaunchID: r.id, env.VarTokenFD: strconv.Itoa(tokenFD),
	}
	threads := strconv.Itoa(max(1, c.Cores/c.ProcsPerNode))
	for _, name := range []string{varGoThreads, varOMPThreads} {
		if lookup(c.Env, name) == "" {
			set[name] = threads
		}
	}
	if dir := r.flightDir(attempt); dir != "" {
		set[flight.EnvDir] = dir
	}
	if rank == 0 && c.MasterPort == 0 {
		set[env.VarListenerFD] = strconv.Itoa(listenerFD)
	}
	if columns > 0 {
		set[terminal.EnvColumns] = strconv.Itoa(columns)
	}
	return override(c.Env, set, env.VarListenerFD, env.VarJobToken, terminal.EnvColumns)
}

// flightDir is the folder for the flight records of an attempt, "" if there is none.
func (r *run) flightDir(attempt int) string {
	return cmp.Or(lookup(r.config.Env, flight.EnvDir), flight.Dir(fmt.Sprintf("%s-%d", r.id, attempt)))
}

// override replaces variables and drops others.
func override(base []string, set map[string]string, drop ...string) []string {
	out := slices.DeleteFunc(slices.Clone(base), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := set[name]
		return replaced || slices.Contains(drop, name)
	})
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	slices.Sort(out[len(out)-len(set):])
	return out
}

// lookup finds a variable; the last one of a name counts.
func lookup(environ []string, name string) string {
	for _, entry := range slices.Backward(environ) {
		if n, value, _ := strings.Cut(entry, "="); n == name {
			return value
		}
	}
	return ""
}
