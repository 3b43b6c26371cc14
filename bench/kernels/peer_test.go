// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPeer: a side's program is started once, with its settings, answers for each row at any number of threads, and may
// be missing.
func TestPeer(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	script := filepath.Join(t.TempDir(), "peer")
	require.NoError(t, os.WriteFile(script, []byte(`#!/bin/sh
echo "threads $1, $OMP_NUM_THREADS, turn $2, mode $3, setting $SETTING"
n=$1
while read -r row number; do case $row in "") echo 0;; threads) n=$number; echo 0;; fast) echo 0.$n;; *) exit 1;; esac; done
`), 0o777))
	t.Setenv("A_PEER", script)
	ps := peers{most: 2, turn: time.Second}
	s := side{suffix: "_other", program: "A_PEER", env: []string{"SETTING=on"}}
	p, err := ps.get(s, 2)
	require.NoError(t, err)
	defer ps.close()
	require.Equal(t, "threads 2, 2, turn 1, mode , setting on", p.version)
	seconds, err := p.time("fast")
	require.NoError(t, err)
	require.Equal(t, 0.2, seconds)
	again, err := ps.get(s, 1)
	require.NoError(t, err)
	require.Same(t, p, again)
	seconds, err = p.time("fast")
	require.NoError(t, err)
	require.Equal(t, 0.1, seconds)
	require.NoError(t, p.drop())
	_, err = p.time("unknown")
	require.ErrorContains(t, err, "ended")
	ps.forget(s)
	another, err := ps.get(s, 1)
	require.NoError(t, err)
	require.NotSame(t, p, another)
	_, err = ps.get(side{program: "NO_PEER"}, 1)
	require.ErrorContains(t, err, "NO_PEER")
}

// TestKeep: a pattern chooses ratios, not only rows; a quick run leaves slow sides out.
func TestKeep(t *testing.T) {
	suffixes := func(pattern string, quick bool) (out []string, ceiling bool) {
		b := bench{wanted: regexp.MustCompile(pattern), quick: quick}
		r := row{name: "a", against: []side{eager, installed, reused}, ofCeiling: true}
		if b.keep(&r) {
			for _, s := range r.against {
				out = append(out, s.suffix)
			}
		}
		return out, r.ofCeiling
	}
	list, ceiling := suffixes("", false)
	require.Equal(t, []string{"", "_installed", "_out"}, list)
	require.True(t, ceiling)
	list, ceiling = suffixes("a_out|a_copy", true)
	require.Equal(t, []string{"_out"}, list)
	require.True(t, ceiling)
	list, ceiling = suffixes("^a_installed", true)
	require.Empty(t, list)
	require.False(t, ceiling)
}
