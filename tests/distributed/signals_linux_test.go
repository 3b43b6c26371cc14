// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// ways are how a job is started. Each gives the command line of clm with the flags argv.
var ways = map[string]func(t testing.TB, argv []string) []string{
	"program":  func(_ testing.TB, argv []string) []string { return plain(argv) },
	"launcher": func(_ testing.TB, argv []string) []string { return launched(2, argv, "--max_restarts", "3") },
	"elastic": func(t testing.TB, argv []string) []string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		return launched(2, argv, "--nnodes", "1:2", "--rdzv_endpoint", l.Addr().String(), "--last_call", "0.1",
			"--max_restarts", "3")
	},
	"fsdp": func(_ testing.TB, argv []string) []string {
		return launched(2, append(argv, "--fsdp", "full_shard", "--fsdp_share_parameters", "false"))
	},
}

// signalled are the exit codes of clm after each signal; launchers have 128 + its number.
var signalled = map[syscall.Signal]struct {
	name string
	code int
}{
	syscall.SIGINT:  {"SIGINT", 130},
	syscall.SIGTERM: {"SIGTERM", 130},
	syscall.SIGHUP:  {"SIGHUP", 130},
	syscall.SIGQUIT: {"SIGQUIT", 130},
	syscall.SIGUSR1: {"SIGUSR1", 138},
}

const token = "LOCKSTEP_JOB_TOKEN=a token that the hosts of the test know"

// heedHangups lets programs that the test starts get SIGHUP, if the test itself runs under nohup: they inherit what is
// ignored, not what is handled.
func heedHangups(t testing.TB) {
	handled := make(chan os.Signal, 1)
	signal.Notify(handled, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(handled) })
}

// TestSignalsSave: whatever the signal and however the job was started, it saves, and a resume has the bits of an
// undisturbed run.
func TestSignalsSave(t *testing.T) {
	t.Parallel()
	heedHangups(t)
	const steps, apart = 400, 20
	train := func(out string, steps, save int, more ...string) []string {
		// a learning rate that does not depend on the number of steps
		return tiny(out, append([]string{"--lr_scheduler_type", "constant_with_warmup", "--max_steps",
			strconv.Itoa(steps), "--eval_strategy", "no", "--save_steps", strconv.Itoa(save)}, more...)...)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	succeed(t, plain(train(whole, steps, apart)))
	for way, line := range ways {
		for s, want := range signalled {
			t.Run(way+"/"+want.name, func(t *testing.T) {
				t.Parallel()
				out := filepath.Join(t.TempDir(), "out")
				p := start(t, line(t, train(out, steps, steps)), token)
				p.awaitPrinted("step 5 ")
				p.signal(s)
				p.wait()
				text := p.stderr.String()
				if way == "program" {
					require.Equal(t, want.code, p.code(), "%s", text)
				} else {
					require.Equal(t, 128+int(s), p.code(), "%s", text)
				}
				require.NotContains(t, text, "failed first", "an interrupt is no failure")
				require.Equal(t, s == syscall.SIGQUIT, strings.Contains(text, "SIGQUIT: quit\n"), "%s", text)
				require.Equal(t, s == syscall.SIGQUIT, strings.Contains(text, "goroutine 1 ["), "%s", text)
				saved := latest(t, out)
				require.NotNil(t, saved, "%s", text)
				require.Less(t, saved.Step, int64(steps))
				p.requireNothingLeft()
				next := (int(saved.Step)/apart + 1) * apart // which the undisturbed run saved
				succeed(t, line(t, train(out, next, steps, "--resume_from_checkpoint", "last")), token)
				requireSameTraining(t, whole, out, next)
			})
		}
	}
}

// TestAClosedLogEndsNothing: whoever reads the output goes, as less does upon q. The job continues to its end.
func TestAClosedLogEndsNothing(t *testing.T) {
	t.Parallel()
	const steps = 40
	flags := []string{"--max_steps", fmt.Sprint(steps), "--eval_strategy", "no", "--save_steps", "100000"}
	whole := filepath.Join(t.TempDir(), "whole")
	succeed(t, plain(tiny(whole, flags...)))
	for way, line := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "out")
			words := line(t, tiny(out, flags...))
			cmd := exec.Command(words[0], words[1:]...)
			cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), token)
			r, w, err := os.Pipe()
			require.NoError(t, err)
			cmd.Stdout, cmd.Stderr = w, w
			require.NoError(t, cmd.Start())
			require.NoError(t, w.Close())
			_, err = r.Read(make([]byte, 1)) // it has begun to print
			require.NoError(t, err)
			require.NoError(t, r.Close())
			require.NoError(t, cmd.Wait(), "%v", cmd.ProcessState)
			requireSameWeights(t, whole, out, steps)
		})
	}
}
