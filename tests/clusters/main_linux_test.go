// SPDX-License-Identifier: Apache-2.0

package clusters

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"
)

// patience is when a test gives up.
const patience = 90 * time.Second

// clm is the program, and withMPI the same with the engine mpi.
var clm, withMPI, corpus, heldOut string

func TestMain(m *testing.M) {
	if os.Getenv("LOCKSTEP_REQUIRE_CLUSTERS") == "" { // nothing that needs the program
		os.Exit(m.Run())
	}
	code := 1
	scratch, err := os.MkdirTemp("", "lockstep-clusters-*")
	if err == nil {
		corpus, heldOut = filepath.Join(scratch, "corpus"), filepath.Join(scratch, "heldout")
		clm, err = clmtest.Build(root, "examples/clm", scratch)
		if err == nil {
			withMPI, err = clmtest.Build(root, "examples/clm", filepath.Join(scratch, "mpi"), "-tags", "mpi")
		}
		err = errors.Join(err, clmtest.WriteCorpus(corpus, 8, 1000), clmtest.WriteCorpus(heldOut, 2, 500))
		if err == nil {
			code = m.Run()
		}
		err = errors.Join(err, os.RemoveAll(scratch))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = cmp.Or(code, 1)
	}
	os.Exit(code)
}

// need skips a test of a launcher that this run does not ask for.
func need(t *testing.T, launcher string) {
	t.Helper()
	if !slices.Contains(strings.Split(os.Getenv("LOCKSTEP_REQUIRE_CLUSTERS"), ","), launcher) {
		lacking.Skip(t, lacking.Clusters, launcher, "no "+launcher+": .ci/run clusters installs it")
	}
}

// flags are those of a run of a few milliseconds a step, which lasts until it is stopped unless more says otherwise.
func flags(out string, more ...string) []string {
	return clmtest.Tiny(corpus, heldOut, out, append([]string{"--eval_strategy", "no", "--max_steps", "1000000",
		"--save_steps", "1000000", "--log_level", "info", "--disable_tqdm"}, more...)...)
}

// process is a program under way.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    *syncbuffer.Buffer
	marker string // in the environment of all that it starts
	ended  chan struct{}
}

// start starts a command line with more variables.
func start(t *testing.T, line []string, env ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(line[0], line[1:]...), out: &syncbuffer.Buffer{}, ended: make(chan struct{}),
		marker: fmt.Sprintf("CLUSTERS_TEST=%016x", rand.Uint64())}
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "LOCKSTEP_") })
	p.cmd.Env = append(append(p.cmd.Env, p.marker, "GOMAXPROCS=1", "TMPDIR="+t.TempDir()), env...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = t.TempDir(), p.out, p.out
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // the state says how it ended
		close(p.ended)
	}()
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
		for pid := range p.environs() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return p
}

// wait waits for the end and returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		require.FailNow(p.t, "it does not end", "%s", p.out)
	}
	return p.cmd.ProcessState.ExitCode()
}

// environs are the environments of the processes of clm under way, by process.
func (p *process) environs() map[int]string {
	found := map[int]string{}
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(p.t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(p.marker)) { // it has ended meanwhile
			continue
		}
		exe, err := os.Readlink(filepath.Join(filepath.Dir(path), "exe"))
		if err != nil || exe != clm && exe != withMPI {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(p.t, err)
		found[pid] = string(text)
	}
	return found
}

// kill ends the rank whose environment has a variable.
func (p *process) kill(variable string) {
	p.t.Helper()
	for pid, environ := range p.environs() {
		if strings.Contains("\x00"+environ, "\x00"+variable+"\x00") {
			require.NoError(p.t, syscall.Kill(pid, syscall.SIGKILL))
			return
		}
	}
	require.FailNow(p.t, "no process has "+variable)
}

// requireNothingLeft requires no rank and none of the given job's segments.
func (p *process) requireNothingLeft(segments []string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return len(p.environs()) == 0 }, 10*time.Second, 10*time.Millisecond)
	require.Subset(p.t, segments, shared(p.t))
}

// shared are the names in /dev/shm.
func shared(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("/dev/shm/lockstep-*")
	require.NoError(t, err)
	return found
}

// await waits until a condition holds.
func await(t *testing.T, what fmt.Stringer, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "%s", what)
	}
}

// weights are the bytes of a folder's model.
func weights(t *testing.T, out string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(out, "model.safetensors"))
	require.NoError(t, err)
	return b
}
