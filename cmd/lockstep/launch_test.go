// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/terminal"
)

// lockstep is the program in its own process.
func lockstep(t *testing.T, argv ...string) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	stderr = &bytes.Buffer{}
	cmd = exec.Command(os.Args[0], argv...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0", "TMPDIR="+t.TempDir())
	cmd.Stderr = stderr
	return cmd, stderr
}

func TestLaunch(t *testing.T) {
	cmd, stderr := lockstep(t, "launch", "--nproc-per-node=2", "--", os.Args[0], "rank", "place")
	cmd.Env = append(cmd.Env, "GOMAXPROCS=4")
	out, err := cmd.Output()
	require.NoError(t, err, stderr)
	require.ElementsMatch(t, []string{"[0] lockstep launch 0 2 4", "[1] lockstep launch 1 2 4"},
		strings.Split(strings.TrimSpace(string(out)), "\n"))
	require.Empty(t, stderr.String())
}

func TestLaunchFails(t *testing.T) {
	cmd, stderr := lockstep(t, "launch", "--nproc-per-node=2", "--settle-time=0.05", os.Args[0], "rank", "fail")
	err := cmd.Run()
	require.ErrorAs(t, err, new(*exec.ExitError))
	require.Equal(t, 7, cmd.ProcessState.ExitCode(), stderr)
	require.Regexp(t, `^lockstep launch: rank 1 failed first: exit code 7\n`, stderr.String())
}

// requireFits requires lines of at most width columns.
func requireFits(t *testing.T, width int, text string) {
	t.Helper()
	for line := range strings.SplitSeq(text, "\n") {
		require.LessOrEqual(t, terminal.Columns(line), width, "%s", line)
	}
}

// The help of every command fits a terminal of 80 columns.
func TestHelpFits(t *testing.T) {
	for _, argv := range [][]string{{"help"}, {"help", "launch"}, {"help", "env"}, {"help", "estimate-memory"},
		{"help", "config"}, {"help", "simulate"}, {"help", "merge-weights"}, {"help", "debug"}, {"help", "version"}} {
		cmd, stderr := lockstep(t, argv...)
		cmd.Env = append(cmd.Env, terminal.EnvColumns+"=79")
		out, err := cmd.Output()
		require.NoError(t, err, stderr)
		require.Contains(t, string(out), "usage: lockstep", argv)
		requireFits(t, 79, string(out))
	}
}

// So do the tables.
func TestTablesFit(t *testing.T) {
	deepspeed := filepath.Join(t.TempDir(), "ds.json")
	require.NoError(t, os.WriteFile(deepspeed, []byte(`{"zero_optimization": {"stage": 3,
		"stage3_gather_16bit_weights_on_model_save": true}, "train_micro_batch_size_per_gpu": "auto"}`), 0o600))
	model := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(model, []byte(`{"model_type": "gpt2", "vocab_size": 50257, "n_layer": 2,
		"n_embd": 1024, "n_head": 16, "n_positions": 64}`), 0o600))
	for last, argv := range map[string][]string{"decides": {"config", deepspeed},
		"full_shard, shared": {"estimate-memory", model, "--ranks", "4"},
		"dualpipev":          {"simulate", "--micro_batches", "64"},
		"rank 3":             {"simulate", "--pp_schedule", "zbv", "--micro_batches", "20"}} {
		cmd, stderr := lockstep(t, argv...)
		cmd.Env = append(cmd.Env, terminal.EnvColumns+"=79")
		out, err := cmd.Output()
		require.NoError(t, err, stderr)
		require.Contains(t, string(out), last)
		requireFits(t, 79, string(out))
	}
}

// The report of a failure fits the terminal that it appears on.
func TestLaunchReportFits(t *testing.T) {
	cmd, stderr := lockstep(t, "launch", "--settle-time=0.05", os.Args[0], "rank", "complain")
	cmd.Env = append(cmd.Env, terminal.EnvColumns+"=60", "NO_COLOR=1")
	require.ErrorAs(t, cmd.Run(), new(*exec.ExitError))
	_, report, found := strings.Cut(stderr.String(), "lockstep launch: rank 0 failed first: exit code 8\n")
	require.True(t, found, stderr)
	require.Regexp(t, `\n  its output:\n    a word after a word after .*\n      \w`, report)
	requireFits(t, 60, report)
}

func TestLaunchInterrupted(t *testing.T) {
	cmd, stderr := lockstep(t, "launch", os.Args[0], "rank", "wait")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "[0] ready\n", line)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	_, err = io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.ErrorAs(t, cmd.Wait(), new(*exec.ExitError))
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	require.Equal(t, "lockstep launch: interrupted by SIGINT\n", stderr.String())
}

// Under nohup a hangup ends nothing.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	cmd, stderr := lockstep(t)
	cmd.Path, cmd.Args = shell, []string{"sh", "-c", `trap "" HUP; exec "$0" launch "$0" rank wait`, os.Args[0]}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_, err = io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.ErrorAs(t, cmd.Wait(), new(*exec.ExitError))
	require.Equal(t, 128+15, cmd.ProcessState.ExitCode())
	require.Equal(t, "lockstep launch: interrupted by SIGTERM\n", stderr.String())
}

func TestGuardRefusesNonsense(t *testing.T) {
	cmd, stderr := lockstep(t, "launch-guard")
	cmd.Stdin = strings.NewReader("kill everything\n")
	require.ErrorAs(t, cmd.Run(), new(*exec.ExitError))
	require.Equal(t, exitError, cmd.ProcessState.ExitCode())
	require.Equal(t, "lockstep: launch: guard: \"kill everything\" is not a command: want add or remove with a "+
		"process group, or watch or forget with a process\n", stderr.String())
}
