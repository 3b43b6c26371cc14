// SPDX-License-Identifier: Apache-2.0

// Package e2e runs examples/clm as its users do: the built program, real files, real
// signals. It looks at exit codes, at what is printed and at what is on the disk, and at
// nothing else.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"

	// What the program is made of: without these the go command would take a test's old
	// result although the program has changed.
	_ "github.com/lockstep-ml/lockstep/data/tokenizers"
	_ "github.com/lockstep-ml/lockstep/integrations/jsonl"
	_ "github.com/lockstep-ml/lockstep/integrations/tensorboard"
	_ "github.com/lockstep-ml/lockstep/models/generation"
	_ "github.com/lockstep-ml/lockstep/models/gpt2"
	_ "github.com/lockstep-ml/lockstep/trainer"
)

const root = "../.."

// scratch is the folder of the program and the corpus.
var scratch string

func TestMain(m *testing.M) {
	code := 1
	var err error
	if scratch, err = os.MkdirTemp("", "lockstep-e2e-*"); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
		_ = os.RemoveAll(scratch)
	}
	os.Exit(code)
}

// program builds examples/clm, once, without cgo.
var program = sync.OnceValues(func() (string, error) { return clmtest.Build(root, "examples/clm", scratch) })

// corpus is a folder with 60 text files, together some 240 KB of sentences without sense.
var corpus = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "corpus")
	return dir, clmtest.WriteCorpus(dir, 60, 4000)
})

// result is what a process left behind.
type result struct {
	code           int // of the exit; -1 if a signal ended it
	stdout, stderr string
	state          *os.ProcessState
}

// command prepares the program without the caller's LOCKSTEP_ settings.
func command(t testing.TB, argv ...string) *exec.Cmd {
	t.Helper()
	name, err := program()
	require.NoError(t, err)
	cmd := exec.Command(name, argv...)
	cmd.Dir = t.TempDir()
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "LOCKSTEP_") && !strings.HasPrefix(e, "LOCKSTEP_KERNELS=")
	})
	return cmd
}

// clm runs the program to its end.
func clm(t testing.TB, argv ...string) result {
	t.Helper()
	return finish(t, command(t, argv...))
}

func finish(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String(), cmd.ProcessState}
}

// succeed runs the program and requires no failure.
func succeed(t testing.TB, argv ...string) result {
	t.Helper()
	r := clm(t, argv...)
	require.Equal(t, 0, r.code, "%s", r.stderr)
	return r
}

// tiny are the flags of a run of milliseconds a step. Later flags beat earlier ones.
func tiny(t testing.TB, out string, more ...string) []string {
	t.Helper()
	texts, err := corpus()
	require.NoError(t, err)
	return slices.Concat(clmtest.Recipe(), []string{
		"--train_file", texts, "--output_dir", out, "--n_layer", "1", "--n_embd", "32", "--n_head", "2", "--vocab_size",
		"300", "--block_size", "32",
		"--max_steps", "20", "--warmup_steps", "2", "--logging_steps", "5", "--eval_steps", "10", "--save_steps", "5",
		"--max_new_tokens", "20",
	}, more)
}

// requireOneError checks that a run failed as it should: one message, and no trace of a
// panic.
func requireOneError(t testing.TB, r result, code int, messages ...string) {
	t.Helper()
	require.Equal(t, code, r.code, "%s", r.stderr)
	for _, trace := range []string{"panic", "goroutine ", "runtime error", "fatal error", ".go:"} {
		require.NotContains(t, r.stdout+r.stderr, trace)
	}
	require.Equal(t, 1, strings.Count("\n"+r.stderr, "\nclm: "), "%s", r.stderr)
	for _, m := range messages {
		require.Contains(t, r.stderr, m)
	}
}
