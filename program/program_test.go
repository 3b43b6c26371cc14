// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/terminal"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// role makes the test binary the program of that name.
const role = "PROGRAM_TEST_ROLE"

// roles are the programs of these tests.
var roles = map[string]program.Func{
	"fail": func(context.Context, *program.Process) error { return errors.New("the disk is gone") },
	"gogc": func(_ context.Context, p *program.Process) error {
		seen := []uint64{gogc()}
		for _, size := range []int{20 << 20, 3 << 20, 1} {
			live := make([]byte, size)
			seen = append(seen, gogcOfCollections())
			runtime.KeepAlive(live)
		}
		between := fmt.Sprint(seen[2])
		if seen[2] > 25 && seen[2] < 150 {
			between = "between"
		}
		fmt.Fprintln(p.Stdout, "GOGC", seen[0], seen[1], between, seen[3])
		debug.SetGCPercent(60)
		live := make([]byte, 20<<20)
		fmt.Fprintln(p.Stdout, "own", gogcOfCollections())
		runtime.KeepAlive(live)
		return nil
	},
	"succeed": func(context.Context, *program.Process) error { return nil },
	"parse": func(_ context.Context, p *program.Process) error {
		_, err := p.Parse(args.Bind(p.Flags(), args.Default("out")))
		if err == nil {
			fmt.Fprintln(p.Stdout, "parsed")
		}
		return err
	},
	"fail at length": func(context.Context, *program.Process) error {
		return errors.New("the folder of the run lies on a disk that somebody has taken out of the computer")
	},
	"wait": func(ctx context.Context, p *program.Process) error {
		fmt.Fprintln(p.Stdout, "ready")
		<-ctx.Done()
		return fmt.Errorf("loop: %w: %w", accelerate.ErrInterrupted, context.Cause(ctx))
	},
	"talk": func(ctx context.Context, p *program.Process) error {
		answers := make(chan bool)
		release := p.OnInterrupt(func() bool { answers <- true; return true })
		fmt.Fprintln(p.Stdout, "ready")
		<-answers
		release()
		fmt.Fprintln(p.Stderr, "the answer is stopped")
		<-ctx.Done()
		return context.Cause(ctx)
	},
	"panic": func(context.Context, *program.Process) error {
		return tensor.Recover(func() { panic("out of luck") })
	},
	"crash": func(context.Context, *program.Process) error { panic(&args.Error{}) },
	"misuse": func(context.Context, *program.Process) error {
		tensor.FromSlice(tensor.NewCtx(tensor.CPU()), []float32{1}, 2)
		return nil
	},
	"elsewhere": func(context.Context, *program.Process) error {
		return fmt.Errorf("loop: %w on another rank", accelerate.ErrInterrupted)
	},
	"hang": func(ctx context.Context, p *program.Process) error { // as a step that does not end
		fmt.Fprintln(p.Stdout, "ready")
		select {}
	},
	"print": func(_ context.Context, p *program.Process) error { // more than a pipe holds
		line := strings.Repeat("x", 1000)
		for range 1000 {
			if _, err := fmt.Fprintln(p.Stdout, line); err != nil {
				return err
			}
			fmt.Fprintln(p.Stderr, line)
		}
		return os.WriteFile("done", nil, 0o600)
	},
}

func TestMain(m *testing.M) {
	if f := roles[os.Getenv(role)]; f != nil {
		os.Exit(program.Run(f))
	}
	os.Exit(m.Run())
}

// command is a process that plays a role, in its own folder.
func command(t *testing.T, as string, argv ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, argv...)
	cmd.Env = append(os.Environ(), role+"="+as)
	cmd.Dir = t.TempDir()
	return cmd
}

// finish runs a command and returns its exit code, −1 if a signal ended it, and what it printed.
func finish(t *testing.T, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	name := filepath.Base(os.Args[0])
	for _, c := range []struct {
		role   string
		argv   []string
		code   int
		stdout string
		stderr string
	}{
		{"succeed", nil, 0, "", ""},
		{"fail", nil, program.ExitError, "", name + ": the disk is gone\n"},
		{"panic", nil, program.ExitError, "", name + ": panic: out of luck\n\ngoroutine 1 [running]:\n"},
		{"crash", nil, program.ExitError, "", "\n\ngoroutine 1 [running]:\n"},
		{"misuse", nil, program.ExitError, "", "program_test.go:"},
		{"elsewhere", nil, program.ExitInterrupted, "", name + ": loop: interrupted on another rank\n"},
		{"parse", []string{"--max_steps", "3"}, 0, "parsed\n", ""},
		{"parse", []string{"--torch_compile"}, 0, "--torch_compile has no effect", ""},
		{"parse", []string{"--help"}, 0, "--max_steps", ""},
		{"parse", []string{"--dp_shard_size", "2", "--num_replicas", "4"}, 0, "parsed\n", ""},
		{"parse", []string{"--dp_shard_size", "2"}, program.ExitUsage, "", "mesh dp_shard=2 does not fit 1 rank: want"},
		{"parse", []string{"--dp_shard_size", "2", "--pp_schedule", "zbv"}, program.ExitUsage, "",
			"arguments: 2 faults:\n  - mesh dp_shard=2 does not fit 1 rank: want a multiple of 2 ranks, or sizes " +
				"whose product divides 1 (1)\n  - pp_schedule is \"zbv\" (flag --pp_schedule): want it left out, or " +
				"pp_size of at least 2 beside it\n"},
		{"parse", []string{"--pp_size", "2", "--num_replicas", "2", "--pp_schedule", "dualpipev"},
			program.ExitUsage, "", "pp_schedule is \"dualpipev\" (flag --pp_schedule); schedule dualpipev: 1 " +
				"micro-batch on 2 ranks: want at "},
		{"parse", []string{"--pp_size", "2", "--num_replicas", "4", "--pp_schedule", "interleaved_1f1b",
			"--global_train_batch_size", "48"}, program.ExitUsage, "",
			"3 micro-batches on 2 ranks: want a multiple of 2"},
		{"parse", []string{"--pp_size", "2", "--num_replicas", "2", "--pp_schedule", "zbv", "--pp_split", "1,1,1"},
			program.ExitUsage, "", "pp_split is [\"1\",\"1\",\"1\"] (flag --pp_split): want 4 numbers, one for " +
				"each stage of zbv with pp_size 2\n"},
		{"parse", []string{"--pp_size", "3", "--num_replicas", "4", "--pp_schedule", "none.csv"}, program.ExitUsage, "",
			"none.csv: no such file"},
		{"parse", []string{"--report_to", "nobody", "--learning_rat", "1"}, program.ExitUsage, "", "report_to is"},
	} {
		t.Run(c.role+" "+strings.Join(c.argv, " "), func(t *testing.T) {
			code, stdout, stderr := finish(t, command(t, c.role, c.argv...))
			require.Equal(t, c.code, code, "%s", stderr)
			if c.stdout == "" {
				require.Empty(t, stdout)
			}
			if c.stderr == "" {
				require.Empty(t, stderr)
			}
			require.Contains(t, stdout, c.stdout)
			require.Contains(t, stderr, c.stderr)
		})
	}
}

// The settings of --help fit the terminal.
func TestHelpFits(t *testing.T) {
	cmd := command(t, "parse", "--help")
	cmd.Env = append(cmd.Env, terminal.EnvColumns+"=79")
	_, stdout, _ := finish(t, cmd)
	require.Contains(t, stdout, "--max_steps")
	for line := range strings.SplitSeq(stdout, "\n") {
		require.LessOrEqual(t, terminal.Columns(line), 79, "%s", line)
	}
}

// A variant of kernels that does not exist is told before the program begins, and no launcher tries again.
func TestUnknownKernels(t *testing.T) {
	cmd := command(t, "succeed")
	recorded := filepath.Join(cmd.Dir, "error.json")
	cmd.Env = append(cmd.Env, "LOCKSTEP_KERNELS=avx3", "TORCHELASTIC_ERROR_FILE="+recorded)
	code, _, stderr := finish(t, cmd)
	require.Equal(t, program.ExitUsage, code, stderr)
	require.Equal(t, filepath.Base(os.Args[0])+`: LOCKSTEP_KERNELS=avx3: kernels: unknown variant "avx3": `+
		"want one of generic, avx2, avx512, amx\n", stderr)
	text, err := os.ReadFile(recorded)
	require.NoError(t, err)
	require.Contains(t, string(text), `"permanent":true`)
}

// gogc is GOGC as it is.
func gogc() uint64 {
	is := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(is)
	return is[0].Value.Uint64()
}

// gogcOfCollections is GOGC when many collections have found what they found before.
func gogcOfCollections() uint64 {
	is := gogc()
	for same := 0; same < 20; same++ {
		runtime.GC()
		time.Sleep(time.Millisecond) // what follows a collection has a goroutine of its own
		if now := gogc(); now != is {
			is, same = now, 0
		}
	}
	return is
}

// Programs collect garbage early where there is much, unless the user or the program says when.
func TestGOGC(t *testing.T) {
	for set, want := range map[string]string{"": "150 25 between 150", "20": "20 20 20 20"} {
		cmd := command(t, "gogc")
		cmd.Env = append(cmd.Env, "GOGC="+set)
		_, stdout, _ := finish(t, cmd)
		require.Equal(t, "GOGC "+want+"\nown 60\n", stdout)
	}
}

// A launcher learns what went wrong.
func TestErrorsAreRecorded(t *testing.T) {
	for as, want := range map[string]string{"fail": "the disk is gone", "misuse": "FromSlice"} {
		cmd := command(t, as)
		file := filepath.Join(cmd.Dir, "error.json")
		cmd.Env = append(cmd.Env, "TORCHELASTIC_ERROR_FILE="+file)
		code, _, _ := finish(t, cmd)
		require.Equal(t, program.ExitError, code)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(text), want)
	}
}

// Rank 0 speaks for all. A place from which the ranks cannot meet is an error before anything else.
func TestOtherRanksAreSilent(t *testing.T) {
	place := []string{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
		"MASTER_PORT=1", "LOCKSTEP_JOB_TOKEN=" + strings.Repeat("correct horse battery staple ", 2)}
	cmd := command(t, "parse")
	cmd.Env = append(cmd.Env, place...)
	code, stdout, stderr := finish(t, cmd)
	require.Zero(t, code, "%s", stderr)
	require.Empty(t, stdout)

	cmd = command(t, "parse")
	cmd.Env = append(append(cmd.Env, place...), "LOCKSTEP_JOB_TOKEN=short")
	code, _, stderr = finish(t, cmd)
	require.Equal(t, program.ExitError, code)
	require.Contains(t, stderr, "LOCKSTEP_JOB_TOKEN")
}
