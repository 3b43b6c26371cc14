// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate/launch"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm/env"
)

const launchUsage = `usage: lockstep launch [FLAGS] [--] PROGRAM [ARGUMENTS]

Starts PROGRAM as nproc_per_node ranks on this host, with torchrun's environment. If a rank fails,
the launcher ends the others, and restarts all of them up to max_restarts times. It passes Ctrl-C,
SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 to all ranks, and kills those that have not ended after
grace_period; a second Ctrl-C kills them immediately. The exit code is that of the rank that failed
first, 128 + n for signal n, or 2 for wrong settings. The job continues if standard output or
standard error is closed.

For several hosts, start it on each with the same nnodes, nproc_per_node, master_addr and
master_port, a different node_rank, and the same secret in LOCKSTEP_JOB_TOKEN (or in a file that
only its owner can read, named by LOCKSTEP_JOB_TOKEN_FILE).

With nnodes MIN:MAX, hosts may join and leave while the job runs. Start it on each with the same
nnodes, nproc_per_node, rdzv_endpoint and secret. When a host joins, or gets SIGTERM, all ranks
save, and restart on the present hosts. When a host is lost, they continue from the last
checkpoint; it joins again once its link is back. The bits are those of an undisturbed run. The
number of hosts in use divides MAX; further hosts wait. A host with another secret ends immediately
(exit code 2); the host at rdzv_endpoint logs a warning and continues.

Flags are torchrun's, and may be written with - or _. PET_<FLAG> in the environment sets a
flag that is not given.

`

// guardCommand is what launch starts beside the ranks.
const guardCommand = "launch-guard"

// guard ends the ranks of a launcher that was killed.
func (p *program) guard([]string) int {
	for _, s := range signalNames {
		signal.Ignore(s)
	}
	if _, err := launch.Guard(p.stdin); err != nil {
		p.complain("lockstep: %v", err)
		return exitError
	}
	return exitOK
}

// launch starts ranks.
func (p *program) launch(argv []string) int {
	var f launchFlags
	fs := f.flagSet()
	if code, done := p.parse(fs, argv, launchUsage); done {
		return code
	}
	if err := fromEnvironment(fs, p.lookup); err != nil {
		return p.usageError("launch: %v", err)
	}
	environ, err := configFile(fs, f.configFile)
	if err != nil {
		return p.usageError("launch: %v", err)
	}
	c, err := f.config(fs, p.lookup)
	if len(environ) > 0 {
		c.Env = append(slices.Clone(environ), os.Environ()...) // what is set here counts
	}
	if err == nil {
		err = c.Validate()
	}
	if err == nil {
		err = checkMesh(c, func(name string) (string, bool) {
			if value, ok := p.lookup(name); ok { // what is set here counts
				return value, true
			}
			i := slices.IndexFunc(environ, func(e string) bool { return strings.HasPrefix(e, name+"=") })
			if i < 0 {
				return "", false
			}
			return environ[i][len(name)+1:], true
		})
	}
	if err != nil {
		return p.usageError("%v", err)
	}
	c.Stdout, c.Stderr = p.stdout, p.stderr
	c.Logger = slog.New(callbacks.NewLogHandler(p.stderr, slog.LevelInfo))
	if self, err := os.Executable(); err == nil {
		c.Guard = []string{self, guardCommand}
	} else {
		c.Logger.Warn("no guard process: if the launcher is killed, processes that ranks have started may keep running",
			"error", err)
	}
	if len(pipes) > 0 { // ranks continue when the reader of their output leaves; Ignore would be inherited by them
		closed := make(chan os.Signal, 1)
		signal.Notify(closed, pipes...)
		defer signal.Stop(closed)
	}
	signals := make(chan os.Signal, 4)
	if catch := f.caught(); len(catch) > 0 {
		signal.Notify(signals, catch...)
		defer signal.Stop(signals)
	}
	c.Signals = signals
	if err := launch.Run(context.Background(), *c); err != nil {
		p.complain("lockstep %v", err)
		return launch.ExitCode(err)
	}
	return exitOK
}

// fromEnvironment sets the flags that are not given from torchrun's PET_ variables.
func fromEnvironment(fs *pflag.FlagSet, lookup env.Lookup) error {
	var faults []error
	fs.VisitAll(func(f *pflag.Flag) {
		name := "PET_" + strings.ToUpper(f.Name)
		value, ok := lookup(name)
		if !ok || value == "" || f.Changed {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			faults = append(faults, fmt.Errorf("%s is %q: %w", name, value, errors.Unwrap(err)))
		}
	})
	return errors.Join(faults...)
}

// caught are the signals to forward, except for those that whoever started this process has
// it ignore: nohup does so with SIGHUP, a shell with SIGINT for what runs in the background.
func (f *launchFlags) caught() []os.Signal {
	var list []os.Signal
	for _, name := range f.signals {
		if s := signalNames[name]; !signal.Ignored(s) && !slices.Contains(list, os.Signal(s)) {
			list = append(list, s)
		}
	}
	return list
}
