// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// One step in its own process: the loss is that of a model which knows nothing, and resident memory, which the first
// step brings to its height, stays under 4 GiB.
func TestGPT2SmallStep(t *testing.T) {
	program, dir := filepath.Join(t.TempDir(), "gpt2small.exe"), t.TempDir()
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(program, "--steps", "1", "--batch", "1", "--seq", "256", "--profile", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	require.Regexp(t, `^124439808 parameters`, string(out))
	require.InDelta(t, math.Log(50257), number(t, string(out), `step 1: loss ([\d.]+)`), 0.5)
	require.FileExists(t, filepath.Join(dir, "ops_rank0.txt"))
	if runtime.GOOS == "linux" {
		require.Less(t, number(t, string(out), `peak RSS (\d+) MiB`), 4096.0)
		require.Greater(t, number(t, string(out), `peak RSS (\d+) MiB`), 4*4*124.4*1e6/(1<<20),
			"weights, gradients and two moments")
	}
}

// number is what the expression's group matches in text.
func number(t *testing.T, text, expression string) float64 {
	m := regexp.MustCompile(expression).FindStringSubmatch(text)
	require.NotNil(t, m, "%s in %q", expression, text)
	x, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return x
}

func TestFlags(t *testing.T) {
	o, err := parse(nil)
	require.NoError(t, err)
	require.Equal(t, options{steps: 5, batch: 1, seq: 256}, o)
	for _, argv := range [][]string{{"--steps", "0"}, {"--batch", "-1"}, {"--seq", "1"}, {"--seq", "1025"},
		{"--seq", "x"}, {"more"}, {"--setps", "1"}} {
		_, err := parse(argv)
		require.Error(t, err, "%v", argv)
	}
}
