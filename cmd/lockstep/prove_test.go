// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/cmd/lockstep/internal/proof"
)

// All arrangements of ranks have the bits of one rank, and a run with other bits shows.
func TestProve(t *testing.T) {
	t.Setenv(asProgram, "1")
	t.Setenv("RANK", "0") // as in a shell of another job
	t.Setenv("WORLD_SIZE", "2")
	job := &proof.Job{Dir: t.TempDir(), Steps: 6, Program: []string{os.Args[0], rankCommand}}
	var results []proof.Result
	for _, a := range proof.Arrangements(job.Steps) {
		r, err := job.Run(context.Background(), a)
		require.NoError(t, err)
		results = append(results, r)
		t.Logf("%s: %s", a.Name, hash(r))
	}
	require.True(t, proof.Same(results))
	results[1].Digest++
	require.False(t, proof.Same(results))
	results[1].Digest = results[len(results)-1].Digest
	require.False(t, proof.Same(results))
}

// A proof that cannot print its results, or is interrupted, ends and leaves nothing behind.
func TestProveEnds(t *testing.T) {
	dir := t.TempDir()
	closed, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	cmd, stderr := lockstep(t, "prove", "--dir", dir)
	cmd.Stdout = w
	require.ErrorAs(t, cmd.Run(), new(*exec.ExitError))
	require.Equal(t, exitError, cmd.ProcessState.ExitCode(), stderr)
	require.Contains(t, stderr.String(), "broken pipe")
	require.NoError(t, w.Close())

	cmd, stderr = lockstep(t, "prove", "--dir", dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.ErrorAs(t, cmd.Wait(), new(*exec.ExitError))
	require.Equal(t, exitError, cmd.ProcessState.ExitCode(), stderr)
	require.Contains(t, stderr.String(), "terminated signal received")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestProveRefuses(t *testing.T) {
	code, _, stderr := output(nil, "prove", "it")
	require.Equal(t, exitUsage, code)
	require.Equal(t, "lockstep: prove: unexpected word \"it\"\n", stderr)
	code, _, stderr = output(nil, "prove", "--dir", t.TempDir()+"/missing")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "no such file or directory")
}
