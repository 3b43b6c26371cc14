// SPDX-License-Identifier: Apache-2.0

// Package lacking skips tests that need what the machine lacks, and records the skip, so that it does not count as a
// pass.
//
// It is NOT for use outside of tests: it imports package testing.
package lacking

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The kinds of things that a machine may lack. LOCKSTEP_REQUIRE_ and the kind in capitals names an environment variable
// with a list of those that it must have: a test that lacks one of them fails.
const (
	Variants = "variants" // of the kernels, as avx2,avx512
	Hosts    = "hosts"    // namespaces: two network namespaces that stand for two hosts
	Clusters = "clusters" // launchers that are installed: openmpi,mpich,slurm
	Cgroups  = "cgroups"  // memory: groups whose memory is limited
	Tools    = "tools"    // compilers, libraries and devices: cc,g++,nvcc,cublaslt,nccl,gpu
)

// File names an environment variable: the file to which each skipped test adds a line.
const File = "LOCKSTEP_SKIPPED"

// Skip skips the test, which needs name of a kind, and logs why. It fails the test where the environment says that the
// machine must have it.
func Skip(t testing.TB, kind, name, why string) {
	t.Helper()
	variable := "LOCKSTEP_REQUIRE_" + strings.ToUpper(kind)
	if slices.Contains(strings.Split(os.Getenv(variable), ","), name) {
		t.Fatalf("%s, but %s=%s", why, variable, os.Getenv(variable))
	}
	if path := os.Getenv(File); path != "" {
		if err := note(path, fmt.Sprintf("%s: %s\n", t.Name(), why)); err != nil {
			t.Fatal(err)
		}
	}
	t.Skip(why)
}

// note appends a line in one piece, since tests of several packages do so at a time.
func note(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
