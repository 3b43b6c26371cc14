// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/cmd/lockstep/internal/proof"
)

// All arrangements of ranks have the bits of one rank, and a run with other bits shows.
func TestProve(t *testing.T) {
	t.Setenv(asProgram, "1")
	job := &proof.Job{Dir: t.TempDir(), Steps: 6, Program: []string{os.Args[0], rankCommand}}
	var results []proof.Result
	for _, a := range proof.Arrangements(job.Steps) {
		r, err := job.Run(context.Background(), a)
		require.NoError(t, err)
		results = append(results, r)
		t.Logf("%d parts, %s: %s", a.Parts, a.Name, hash(r))
	}
	require.True(t, proof.Same(results))
	results[1].Digest++
	require.False(t, proof.Same(results))
	results[1].Digest = results[len(results)-1].Digest
	require.False(t, proof.Same(results))
}

func TestProveRefuses(t *testing.T) {
	code, _, stderr := output(nil, "prove", "it")
	require.Equal(t, exitUsage, code)
	require.Equal(t, "lockstep: prove: unexpected word \"it\"\n", stderr)
	code, _, stderr = output(nil, "prove", "--dir", t.TempDir()+"/missing")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "no such file or directory")
}
