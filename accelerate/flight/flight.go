// SPDX-License-Identifier: Apache-2.0

// Package flight writes the flight records of this process's ranks on demand: on SIGUSR2, and for lockstep debug flight
// --pid. Package accelerate installs it in training programs; use it for groups that your program creates.
//
// A flight record (comm.FlightRecord) holds the last collective calls of one rank in one group. Records are also
// written when a group fails; comm.Diagnose reads those of all ranks and reports which rank missed which call.
package flight

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/usertemp"
)

// EnvDir names the environment variable with the folder for flight records.
const EnvDir = "LOCKSTEP_FLIGHT_DIR"

// Errors of [Ask].
var (
	ErrNoRank    = errors.New("it is not a rank of a job, or not yet") // it gives out no flight records
	ErrNoProcess = errors.New("there is no such process")
)

// kept is the number of jobs whose records stay in the default folder. A rank's file has half a MiB.
const kept = 16

// Dir returns the folder for the records of a job: what LOCKSTEP_FLIGHT_DIR says, else a folder of the job in the
// user's part of TMPDIR, or "" if another user has that. It removes all except the last 15 jobs' folders there.
func Dir(job string) string {
	if dir := os.Getenv(EnvDir); dir != "" {
		return dir
	}
	parent := filepath.Join(usertemp.Path(), "flight")
	if _, err := usertemp.Make(); err != nil {
		return ""
	}
	sweep(parent, kept-1)
	return filepath.Join(parent, strings.Map(plain, job))
}

// plain keeps what every file system takes as a name.
func plain(r rune) rune {
	if r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
		return r
	}
	return '_'
}

// sweep removes all except the newest folders.
func sweep(parent string, keep int) {
	type folder struct {
		name    string
		written time.Time
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return // there are none
	}
	var folders []folder
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			folders = append(folders, folder{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(folders, func(a, b folder) int {
		return cmp.Or(b.written.Compare(a.written), cmp.Compare(a.name, b.name))
	})
	for _, f := range folders[min(keep, len(folders)):] {
		_ = os.RemoveAll(filepath.Join(parent, f.name)) // another process may be removing it too
	}
}

// watched is a group whose records this process gives out.
type watched struct {
	group *comm.Group
	job   string
}

// service is this process's: signals and the process's number belong to no single rank.
var service struct {
	sync.Mutex
	groups []*watched
	stop   func()
}

// Watch writes the records of g and its sub-groups into the folder of a job (see [Dir]) whenever they are asked for,
// until stop is called.
func Watch(g *comm.Group, job string, log *slog.Logger) (stop func()) {
	w := &watched{g, job}
	service.Lock()
	defer service.Unlock()
	if service.groups = append(service.groups, w); len(service.groups) == 1 {
		service.stop = listen(log)
	}
	return func() {
		service.Lock()
		defer service.Unlock()
		if i := slices.Index(service.groups, w); i >= 0 {
			service.groups = slices.Delete(service.groups, i, i+1)
			if len(service.groups) == 0 {
				service.stop()
			}
		}
	}
}

// Written is where the records of a process lie.
type Written struct {
	Dirs  []string `json:"dirs"`
	Error string   `json:"error,omitempty"`
}

// write writes the records of all watched groups.
func write() Written {
	service.Lock()
	groups := slices.Clone(service.groups)
	service.Unlock()
	var (
		w    Written
		errs []error
	)
	for _, g := range groups {
		dir := Dir(g.job)
		if dir == "" {
			errs = append(errs, usertemp.Check())
			continue
		}
		files, err := g.group.DumpFlights(dir)
		if err != nil {
			errs = append(errs, err)
		}
		if len(files) > 0 && !slices.Contains(w.Dirs, dir) {
			w.Dirs = append(w.Dirs, dir)
		}
	}
	if err := errors.Join(errs...); err != nil {
		w.Error = err.Error()
	}
	return w
}

// report writes the records and says so in the log.
func report(log *slog.Logger) {
	w := write()
	if w.Error != "" {
		log.Error("flight records could not be written", "error", w.Error)
	}
	for _, dir := range w.Dirs {
		log.Warn("flight records written: lockstep debug flight reads them", "dir", dir)
	}
}
