// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// limited makes a cgroup of so many bytes and puts a command line into it.
func limited(t *testing.T, bytes int, line []string) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	var folder, file string
	for _, group := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		switch parts := strings.SplitN(group, ":", 3); {
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			folder, file = filepath.Join("/sys/fs/cgroup/memory", parts[2]), "memory.limit_in_bytes"
		case parts[1] == "" && folder == "":
			folder, file = filepath.Join("/sys/fs/cgroup", parts[2]), "memory.max"
		}
	}
	folder = filepath.Join(folder, "lockstep-test-"+strconv.Itoa(os.Getpid())+"-"+strconv.Itoa(bytes))
	err = os.Mkdir(folder, 0o755)
	if err == nil {
		t.Cleanup(func() {
			for range 50 { // the kernel lets go of ended processes after a while
				if err = os.Remove(folder); err == nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
			require.NoError(t, err)
		})
		err = os.WriteFile(filepath.Join(folder, file), []byte(strconv.Itoa(bytes)), 0o644)
	}
	if err != nil {
		lacking.Skip(t, lacking.Cgroups, "memory", "no cgroup that limits memory can be made: "+err.Error())
	}
	return append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(folder, "cgroup.procs")}, line...)
}

// TestMemoryOfTheHost has a model whose state fits into a host's memory once, and not four times: data parallelism says
// what it needs, shards train. A host into which it does not fit at all trains it with files.
func TestMemoryOfTheHost(t *testing.T) {
	if testing.Short() {
		t.Skip("a model of 9.6 million parameters")
	}
	dir := t.TempDir()
	model := func(out string, flags ...string) []string {
		return tiny(filepath.Join(dir, out), append([]string{"--n_layer", "12", "--n_embd", "256", "--n_head", "4",
			"--deterministic_ranks", "1",
			"--max_steps", "1", "--block_size", "16", "--eval_strategy", "no", "--save_strategy", "no",
			"--log_level", "info"}, flags...)...)
	}
	const host = 480 << 20

	p := start(t, limited(t, host, launched(4, model("ddp", "--ddp_backend", "shm"))))
	p.wait()
	require.NotZero(t, p.code())
	require.Contains(t, p.stderr.String(), "accelerate: each of the 4 ranks on this host needs 14", "MiB")
	require.Contains(t, p.stderr.String(), "the optimizer's state 7")
	require.Contains(t, p.stderr.String(), "want fsdp full_shard, or offload_optimizer disk")
	requireNoTrace(t, p.stderr.String())

	succeed(t, limited(t, host+1<<20, launched(4, model("sharded", "--ddp_backend", "shm", "--fsdp", "full_shard",
		"--fsdp_share_parameters", "false"))))

	const small = 140 << 20
	p = start(t, limited(t, small, plain(model("whole"))))
	p.wait()
	require.NotZero(t, p.code())
	require.Contains(t, p.stderr.String(), "accelerate: the rank on this host needs 14")
	require.Contains(t, p.stderr.String(), "want offload_optimizer disk")
	succeed(t, limited(t, small+1<<20, plain(model("offloaded", "--offload_optimizer", "disk", "--offload_params",
		"disk", "--offload_dir", dir))))

	for _, out := range []string{"sharded", "offloaded"} {
		require.FileExists(t, filepath.Join(dir, out, "model.safetensors"))
	}
	require.Equal(t, read(t, dir, "sharded", "model.safetensors"), read(t, dir, "offloaded", "model.safetensors"))
}
