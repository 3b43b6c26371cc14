// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"
)

// options are what the environment asks for.
type options struct {
	seconds  int
	seed     uint64
	scenario int // the only one; -1 for all
}

func readOptions(getenv func(string) string) (options, error) {
	o := options{seconds: 600, seed: rand.Uint64N(1_000_000), scenario: -1}
	var err error
	if v := getenv("CHAOS_SECONDS"); v != "" {
		if o.seconds, err = strconv.Atoi(v); err != nil || o.seconds < 1 {
			return o, fmt.Errorf("CHAOS_SECONDS is %q: want a whole number of at least 1", v)
		}
	}
	if v := getenv("CHAOS_SEED"); v != "" {
		if o.seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			return o, fmt.Errorf("CHAOS_SEED is %q: want a whole number", v)
		}
	}
	if v := getenv("CHAOS_SCENARIO"); v != "" {
		if o.scenario, err = strconv.Atoi(v); err != nil || o.scenario < 0 {
			return o, fmt.Errorf("CHAOS_SCENARIO is %q: want the number of a scenario", v)
		}
	}
	return o, nil
}

func main() {
	if code, is := wrapped(os.Args); is {
		os.Exit(code)
	}
	run := outside
	if os.Getenv(insideVariable) != "" {
		run = inside
	}
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	os.Exit(cmp.Or(code, errorCode(err)))
}

func errorCode(err error) int {
	if err != nil {
		return 2
	}
	return 0
}

// outside builds the programs and starts the harness itself, in its own namespaces if it can. Whatever becomes of it,
// nothing is left afterwards but the folders of failed scenarios.
func outside() (code int, err error) {
	o, err := readOptions(os.Getenv)
	if err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp("", "lockstep-chaos-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if len(names(filepath.Join(work, failedFolder))) == 0 {
			err = errors.Join(err, os.RemoveAll(work))
		}
	}()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	fmt.Printf("chaos: seed %d, %d seconds; building\n", o.seed, o.seconds)
	if err := build(work); err != nil {
		return 0, err
	}
	marker := fmt.Sprintf("%s=%d", runVariable, os.Getpid())
	defer func() {
		for _, p := range living(marker) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may have ended
		}
	}()
	environ := append(os.Environ(), marker, insideVariable+"="+work, "CHAOS_SEED="+strconv.FormatUint(o.seed, 10))
	cmd := inNamespaces(filepath.Join(work, "bin", "chaos"), work, environ)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case s := <-interrupted:
		_ = cmd.Process.Signal(s.(syscall.Signal)) // signal.Notify sends no other; it ends soon
		err = <-ended
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// build makes the programs and texts.
func build(work string) error {
	bin := filepath.Join(work, "bin")
	if err := errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(filepath.Join(work, failedFolder), 0o755)); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(filepath.Join(bin, "chaos"), program, 0o755)
	}
	for _, pkg := range []string{"examples/clm", "cmd/lockstep"} {
		if err == nil {
			_, err = clmtest.Build(".", pkg, bin)
		}
	}
	return errors.Join(err, clmtest.WriteCorpus(filepath.Join(work, "corpus"), 8, 1000),
		clmtest.WriteCorpus(filepath.Join(work, "heldout"), 2, 500))
}

// inside runs the scenarios.
func inside() (code int, err error) {
	o, err := readOptions(os.Getenv)
	if err != nil {
		return 0, err
	}
	h, err := newHarness(os.Getenv(insideVariable), o)
	if err != nil {
		return 0, err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		h.stopped.Store(true)
		<-stop
		os.Exit(130)
	}()
	if why := h.no[hosts]; why != "" && slices.Contains(strings.Split(os.Getenv("LOCKSTEP_REQUIRE_HOSTS"), ","),
		"namespaces") {
		return 0, fmt.Errorf("LOCKSTEP_REQUIRE_HOSTS is namespaces, but %s", why)
	}
	if err := h.prepare(); err != nil {
		return 0, err
	}
	begin := time.Now()
	for i := max(o.scenario, 0); ; i++ {
		if err := h.scenario(i); err != nil {
			h.report(os.Stdout)
			return 0, err
		}
		if o.scenario >= 0 || h.stopped.Load() || time.Since(begin) >= time.Duration(o.seconds)*time.Second {
			break
		}
	}
	return h.report(os.Stdout), nil
}
