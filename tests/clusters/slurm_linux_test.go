// SPDX-License-Identifier: Apache-2.0

package clusters

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm/commtest"
)

// slurm is a cluster of two virtual nodes on this machine, with daemons and its own key.
type slurm struct {
	t    *testing.T
	dir  string
	conf string
}

// The nodes are called by addresses of the loopback network, since ranks look for rank 0 by its node's name.
const nodes = "127.0.0.[2-3]"

// newSlurm starts the daemons, and ends them after the test.
func newSlurm(t *testing.T) *slurm {
	t.Helper()
	dir, err := os.MkdirTemp("", "lockstep-slurm-*") // short: it holds a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s := &slurm{t: t, dir: dir, conf: filepath.Join(dir, "slurm.conf")}
	for _, sub := range []string{"state", "127.0.0.2", "127.0.0.3"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	key := make([]byte, 1024)
	_, err = rand.Read(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "munge.key"), key, 0o400))
	socket := filepath.Join(dir, "munge.sock")
	require.NoError(t, os.WriteFile(s.conf, []byte(fmt.Sprintf(`ClusterName=test
SlurmctldHost=localhost
SlurmctldPort=%[2]s
AuthType=auth/munge
AuthInfo=socket=%[3]s,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation=%[1]s/state
SlurmdSpoolDir=%[1]s/%%n
TmpFS=%[1]s/%%n
SlurmctldPidFile=%[1]s/slurmctld.pid
SlurmdPidFile=%[1]s/%%n.pid
SlurmctldLogFile=%[1]s/slurmctld.log
SlurmdLogFile=%[1]s/%%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
NodeName=127.0.0.2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=%[4]s CPUs=8
NodeName=127.0.0.3 NodeHostname=localhost NodeAddr=127.0.0.1 Port=%[5]s CPUs=8
PartitionName=all Nodes=%[6]s Default=YES
`, dir, commtest.FreePort(t), socket, commtest.FreePort(t), commtest.FreePort(t), nodes)), 0o644))
	s.daemon("munged", "--foreground", "--force", "--key-file="+filepath.Join(dir, "munge.key"), "--socket="+socket,
		"--pid-file="+filepath.Join(dir, "munged.pid"), "--log-file="+filepath.Join(dir, "munged.log"),
		"--seed-file="+filepath.Join(dir, "seed"))
	s.until("munged", func() bool { _, err := os.Stat(socket); return err == nil })
	s.daemon("slurmctld", "-D")
	s.daemon("slurmd", "-D", "-N", "127.0.0.2")
	s.daemon("slurmd", "-D", "-N", "127.0.0.3")
	s.until("idle nodes", func() bool { return strings.Contains(s.ask("sinfo", "-h", "-o", "%D %t"), "2 idle") })
	return s
}

// daemon starts one of Slurm's, which ends with the test.
func (s *slurm) daemon(line ...string) {
	s.t.Helper()
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+s.conf)
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		over := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // it was told to end
		over.Stop()
	})
}

// ask runs one of Slurm's commands and returns what it prints, errors as well.
func (s *slurm) ask(line ...string) string {
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+s.conf)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s: %v", out, err)
	}
	return strings.TrimSpace(string(out))
}

// until waits until a condition holds.
func (s *slurm) until(what string, holds func() bool) {
	s.t.Helper()
	await(s.t, text(what), holds)
}

type text string

// String implements fmt.Stringer.
func (t text) String() string { return string(t) }

// job is one of examples/clusters/slurm/clm.sbatch.
type job struct {
	*slurm
	id, log string
	marked  *process // for its marker
}

// submit puts a job into the queue. Its data go by TCP, as between two real nodes.
func (s *slurm) submit(argv ...string) *job {
	s.t.Helper()
	script, err := filepath.Abs(filepath.Join(root, "examples/clusters/slurm/clm.sbatch"))
	require.NoError(s.t, err)
	j := &job{slurm: s, log: filepath.Join(s.t.TempDir(), "log")}
	j.marked = start(s.t, append([]string{"sbatch", "--parsable", "--cpus-per-task=1", "--output=" + j.log, script},
		argv...), "SLURM_CONF="+s.conf, "CLM="+clm, "LOCKSTEP_DDP_BACKEND=tcp")
	require.Zero(s.t, j.marked.wait(), "%s", j.marked.out)
	j.id = strings.TrimSpace(j.marked.out.String())
	_, err = strconv.Atoi(j.id)
	require.NoError(s.t, err, "%s", j.marked.out)
	return j
}

// String is what the job has printed so far.
func (j *job) String() string {
	b, _ := os.ReadFile(j.log) // none yet
	return string(b)
}

// prints waits for a text in the job's log.
func (j *job) prints(text string) {
	j.t.Helper()
	await(j.t, j, func() bool { return strings.Contains(j.String(), text) })
}

// state is Slurm's word for what the job is doing.
func (j *job) state() string { return j.ask("squeue", "-h", "-t", "all", "-j", j.id, "-o", "%T") }

// ends waits for the job's end in a state.
func (j *job) ends(state string) {
	j.t.Helper()
	await(j.t, j, func() bool { return j.state() == state })
}

// saved is the step of the checkpoint that a job would resume from.
func saved(t *testing.T, out string) int64 {
	t.Helper()
	c, err := (&checkpoint.Store{Dir: out}).Latest(t.Context())
	require.NoError(t, err)
	return c.Step
}

// TestSlurm trains on 2 nodes with 2 ranks each: a job that is requeued ends with the bits of one process, one that
// is canceled has saved, and one that loses a rank ends with that rank's name.
func TestSlurm(t *testing.T) {
	need(t, "slurm")
	s := newSlurm(t)
	t.Run("requeued", func(t *testing.T) {
		s := &slurm{t, s.dir, s.conf}
		dir := t.TempDir()
		one, out := filepath.Join(dir, "one"), filepath.Join(dir, "out")
		p := start(t, append([]string{clm}, flags(one, "--max_steps", "2000", "--logging_steps", "10")...))
		require.Zero(t, p.wait(), "%s", p.out)
		j := s.submit(flags(out, "--max_steps", "2000", "--logging_steps", "10")...)
		j.prints("step 100 ")
		require.Contains(t, j.String(), "ranks 4  launcher Slurm  engine tcp")
		require.Empty(t, s.ask("scancel", "--batch", "--signal=USR1", j.id)) // as near the time limit
		await(t, j, func() bool { return j.state() == "PENDING" })
		step := saved(t, out)
		require.Less(t, step, int64(2000))
		j.prints("INFO resumed")
		j.ends("COMPLETED")
		require.NotContains(t, j.String(), "changed setting")
		require.Equal(t, weights(t, one), weights(t, out), "after a requeue at step %d", step)
	})
	for plugin, library := range map[string]string{"pmix": "libmpi.so.40", "pmi2": "libmpich.so.12"} {
		t.Run("mpi/"+plugin, func(t *testing.T) {
			dir := t.TempDir()
			one, out := filepath.Join(dir, "one"), filepath.Join(dir, "out")
			p := start(t, append([]string{clm}, flags(one, "--max_steps", "24")...))
			require.Zero(t, p.wait(), "%s", p.out)
			line := []string{"srun", "--mpi=" + plugin, "--nodes=2", "--ntasks-per-node=2", withMPI,
				"--ddp_backend", "mpi"}
			p = start(t, append(line, flags(out, "--max_steps", "24")...), "SLURM_CONF="+s.conf,
				"LOCKSTEP_MPI_LIBRARY="+library, "LOCKSTEP_JOB_TOKEN="+rand.Text(),
				"OMPI_MCA_btl=tcp,self") // its shared memory would mix up the ranks of nodes with one host name
			require.Zero(t, p.wait(), "%s", p.out)
			require.Contains(t, p.out.String(), "ranks 4  launcher Slurm  engine mpi")
			require.Equal(t, weights(t, one), weights(t, out))
		})
	}
	t.Run("canceled", func(t *testing.T) {
		s := &slurm{t, s.dir, s.conf}
		out := filepath.Join(t.TempDir(), "out")
		j := s.submit(flags(out, "--n_layer", "2", "--n_embd", "512")...) // long enough to save for a kill to tear it
		j.prints("step 3 ")
		require.Empty(t, s.ask("scancel", j.id))
		j.ends("CANCELLED")
		require.Positive(t, saved(t, out))
		j.marked.requireNothingLeft(nil)
	})
	t.Run("killed", func(t *testing.T) {
		s := &slurm{t, s.dir, s.conf}
		j := s.submit(flags(filepath.Join(t.TempDir(), "out"))...)
		j.prints("step 3 ")
		j.marked.kill("SLURM_PROCID=2")
		j.ends("FAILED")
		require.Regexp(t, `rank 2 \(process \d+ on \S+\) is lost|task 2: Killed`, j.String())
		j.marked.requireNothingLeft(nil)
	})
}
